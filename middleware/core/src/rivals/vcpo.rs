//! Variance-controlled policy optimisation (VCPO, arXiv 2602.17616): a learning rate that follows the effective sample size,
//! and a baseline of least variance under off-policy weights.
//!
//! The recipe around it: PPO's clip off (1 - 1, 1 + 1e9), sequence-level truncation at C = 8, seq-mean-token-mean.

use super::{
    batch::{Batch, Ratio},
    reduction::Reduction,
};

/// Added to denominators by the published code; 0 gives the formulas as written.
pub const GUARD: f64 = 1e-8;

/// Reduction of the recipe.
pub const REDUCTION: Reduction = Reduction::SeqMeanTokenMean;

/// `l_i = sum_t log r_it`, unclipped; sequences without tokens carry no weight.
pub fn log_weights(batch: &Batch, ratio: Ratio) -> Vec<f64> {
    let sums = batch
        .per_sequence(|tokens| (!tokens.is_empty()).then(|| tokens.iter().map(|token| ratio.log(token)).sum::<f64>()));
    sums.into_iter().flatten().collect()
}

/// `ESS = (sum w)^2 / (sum w^2 + guard)`, of which the rate is `ESS / B`. The largest weight is 1 where a guard of 0 makes the
/// scale immaterial. `None` without weights.
pub fn ess(log_weights: &[f64], guard: f64) -> Option<f64> {
    let max = log_weights.iter().copied().reduce(f64::max)?;
    let shift = if guard == 0.0 { max } else { 0.0 };
    let weights = log_weights.iter().map(|l| (l - shift).exp());
    let (sum, squares) = weights.fold((0.0, 0.0), |(sum, squares), w| (sum + w, squares + w * w));
    Some(sum * sum / (squares + guard))
}

/// How the learning rate follows `rho = ESS / B`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateRule {
    /// `sqrt(min(1, rho / rho_base))`, for AdamW.
    Sqrt,
    /// `min(1, rho / rho_base)`.
    Linear,
}

impl RateRule {
    /// The factor of the learning rate for one step; the rate is restored after it.
    pub fn scale(self, rho: f64, rho_base: f64) -> f64 {
        let share = (rho / rho_base).min(1.0);
        match self {
            Self::Sqrt => share.sqrt(),
            Self::Linear => share,
        }
    }
}

/// One answer as the baseline sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trajectory {
    /// Log of its sequence weight.
    pub log_weight: f64,
    /// `||grad log pi(tau)||`.
    pub gradient_norm: f64,
    /// R.
    pub reward: f64,
}

/// Off-policy optimal baseline of a group:
///
/// ```text
/// b = sum w_i^2 g_i^2 R_i / (sum w_i^2 g_i^2 + guard)
/// ```
///
/// `None` where no answer has a weight and a gradient.
pub fn baseline(group: &[Trajectory], guard: f64) -> Option<f64> {
    let weight = |t: &Trajectory| (2.0 * t.log_weight).exp() * t.gradient_norm * t.gradient_norm;
    let of_rewards: f64 = group.iter().map(|t| weight(t) * t.reward).sum();
    let sum = group.iter().map(weight).sum::<f64>() + guard;
    (sum > 0.0).then(|| of_rewards / sum)
}

/// `(R - b) / std`, with n - 1 under the root, where the deviation exceeds 1e-8; `R - b` where not, or unasked.
pub fn advantages(rewards: &[f64], baseline: f64, scale: Scaling) -> Vec<f64> {
    let n = rewards.len() as f64;
    let mean = rewards.iter().sum::<f64>() / n;
    let deviation = (rewards.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
    let divisor = if scale == Scaling::Deviation && deviation > 1e-8 { deviation } else { 1.0 };
    rewards.iter().map(|reward| (reward - baseline) / divisor).collect()
}

/// Whether advantages are divided by the deviation of the rewards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scaling {
    /// They are.
    Deviation,
    /// They are not.
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_never_rises() {
        assert_eq!(RateRule::Sqrt.scale(0.9, 0.5), 1.0);
        assert_eq!((RateRule::Sqrt.scale(0.25, 1.0), RateRule::Linear.scale(0.25, 1.0)), (0.5, 0.25));
    }

    #[test]
    fn equal_weights_leave_the_mean_by_squared_gradient() {
        let answer = |gradient_norm, reward| Trajectory { log_weight: 0.3, gradient_norm, reward };
        let baseline = baseline(&[answer(1.0, 1.0), answer(3.0, 0.0)], 0.0).unwrap();
        assert!((baseline - 0.1).abs() < 1e-15);
    }

    #[test]
    fn the_guard_is_the_codes_not_the_formulas() {
        assert_eq!(ess(&[0.0, 0.0], 0.0), Some(2.0));
        assert!(ess(&[0.0, 0.0], GUARD).unwrap() < 2.0);
        assert_eq!(ess(&[800.0, 800.0], 0.0), Some(2.0));
        assert_eq!((ess(&[], GUARD), baseline(&[], 0.0)), (None, None));
    }

    #[test]
    fn equal_rewards_are_not_scaled() {
        assert_eq!(advantages(&[1.0, 1.0], 0.5, Scaling::Deviation), [0.5, 0.5]);
        assert_eq!(advantages(&[7.0], 0.5, Scaling::Deviation), [6.5]);
    }
}
