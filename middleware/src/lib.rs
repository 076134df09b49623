//! Lockstep: a consistency layer between the engine that samples answers and the trainer that learns from them.
//!
//! One step, in the order of the files: [`dispatch`] fills a plan through a [`client`] and keeps what arrives in the
//! [`ledger`]; [`run`] joins the rewards; [`mod@step`] scores, updates and re-synchronises. Only this crate speaks gRPC.

pub mod advise;
pub mod audit;
#[cfg(feature = "engine")]
pub mod built_in;
pub mod cli;
pub mod client;
pub mod config;
pub mod conformance;
pub mod dispatch;
#[cfg(feature = "engine")]
pub mod experiment;
#[cfg(feature = "engine")]
pub mod input;
pub mod journal;
pub mod ledger;
pub mod metrics;
pub mod process;
pub mod progress;
pub mod queue;
pub mod record;
pub mod report;
pub mod resync;
pub mod run;
#[cfg(feature = "engine")]
pub mod saving;
pub mod serve;
pub mod server;
pub mod session;
pub mod simulate;
#[cfg(feature = "engine")]
pub mod small_model;
pub mod step;
pub mod task;
#[cfg(feature = "engine")]
pub mod text;
pub mod wire;
