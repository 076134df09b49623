//! Discrepancy-lag correction: centre the numeric term, clip the lag term, re-synchronise when the effective sample size
//! of the raw lag ratio falls below one half.
//!
//! The formulas of the published method were not available when this was written: what stands here is our definition of
//! its description, form A below. Score centring is that of Marek & Ryabinin, arXiv 2609.20807.
//!
//! ```text
//! w_v = clip(p_theta,v / p_s,v, low, high)       the lag, clipped
//! c_v = q_v w_v                                  the numeric term, centred
//! loss = -A [ sg(w_a) log p_a - sum_v sg(c_v) log p_v ]
//! ```
//!
//! Everything a loss needs is `(w, c)`, so the files follow the arithmetic:
//! [`mod@decompose`] → [`ess`] → [`rule`] → [`mod@weigh`] → [`loss`] → [`resync`]. The other forms stand in [`variant`].

pub mod decompose;
pub mod ess;
pub mod forecast;
pub mod loss;
pub mod pareto;
pub mod policy;
pub mod resync;
pub mod rule;
pub mod statistics;
pub mod variant;
pub mod weigh;
mod weigh_variant;
pub mod wrong_on_purpose;

pub use decompose::{Discrepancy, LagRatio, decompose};
pub use ess::{EssLevel, EssReport};
pub use forecast::{Forecast, Forecaster};
pub use policy::{Inputs, Policy, PolicyDecision, Reason};
pub use resync::{Decision, Trigger};
pub use rule::{LagClip, Rule, TailModel};
pub use variant::{AdvantageSign, Centring, LagBound, NumericWeight, PpoClip, Variant, VariantError};
pub use weigh::{TokenCorrection, weigh};
pub use weigh_variant::VariantWeighError;
