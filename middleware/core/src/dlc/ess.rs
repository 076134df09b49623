//! Effective sample size of raw lag ratios, in log space. Sees no ratio after a clip.

use super::decompose::LagRatio;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The stretch of tokens over which the horizon level asks for half the effective samples.
pub const DEFAULT_HORIZON: u32 = 24;

/// What counts as one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum EssLevel {
    /// A token: `l = lag_t`.
    Token,
    /// An answer: `l_i = S_i = sum_t lag_it`. Falls with answer length at a given lag.
    Sequence,
    /// `l_i = S_i / sqrt(T_i)`.
    LengthNormalised,
    /// `l_i = S_i sqrt(min(1, H / T_i))`: the sequence level for answers up to H tokens, and no stricter beyond.
    Horizon {
        /// H, in tokens.
        tokens: u32,
    },
}

impl fmt::Display for EssLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Token => "token",
            Self::Sequence => "sequence",
            Self::LengthNormalised => "length_normalised",
            Self::Horizon { .. } => "horizon",
        })
    }
}

/// Normalised effective sample size of N log weights:
///
/// ```text
/// ess(w) = (sum w)^2 / (N sum w^2) = exp(2 LSE(l) - LSE(2 l) - log N)
/// ```
///
/// In `[1/N, 1]`; 0 when every weight is 0, `None` without weights.
pub fn effective_sample_size(log_weights: &[f64]) -> Option<f64> {
    let max = log_weights.iter().copied().reduce(f64::max)?;
    if max == f64::NEG_INFINITY {
        return Some(0.0);
    }
    let (sum, sum_of_squares) = log_weights.iter().fold((0.0, 0.0), |(sum, squares), l| {
        let w = (l - max).exp();
        (sum + w, squares + w * w)
    });
    Some(sum * sum / (log_weights.len() as f64 * sum_of_squares))
}

/// verl's `rollout_is_eff_sample_size`, for comparison: weights clamped to `[1/C, C]` first, and its guard of 1e-8 on the mean.
///
/// ```text
/// 1 / mean((w / (mean w + 1e-8))^2)  >=  4 / (C + 1/C)^2
/// ```
///
/// At `C = 2` it never falls below 0.64, so it cannot serve as a trigger at 0.5. `None` without weights.
pub fn clamped_effective_sample_size(log_weights: &[f64], c: f64) -> Option<f64> {
    let n = (!log_weights.is_empty()).then_some(log_weights.len() as f64)?;
    let weights = log_weights.iter().map(|l| l.clamp(-c.ln(), c.ln()).exp());
    let mean = weights.clone().sum::<f64>() / n + 1e-8;
    Some(n / weights.map(|w| (w / mean) * (w / mean)).sum::<f64>())
}

impl EssLevel {
    /// The log weights of this level; `lags` holds one list an answer. Answers without tokens carry no weight.
    pub fn log_weights(self, lags: &[Vec<LagRatio>]) -> Vec<f64> {
        let answers = lags.iter().filter(|answer| !answer.is_empty());
        let scaled = |scale: &dyn Fn(f64) -> f64| {
            let sum = |answer: &Vec<LagRatio>| answer.iter().map(|lag| lag.log()).sum::<f64>();
            answers.clone().map(|answer| sum(answer) * scale(answer.len() as f64)).collect()
        };
        match self {
            Self::Token => lags.iter().flatten().map(|lag| lag.log()).collect(),
            Self::Sequence => scaled(&|_| 1.0),
            Self::LengthNormalised => scaled(&|length| length.powf(-0.5)),
            Self::Horizon { tokens } => scaled(&|length| (f64::from(tokens) / length).min(1.0).sqrt()),
        }
    }

    /// ESS at this level; `None` without tokens.
    pub fn ess(self, lags: &[Vec<LagRatio>]) -> Option<f64> {
        effective_sample_size(&self.log_weights(lags))
    }
}

/// ESS of one batch at every level that may be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EssReport {
    /// Token level.
    pub token: f64,
    /// Sequence level.
    pub sequence: f64,
    /// Horizon level.
    pub horizon: f64,
    /// H of the horizon level, in tokens.
    pub horizon_tokens: u32,
    /// Answers behind it, N: no ESS can be below 1/N.
    pub sequences: usize,
    /// Tokens behind it.
    pub tokens: usize,
}

impl EssReport {
    /// ESS of a batch; `None` without tokens.
    pub fn of(lags: &[Vec<LagRatio>], horizon_tokens: u32) -> Option<Self> {
        Some(Self {
            token: EssLevel::Token.ess(lags)?,
            sequence: EssLevel::Sequence.ess(lags)?,
            horizon: EssLevel::Horizon { tokens: horizon_tokens }.ess(lags)?,
            horizon_tokens,
            sequences: lags.iter().filter(|answer| !answer.is_empty()).count(),
            tokens: lags.iter().map(Vec::len).sum(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_values() {
        let ess = |weights: &[f64]| effective_sample_size(&weights.iter().map(|w| w.ln()).collect::<Vec<_>>()).unwrap();
        assert_eq!(ess(&[1.0, 1.0, 1.0, 1.0]), 1.0);
        assert_eq!(ess(&[4.0, 0.0, 0.0, 0.0]), 0.25);
        assert!((ess(&[2.0, 1.0, 1.0, 0.0]) - 2.0 / 3.0).abs() < 1e-15);
        assert_eq!(ess(&[0.0, 0.0]), 0.0);
        assert_eq!(effective_sample_size(&[]), None);
    }

    proptest! {
        /// Clipping first hides what the ESS is for: at C = 2 no batch is ever below 0.64, whatever its ratios.
        #[test]
        fn a_clip_before_the_ess_never_falls_below_the_threshold(l in proptest::collection::vec(-900.0..900.0f64, 1..60)) {
            prop_assert!(clamped_effective_sample_size(&l, 2.0).unwrap() > 0.639);
        }

        /// In [1/N, 1] for any weights, however large; a common factor changes nothing.
        #[test]
        fn bounded_and_scale_free(l in proptest::collection::vec(-900.0..900.0f64, 1..40), shift in -500.0..500.0f64) {
            let ess = effective_sample_size(&l).unwrap();
            let n = l.len() as f64;
            prop_assert!(ess >= 1.0 / n * (1.0 - 1e-12) && ess <= 1.0 + 1e-12);
            let shifted: Vec<f64> = l.iter().map(|l| l + shift).collect();
            prop_assert!((effective_sample_size(&shifted).unwrap() - ess).abs() < 1e-9);
        }
    }
}
