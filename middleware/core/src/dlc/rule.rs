//! Which correction a step applies.

use super::decompose::LagRatio;
use crate::rivals::Method;
use serde::{Deserialize, Serialize};

/// Bounds of the lag ratio: `clip(r, low, high)`, inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LagClip {
    low: f64,
    high: f64,
}

/// Bounds that bound nothing.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("lag clip [{low}, {high}] is not an interval 0 <= low <= 1 <= high")]
pub struct ClipError {
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

impl LagClip {
    /// # Errors
    /// Bounds that are not `0 <= low <= 1 <= high`: the ratio 1 of unchanged weights must pass as it is.
    pub fn new(low: f64, high: f64) -> Result<Self, ClipError> {
        let ordered = (0.0..=1.0).contains(&low) && high >= 1.0;
        ordered.then_some(Self { low, high }).ok_or(ClipError { low, high })
    }

    /// Lower bound.
    pub fn low(&self) -> f64 {
        self.low
    }

    /// Upper bound.
    pub fn high(&self) -> f64 {
        self.high
    }

    /// The clipped ratio `w = clip(exp(lag), low, high)`; compares in log space, so that no lag overflows.
    pub fn weight(&self, lag: LagRatio) -> f64 {
        self.of_log(lag.log())
    }

    pub(crate) fn of_log(&self, log_ratio: f64) -> f64 {
        if log_ratio >= self.high.ln() { self.high } else { log_ratio.exp().max(self.low) }
    }

    /// True when the clip changes the ratio.
    pub fn is_active(&self, lag: LagRatio) -> bool {
        lag.log() > self.high.ln() || lag.log() < self.low.ln()
    }
}

impl Default for LagClip {
    /// `[0, 5]`: of the bounds 1.2, 2 and 5 the one with which DLC stayed within two noise floors of on-policy training with a stale
    /// sampler, an int8 one, and one that is both, on both sets of five seeds (`docs/experiment.md`).
    fn default() -> Self {
        Self { low: 0.0, high: 5.0 }
    }
}

/// What q is taken to be on the entries that are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TailModel {
    /// Proportional to p_s there: `q_v = (q_t / p_s,t) p_s,v`. Off the known entries q differs from p_s by the numeric term
    /// alone, so nothing is assumed of p_theta. Needs p_s on every entry.
    #[default]
    SamplerWeights,
    /// Proportional to p_theta there, which collapses the tail into the known entries, as score centring was published.
    Collapsed,
}

/// The correction of one training step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Rule {
    /// Plain policy gradient: `w = 1, c = 0`. What the stages `observe` and `fix` train with.
    Uncorrected,
    /// DLC in form A.
    Dlc {
        /// Bounds of the lag ratio.
        lag_clip: LagClip,
        /// Model of what is not known of q.
        tail: TailModel,
    },
    /// Another correction, by name, with its published constants.
    Method(Method),
}

impl Rule {
    /// DLC with its defaults: lag clipped to `[0, 5]`, tail on p_s.
    pub fn dlc() -> Self {
        Self::Dlc { lag_clip: LagClip::default(), tail: TailModel::default() }
    }

    /// True where p_s is needed on the entries of a support that are not known.
    pub fn dense_tail(&self) -> bool {
        match self {
            Self::Uncorrected => false,
            Self::Dlc { tail, .. } => *tail == TailModel::SamplerWeights,
            Self::Method(method) => method.dense_tail(),
        }
    }

    /// Bounds of the lag ratio, where the rule clips one.
    pub fn lag_clip(&self) -> Option<LagClip> {
        match self {
            Self::Uncorrected => None,
            Self::Dlc { lag_clip, .. } => Some(*lag_clip),
            Self::Method(method) => method.lag_clip(),
        }
    }
}
