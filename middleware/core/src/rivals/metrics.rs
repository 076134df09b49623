//! verl's diagnostics of a policy against the one that sampled, under verl's names (`rollout_corr/...`).
//!
//! The signs are verl's: `kl` is the mean of `log q - log p`.

use super::{
    batch::{Batch, Ratio, Token},
    bounds::Cap,
    importance::{LOG_CLAMP, Level, clamped_exp, mean},
};
use crate::dlc::{ess::clamped_effective_sample_size, statistics::k3};

/// Names and values.
pub type Metrics = Vec<(&'static str, f64)>;

/// `log p - log q` per token, by sequence; sequences without tokens are left out.
fn by_sequence(batch: &Batch, of: impl Fn(&Token) -> f64) -> Vec<Vec<f64>> {
    let rows = batch.per_sequence(|tokens| tokens.iter().map(&of).collect::<Vec<f64>>());
    rows.into_iter().filter(|row| !row.is_empty()).collect()
}

/// log p of the ratio's upper policy.
fn log_p(ratio: Ratio, token: &Token) -> f64 {
    match ratio {
        Ratio::Full | Ratio::Lag => token.log_theta,
        Ratio::Numeric => token.log_s,
    }
}

/// How far p is from the policy it is held against; `None` without tokens. With `l = log p - log q`:
///
/// ```text
/// training_ppl  mean_i exp(-mean_t log p)      training_log_ppl  mean_i -mean_t log p      rollout_*  the same of q
/// kl            mean_t -l                      k3_kl             mean_t exp(l) - 1 - l
/// log_ppl_diff  mean_i mean_t -l               ppl_ratio         mean_i exp(mean_t -l)
/// chi2_token    mean_t exp(2 l) - 1            chi2_seq          mean_i exp(2 clamp(sum_t l, -20, 20)) - 1
/// ```
pub fn off_policy(batch: &Batch, ratio: Ratio) -> Option<Metrics> {
    let logs = by_sequence(batch, |token| ratio.log(token));
    let of_p = by_sequence(batch, |token| log_p(ratio, token));
    let of_q = by_sequence(batch, |token| log_p(ratio, token) - ratio.log(token));
    let minus_means =
        |rows: &[Vec<f64>]| rows.iter().filter_map(|row| mean(row.iter().map(|x| -x))).collect::<Vec<f64>>();
    let (p, q, difference) = (minus_means(&of_p), minus_means(&of_q), minus_means(&logs));
    let over = |values: &[f64], of: fn(f64) -> f64| mean(values.iter().map(|&x| of(x)));
    let tokens: Vec<f64> = logs.concat();
    let sums: Vec<f64> = logs.iter().map(|row| row.iter().sum()).collect();
    Some(vec![
        ("rollout_corr/training_ppl", over(&p, f64::exp)?),
        ("rollout_corr/training_log_ppl", over(&p, |x| x)?),
        ("rollout_corr/kl", over(&tokens, |l| -l)?),
        ("rollout_corr/k3_kl", over(&tokens, k3)?),
        ("rollout_corr/rollout_ppl", over(&q, f64::exp)?),
        ("rollout_corr/rollout_log_ppl", over(&q, |x| x)?),
        ("rollout_corr/log_ppl_diff", over(&difference, |x| x)?),
        ("rollout_corr/log_ppl_abs_diff", over(&difference, f64::abs)?),
        ("rollout_corr/log_ppl_diff_max", difference.iter().copied().reduce(f64::max)?),
        ("rollout_corr/log_ppl_diff_min", difference.iter().copied().reduce(f64::min)?),
        ("rollout_corr/ppl_ratio", over(&difference, f64::exp)?),
        ("rollout_corr/chi2_token", over(&tokens, |l| (2.0 * l.clamp(-LOG_CLAMP, LOG_CLAMP)).exp_m1())?),
        ("rollout_corr/chi2_seq", over(&sums, |l| (2.0 * l.clamp(-LOG_CLAMP, LOG_CLAMP)).exp_m1())?),
    ])
}

/// What truncated weights look like; `None` without tokens. Means and extremes are of `min(r, C)`, fractions of r itself, the
/// deviation and the ESS of r clamped to `[1/C, C]`: that ESS is never below `4 / (C + 1/C)^2`.
pub fn importance_weights(batch: &Batch, ratio: Ratio, (level, cap): (Level, Cap)) -> Option<Metrics> {
    let logs = weight_logs(batch, ratio, level);
    let (tokens, c) = (logs.concat(), cap.value());
    let weights: Vec<f64> = tokens.iter().map(|&l| cap.truncate(clamped_exp(l))).collect();
    let sequences: Vec<f64> =
        logs.iter().filter_map(|row| mean(row.iter().map(|&l| cap.truncate(clamped_exp(l))))).collect();
    let share = |of: &dyn Fn(f64) -> bool| mean(tokens.iter().map(|&l| f64::from(u8::from(of(l)))));
    let raw: Vec<f64> = logs.iter().filter_map(|row| mean(row.iter().map(|&l| clamped_exp(l)))).collect();
    let of_sequences = |of: &dyn Fn(f64) -> bool| mean(raw.iter().map(|&r| f64::from(u8::from(of(r)))));
    let clamped: Vec<f64> = tokens.iter().map(|l| l.clamp(-c.ln(), c.ln()).exp()).collect();
    let largest = |values: &[f64]| values.iter().copied().reduce(f64::max);
    let smallest = |values: &[f64]| values.iter().copied().reduce(f64::min);
    let deviations: Vec<f64> = sequences.iter().map(|w| (w - 1.0).abs()).collect();
    Some(vec![
        ("rollout_corr/rollout_is_mean", mean(weights.iter().copied())?),
        ("rollout_corr/rollout_is_max", largest(&weights)?),
        ("rollout_corr/rollout_is_min", smallest(&weights)?),
        ("rollout_corr/rollout_is_std", deviation(&clamped, 0.0)?),
        ("rollout_corr/rollout_is_ratio_fraction_high", share(&|l| l > c.ln())?),
        ("rollout_corr/rollout_is_ratio_fraction_low", share(&|l| l < -c.ln())?),
        ("rollout_corr/rollout_is_eff_sample_size", clamped_effective_sample_size(&tokens, c)?),
        ("rollout_corr/rollout_is_seq_mean", mean(sequences.iter().copied())?),
        ("rollout_corr/rollout_is_seq_std", deviation(&sequences, 1.0)?),
        ("rollout_corr/rollout_is_seq_max", largest(&sequences)?),
        ("rollout_corr/rollout_is_seq_min", smallest(&sequences)?),
        ("rollout_corr/rollout_is_seq_max_deviation", largest(&deviations)?),
        ("rollout_corr/rollout_is_seq_fraction_high", of_sequences(&|r| r > c)?),
        ("rollout_corr/rollout_is_seq_fraction_low", of_sequences(&|r| r < 1.0 / c)?),
    ])
}

/// The log of each token's raw weight, by sequence: its own log ratio, or its sequence's sum.
fn weight_logs(batch: &Batch, ratio: Ratio, level: Level) -> Vec<Vec<f64>> {
    let mut logs = by_sequence(batch, |token| ratio.log(token));
    if level == Level::Sequence {
        for row in &mut logs {
            let sum: f64 = row.iter().sum();
            row.fill(sum);
        }
    }
    logs
}

/// Standard deviation with `n - freedom` under the root; 0 for one value, `None` for none.
fn deviation(values: &[f64], freedom: f64) -> Option<f64> {
    let mean = mean(values.iter().copied())?;
    let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
    let n = values.len() as f64 - freedom;
    Some(if values.len() > 1 { (squares / n).sqrt() } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::batch, *};

    fn value(metrics: &Metrics, name: &str) -> f64 {
        metrics.iter().find(|(known, _)| *known == name).unwrap().1
    }

    #[test]
    fn kl_has_verls_sign() {
        let metrics = off_policy(&batch(&[(&[-0.5, -0.5], 1.0)]), Ratio::Full).unwrap();
        assert_eq!(value(&metrics, "rollout_corr/kl"), 0.5);
        assert_eq!(value(&metrics, "rollout_corr/log_ppl_diff"), 0.5);
    }

    #[test]
    fn a_chi_square_of_sums_is_clamped_first() {
        let metrics = off_policy(&batch(&[(&[15.0, 15.0], 1.0)]), Ratio::Full).unwrap();
        assert_eq!(value(&metrics, "rollout_corr/chi2_seq"), 40f64.exp_m1());
    }

    #[test]
    fn a_weight_at_the_cap_is_not_above_it() {
        let one = batch(&[(&[0.0, 0.0], 1.0), (&[1.0], 1.0)]);
        let metrics = importance_weights(&one, Ratio::Full, (Level::Token, Cap::new(1.0).unwrap())).unwrap();
        assert_eq!(value(&metrics, "rollout_corr/rollout_is_max"), 1.0);
        assert!((value(&metrics, "rollout_corr/rollout_is_ratio_fraction_high") - 1.0 / 3.0).abs() < 1e-15);
        assert_eq!(value(&metrics, "rollout_corr/rollout_is_seq_fraction_high"), 0.5);
        let sequence = importance_weights(&one, Ratio::Full, (Level::Sequence, Cap::new(2.0).unwrap())).unwrap();
        assert_eq!(value(&sequence, "rollout_corr/rollout_is_seq_max_deviation"), 1.0);
    }

    #[test]
    fn nothing_is_no_metric() {
        assert_eq!(off_policy(&batch(&[]), Ratio::Full), None);
        assert_eq!(importance_weights(&batch(&[]), Ratio::Full, (Level::Token, Cap::NONE)), None);
    }
}
