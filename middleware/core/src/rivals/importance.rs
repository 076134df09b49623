//! Policy gradient and importance weights: no sequence is dropped, a token's weight may be cut or zeroed.

use super::{
    batch::{Batch, PerToken, Ratio},
    bounds::{Band, Cap},
    selects::Weights,
};

/// verl's bound on a log ratio before it is exponentiated (`SAFETY_BOUND`).
pub const LOG_CLAMP: f64 = 20.0;

/// `exp(clamp(l, -20, 20))`.
pub fn clamped_exp(log_ratio: f64) -> f64 {
    log_ratio.clamp(-LOG_CLAMP, LOG_CLAMP).exp()
}

/// What one weight covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// A token: `exp(clamp(l_t))`.
    Token,
    /// A sequence: `exp(clamp(sum_t l_t))` on each of its tokens.
    Sequence,
}

/// REINFORCE (Williams 1992): `w = 1`.
pub fn policy_gradient(batch: &Batch) -> Weights {
    Weights { w: batch.map(|_| 1.0) }
}

/// Importance sampling (verl `rollout_is`, threshold infinite): `w = exp(clamp(l, -20, 20))`, at either level.
pub fn importance(batch: &Batch, ratio: Ratio, level: Level) -> Weights {
    truncated(batch, ratio, (level, Cap::NONE))
}

/// Truncated importance sampling (verl `rollout_is`, C = 2): `w = min(exp(clamp(l, -20, 20)), C)`.
pub fn truncated(batch: &Batch, ratio: Ratio, (level, cap): (Level, Cap)) -> Weights {
    Weights { w: map(raw(batch, ratio, level), |r| cap.truncate(r)) }
}

/// IcePop, or masked importance sampling, of tokens: `w = r 1[low <= r <= high]`, with no denominator renormalised. Whole
/// sequences are masked by [`super::rejection`] and [`super::trl`], whose type says so.
///
/// Bands in use: 0.5 to 2 (vime's IcePop), 0.5 to 5 (MIS), 0.2 to 5 (prime-rl).
pub fn masked(batch: &Batch, ratio: Ratio, band: Band) -> Weights {
    Weights { w: map(raw(batch, ratio, Level::Token), |r| band.mask(r)) }
}

/// verl's `rollout_is_batch_normalize`: weights divided by their mean, over tokens or over sequences, unless it is <= 1e-8.
/// Returns the divisor as well; it changes with the batch, so a token's weight depends on its neighbours.
pub fn normalised(weights: Weights, batch: &Batch, level: Level) -> (Weights, f64) {
    let rows = weights.w.iter().zip(batch.sequences());
    let counted = rows.map(|(w, tokens)| w.iter().zip(tokens).filter(|(_, t)| t.is_some()).map(|(w, _)| *w).collect());
    let counted: Vec<Vec<f64>> = counted.collect();
    let mean = match level {
        Level::Token => mean(counted.into_iter().flatten()),
        Level::Sequence => mean(counted.into_iter().filter_map(|w| mean(w.into_iter()))),
    };
    let factor = mean.filter(|mean| *mean > 1e-8).unwrap_or(1.0);
    (Weights { w: map(weights.w, |w| w / factor) }, factor)
}

/// The clamped ratios before any cut.
pub(crate) fn raw(batch: &Batch, ratio: Ratio, level: Level) -> PerToken<f64> {
    match level {
        Level::Token => batch.map(|token| clamped_exp(ratio.log(token))),
        Level::Sequence => batch.broadcast(|tokens| clamped_exp(tokens.iter().map(|t| ratio.log(t)).sum())),
    }
}

pub(crate) fn map(values: PerToken<f64>, of: impl Fn(f64) -> f64) -> PerToken<f64> {
    values.into_iter().map(|row| row.into_iter().map(&of).collect()).collect()
}

pub(crate) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / count as f64)
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::batch, *};

    #[test]
    fn a_log_ratio_is_clamped_at_20_at_both_levels() {
        let lags = batch(&[(&[25.0, -30.0], 1.0), (&[15.0, 15.0], 1.0)]);
        let token = importance(&lags, Ratio::Full, Level::Token).w;
        assert_eq!(token, [[20f64.exp(), (-20f64).exp()], [15f64.exp(), 15f64.exp()]]);
        assert_eq!(importance(&lags, Ratio::Full, Level::Sequence).w[1], [20f64.exp(); 2]);
    }

    #[test]
    fn a_mean_is_taken_over_tokens_or_over_sequences() {
        let two = batch(&[(&[0.0, 0.0, 0.0], 1.0), (&[3f64.ln()], 1.0)]);
        let weights = || importance(&two, Ratio::Full, Level::Token);
        assert!((normalised(weights(), &two, Level::Token).1 - 1.5).abs() < 1e-12);
        assert!((normalised(weights(), &two, Level::Sequence).1 - 2.0).abs() < 1e-12);
    }

    #[test]
    fn a_mean_of_zero_divides_nothing() {
        let one = batch(&[(&[3.0], 1.0)]);
        let weights = masked(&one, Ratio::Full, Band::new(0.5, 2.0).unwrap());
        assert_eq!(normalised(weights, &one, Level::Token), (Weights { w: vec![vec![0.0]] }, 1.0));
    }
}
