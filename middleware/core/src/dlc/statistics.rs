//! Lag and numeric discrepancy of a batch, apart. Accumulated in f64.

use super::{
    decompose::{Discrepancy, LagRatio},
    weigh::Position,
};
use serde::{Deserialize, Serialize};

/// Summary of one of the two terms, over tokens; nats.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct TermStatistics {
    /// Mean log ratio of the drawn tokens, signed.
    pub mean: f64,
    /// Mean of `k3 = r - 1 - log r` with `log r` the term's log ratio.
    pub k3: f64,
    /// Largest absolute log ratio.
    pub max_abs: f64,
    /// Mean over positions of the exact KL over the recorded support: `KL(q || p_s)` of the numeric term,
    /// `KL(p_s || p_theta)` of the lag; what a support does not know counts as one entry.
    pub kl: f64,
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
}

/// What a batch showed.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct TermReport {
    /// The lag.
    pub lag: TermStatistics,
    /// The numeric discrepancy.
    pub numeric: TermStatistics,
    /// Share of the drawn tokens whose lag ratio a clip changed.
    pub clipped_share: f64,
    /// Mean number of ids in a support.
    pub support_size: f64,
    /// Tokens seen.
    pub tokens: usize,
}

impl Statistics {
    /// Adds a position with its two terms.
    pub fn push(&mut self, position: &Position<'_>, lag: LagRatio, numeric: Discrepancy) {
        let log_q = (position.support.log_q(), position.support.log_rest());
        let log_s = (&position.log_s.log_p[..], position.log_s.log_rest);
        let log_theta = (&position.log_theta.log_p[..], position.log_theta.log_rest);
        add(&mut self.lag, lag.log(), exact_kl(log_s, log_theta));
        add(&mut self.numeric, numeric.log(), exact_kl(log_q, log_s));
        self.tokens += 1;
        self.entries += position.support.ids().len();
    }

    /// Counts a token whose lag ratio was clipped.
    pub fn count_clipped(&mut self) {
        self.clipped += 1;
    }

    /// The means over what was seen; zeros when nothing was.
    pub fn report(&self) -> TermReport {
        let n = self.tokens.max(1) as f64;
        let mean = |sums: TermStatistics| TermStatistics {
            mean: sums.mean / n,
            k3: sums.k3 / n,
            max_abs: sums.max_abs,
            kl: sums.kl / n,
        };
        TermReport {
            lag: mean(self.lag),
            numeric: mean(self.numeric),
            clipped_share: self.clipped as f64 / n,
            support_size: self.entries as f64 / n,
            tokens: self.tokens,
        }
    }
}

fn add(sums: &mut TermStatistics, log_ratio: f64, kl: f64) {
    sums.mean += log_ratio;
    sums.k3 += k3(log_ratio);
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
