//! Lag and numeric discrepancy of a batch, apart. Accumulated in f64.

use super::{
    decompose::{Discrepancy, LagRatio},
    ess::EssLevel,
    pareto::pareto_k,
    weigh::Position,
};
use serde::{Deserialize, Serialize};

/// Summary of one of the two terms, over tokens; nats.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct TermStatistics {
    /// Mean log ratio of the drawn tokens, signed; `k1` is its negative.
    pub mean: f64,
    /// Mean absolute log ratio.
    pub mean_abs: f64,
    /// Mean of `k2 = (log r)^2 / 2`.
    pub k2: f64,
    /// Mean of `k3 = r - 1 - log r` with `log r` the term's log ratio.
    pub k3: f64,
    /// `mean r^2 - 1`: the chi-square divergence, as far as the drawn tokens show it.
    pub chi2: f64,
    /// Largest absolute log ratio.
    pub max_abs: f64,
    /// Mean over positions of the exact KL over the recorded support: `KL(q || p_s)` of the numeric term,
    /// `KL(p_s || p_theta)` of the lag, `KL(q || p_theta)` of both; what a support does not know counts as one entry.
    pub kl: f64,
}

impl TermStatistics {
    /// Mean of `k1 = -log r`.
    pub fn k1(&self) -> f64 {
        -self.mean
    }
}

/// `k3 = exp(x) - 1 - x`, by its series where the difference would cancel.
pub fn k3(x: f64) -> f64 {
    if x.abs() < 1e-3 { x * x / 2.0 * (1.0 + x / 3.0 * (1.0 + x / 4.0 * (1.0 + x / 5.0))) } else { x.exp_m1() - x }
}

/// Both terms of the positions seen so far.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Statistics {
    tokens: usize,
    clipped: usize,
    entries: usize,
    lag: TermStatistics,
    numeric: TermStatistics,
    full: TermStatistics,
    known_mass: f64,
}

/// What a batch showed.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct TermReport {
    /// The lag.
    pub lag: TermStatistics,
    /// The numeric discrepancy.
    pub numeric: TermStatistics,
    /// Their sum, `log p_theta - log q`: the ordinary KL on the sampler's own prefixes.
    pub full: TermStatistics,
    /// Mean mass of q on the entries that are known: 1 where supports are exact.
    pub head_mass: f64,
    /// What the lag's distribution looks like.
    pub shape: RatioShape,
    /// Share of the drawn tokens whose lag ratio a clip changed.
    pub clipped_share: f64,
    /// Mean number of ids in a support.
    pub support_size: f64,
    /// Tokens seen.
    pub tokens: usize,
}

/// The distribution of the raw lag ratio beyond its ESS, and of the numeric one.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct RatioShape {
    /// Variance of the answers' log ratios at the horizon level: a Gaussian lag has an ESS of `exp(-variance)` there.
    pub lag_variance: f64,
    /// Pareto-k of the answers' ratios at the horizon level; `None` without a tail to fit.
    pub lag_pareto_k: Option<f64>,
    /// Pareto-k of the tokens' `p_s / q`; `None` without a tail to fit.
    pub numeric_pareto_k: Option<f64>,
}

impl RatioShape {
    /// Shapes of the lags of answers and of the numeric terms of tokens.
    pub fn of(lags: &[Vec<LagRatio>], numeric: &[Discrepancy], horizon_tokens: u32) -> Self {
        let answers = EssLevel::Horizon { tokens: horizon_tokens }.log_weights(lags);
        let n = answers.len().max(1) as f64;
        let mean = answers.iter().sum::<f64>() / n;
        let numeric: Vec<f64> = numeric.iter().map(|numeric| numeric.log()).collect();
        Self {
            lag_variance: answers.iter().map(|l| (l - mean) * (l - mean)).sum::<f64>() / n,
            lag_pareto_k: pareto_k(&answers),
            numeric_pareto_k: pareto_k(&numeric),
        }
    }
}

