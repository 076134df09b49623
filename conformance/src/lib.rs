//! Conformance: what a sampler/trainer pair must show before training on it means what it says.
//!
//! A [`Check`] asks a [`Target`] questions through its ports and gives a [`Verdict`] with the numbers behind it. Every
//! check names a [`Fault`]: a decorator around the ports that turns the check red, so that the check itself is tested
//! on the very pair it judges. Knows no engine and no adapter; runs against anything that implements the ports.
//!
//! ```
//! use lockstep_conformance::{Suite, pair};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let report = Suite::all().run(&pair::target(1), &mut |_| {}).await;
//! assert_eq!(report.exit_code(), 0, "{}", report.table());
//! # }
//! ```
//!
//! Running the suite takes optimiser steps and loads weights: give it a pair set up for it, not one in the middle of a
//! run.

pub mod cases;
pub mod check;
pub mod checks;
pub mod compare;
pub mod course;
pub mod difference;
pub mod draw;
pub mod faults;
pub mod figure;
pub mod frequency;
pub mod gamma;
pub mod junit;
pub mod obstacle;
pub mod page;
pub mod pair;
pub mod readme;
pub mod report;
pub mod suite;
pub mod target;
pub mod template;
pub mod tolerance;

mod meter;
mod mix;
mod training;

pub use check::{Check, FalseAlarm, Fault, Finding, Verdict};
pub use course::{Course, Look, Way};
pub use figure::Figure;
pub use obstacle::Obstacle;
pub use report::Report;
pub use suite::{Progress, Suite};
pub use target::{Ask, Target};
pub use template::ChatTemplate;
pub use tolerance::{NumericClass, Tolerance};
