//! The words, the ports, and the arithmetic of discrepancy-lag correction (DLC).
//!
//! Does no IO, reads no clock, spawns nothing; knows neither a runtime nor a tensor library.
//!
//! Notation, used everywhere: `q` is the distribution a token was really drawn from, `p_s` the trainer's distribution
//! at the sampler's weights, `p_theta` the trainer's distribution now. For each sampled token
//!
//! ```text
//! log p_theta - log q = (log p_theta - log p_s) + (log p_s - log q)
//!                       lag                       numeric
//! ```
//!
//! Data flows one way, and the modules follow it:
//! [`support`] → [`behavior`] → [`delta`] → [`rollout`] → [`plan`] → [`reward`] → [`score`] → [`dlc`]; beside them stand
//! [`dispatch`], which decides who samples what, and the [`rivals`] of the correction.

pub mod behavior;
pub mod delta;
pub mod dispatch;
pub mod dlc;
pub mod plan;
pub mod ports;
pub mod profile;
pub mod reward;
pub mod rivals;
pub mod rollout;
pub mod sampling;
pub mod score;
pub mod support;
pub mod token;
pub mod version;

pub use behavior::BehaviorDistribution;
pub use delta::{Delta, FinishReason};
pub use dispatch::Dispatch;
pub use plan::{Batch, BatchPlan};
pub use profile::SamplerProfile;
pub use reward::{RewardBook, ScoredBatch};
pub use rollout::{Rollout, Segment, Span};
pub use sampling::SamplingParams;
pub use score::SupportLogProbs;
pub use support::Support;
pub use token::{RolloutId, TokenId};
pub use version::{Evidence, Stamp, WeightVersion};