impl TermReport {
    /// Names that others give to some of these. verl's are those of its decoupled mode, where `rollout_corr` holds p_s
    /// against q; its `kl` is the mean of `log q - log p_s`, its `ppo_kl` that of `log p_s - log p_theta`.
    pub fn aliases(&self) -> [(&'static str, f64); 7] {
        let Self { lag, numeric, .. } = self;
        [
            ("rollout_corr/kl", numeric.k1()),
            ("rollout_corr/k3_kl", numeric.k3),
            ("rollout_corr/chi2_token", numeric.chi2),
            ("actor/ppo_kl", lag.k1()),
            ("actor/pg_clipfrac", self.clipped_share),
            ("sampling/sampling_logp_difference/mean", numeric.mean_abs),
            ("sampling/sampling_logp_difference/max", numeric.max_abs),
        ]
    }
}

impl Statistics {
    /// Adds a position with its two terms.
    pub fn push(&mut self, position: &Position<'_>, lag: LagRatio, numeric: Discrepancy) {
        let log_q = (position.support.log_q(), position.support.log_rest());
        let log_s = (&position.log_s.log_p[..], position.log_s.log_rest);
        let log_theta = (&position.log_theta.log_p[..], position.log_theta.log_rest);
        add(&mut self.lag, lag.log(), exact_kl(log_s, log_theta));
        add(&mut self.numeric, numeric.log(), exact_kl(log_q, log_s));
        add(&mut self.full, lag.log() + numeric.log(), exact_kl(log_q, log_theta));
        self.known_mass += position.support.log_q().iter().map(|log_q| log_q.exp()).sum::<f64>();
        self.tokens += 1;
        self.entries += position.support.ids().len();
    }

    /// Counts a token whose lag ratio was clipped.
    pub fn count_clipped(&mut self) {
        self.clipped += 1;
    }

    /// The means over what was seen; zeros when nothing was. The shape is for whoever holds all ratios to fill in.
    pub fn report(&self) -> TermReport {
        let n = self.tokens.max(1) as f64;
        let mean = |sums: TermStatistics| TermStatistics {
            mean: sums.mean / n,
            mean_abs: sums.mean_abs / n,
            k2: sums.k2 / n,
            k3: sums.k3 / n,
            chi2: sums.chi2 / n,
            max_abs: sums.max_abs,
            kl: sums.kl / n,
        };
        TermReport {
            lag: mean(self.lag),
            numeric: mean(self.numeric),
            full: mean(self.full),
            head_mass: self.known_mass / n,
            shape: RatioShape::default(),
            clipped_share: self.clipped as f64 / n,
            support_size: self.entries as f64 / n,
            tokens: self.tokens,
        }
    }
}

fn add(sums: &mut TermStatistics, log_ratio: f64, kl: f64) {
    sums.mean += log_ratio;
    sums.mean_abs += log_ratio.abs();
    sums.k2 += log_ratio * log_ratio / 2.0;
    sums.k3 += k3(log_ratio);
    sums.chi2 += (2.0 * log_ratio).exp_m1();
    sums.max_abs = sums.max_abs.max(log_ratio.abs());
    sums.kl += kl;
}

/// `KL(a || b) = sum_v a_v k3(log b_v - log a_v)` over the known entries and the rest as one.
///
/// Equal to `sum_v a_v (log a_v - log b_v)` where both are normalised, and never below 0 where rounding has moved their sums.
pub fn exact_kl(a: (&[f64], Option<f64>), b: (&[f64], Option<f64>)) -> f64 {
    let rest = a.1.zip(b.1);
    let entries = a.0.iter().copied().zip(b.0.iter().copied()).chain(rest);
    entries.map(|(log_a, log_b)| log_a.exp() * k3(log_b - log_a)).sum()
}

#[cfg(test)]
mod tests {
    use super::k3;

    #[test]
    fn k3_is_accurate_where_the_difference_cancels() {
        for x in [1e-8, -1e-6, 5e-4, -9.9e-4, 1.01e-3, 0.3f64] {
            let exact = x * x / 2.0 + x.powi(3) / 6.0 + x.powi(4) / 24.0 + x.powi(5) / 120.0 + x.powi(6) / 720.0;
            assert!((k3(x) - exact).abs() <= 1e-6 * exact, "{x}");
        }
    }
}
