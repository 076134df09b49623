//! The corrections others train with, as pure functions of log-probs: to compare against, and to hold a trainer's step to.
//!
//! A rule gives each drawn token a weight ([`Weights`]), leaves tokens out ([`Selection`], which says by what), or states a
//! surrogate of its own ([`ppo::Surrogate`]); [`centred`] also gives the coefficients of the centring. The loss of a batch is
//! then [`reduction::Reduction`] of
//!
//! ```text
//! loss_t = -A [ sg(w) log p_a - sum_v sg(c_v) log p_v ]
//! ```
//!
//! Where a rule and its published code differ, the file says which is computed. Knows no engine, and applies nothing.

pub mod advantage;
pub mod areal;
pub mod batch;
pub mod bounds;
pub mod catalogue;
pub mod centred;
pub mod cispo;
pub mod decoupled;
#[cfg(test)]
mod fixture;
pub mod importance;
pub mod kl;
pub mod m2po;
pub mod method;
pub mod metrics;
pub mod ppo;
pub mod reduction;
pub mod rejection;
pub mod replay;
pub mod selects;
pub mod sequence_ratio;
pub mod trl;
pub mod vcpo;
pub mod verl;

pub use batch::{Batch, PerToken, Ratio, Sequence};
pub use bounds::{Band, Cap};
pub use catalogue::Rival;
pub use importance::Level;
pub use method::{Method, MethodError, Prepared};
pub use reduction::Reduction;
pub use selects::{Selection, Selects, Weights};
