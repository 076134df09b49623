//! Rank correlations of length and reward with everything that could have selected.
//!
//! Says what a selection would have done: in a sound run long answers arrive late too, only that nothing acts on it.

use super::{Account, RolloutFacts, distribution};
use lockstep_core::RolloutId;
use serde::Serialize;
use std::collections::BTreeMap;

/// Something a batch could have been chosen by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Selector {
    /// Place in the order of arrival, within the plan.
    Arrival,
    /// Steps between the weights of the first token and the step on it.
    Age,
    /// How often it was sampled from its first token.
    Attempts,
    /// Time from being sent to being complete.
    Wait,
    /// Whether it was trained on.
    Trained,
}

/// A rank correlation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Correlation {
    /// `length` or `reward`.
    pub of: &'static str,
    /// With what.
    pub with: Selector,
    /// Rollouts it is taken over.
    pub count: usize,
    /// Spearman's rank correlation, ties at their mean rank; none where one side is constant.
    pub rho: Option<f64>,
    /// Two-sided chance of one this large without any relation, times the number of tests (Bonferroni), at most 1.
    pub p: Option<f64>,
}

const SELECTORS: [Selector; 5] =
    [Selector::Arrival, Selector::Age, Selector::Attempts, Selector::Wait, Selector::Trained];

/// All of them, over the complete rollouts of the plans that training has reached.
pub(super) fn all(account: &Account) -> Vec<Correlation> {
    let before = account.batches.iter().map(|batch| (batch, batch.before.map(|before| before.step)));
    let trained_at: BTreeMap<RolloutId, Option<u64>> =
        before.flat_map(|(batch, step)| batch.trained.iter().map(move |(id, _)| (*id, step))).collect();
    let places = places(account);
    let value = |rollout: &RolloutFacts, with: Selector| match with {
        Selector::Arrival => places.get(&rollout.id).copied(),
        Selector::Age => {
            let first = rollout.first_version?.step;
            trained_at.get(&rollout.id).copied().flatten().map(|at| at as f64 - first as f64)
        }
        Selector::Attempts => Some(f64::from(rollout.attempts)),
        Selector::Wait => Some(rollout.arrived_at?.saturating_sub(rollout.sent_at?) as f64),
        Selector::Trained => Some(f64::from(u8::from(trained_at.contains_key(&rollout.id)))),
    };
    let reached = distribution::reached(account, &account.trained());
    let complete = account.rollouts.values().filter(|it| it.arrival.is_some() && reached.contains(&it.id.plan));
    let complete: Vec<&RolloutFacts> = complete.collect();
    let mut found = Vec::new();
    for of in ["length", "reward"] {
        for with in SELECTORS {
            let own =
                |rollout: &RolloutFacts| if of == "length" { Some(f64::from(rollout.tokens)) } else { rollout.reward };
            let pairs = complete.iter().filter_map(|rollout| Some((own(rollout)?, value(rollout, with)?)));
            found.push(correlation(of, with, &pairs.collect::<Vec<_>>()));
        }
    }
    let tests = found.iter().filter(|it| it.p.is_some()).count() as f64;
    found.iter_mut().for_each(|it| it.p = it.p.map(|p| (p * tests).min(1.0)));
    found
}

/// The place of every complete rollout in the order of arrival of its plan.
fn places(account: &Account) -> BTreeMap<RolloutId, f64> {
    let mut plans = BTreeMap::<u64, Vec<(u64, RolloutId)>>::new();
    for rollout in account.rollouts.values() {
        if let Some(arrival) = rollout.arrival {
            plans.entry(rollout.id.plan).or_default().push((arrival, rollout.id));
        }
    }
    plans.values_mut().for_each(|plan| plan.sort_unstable());
    plans.values().flat_map(|plan| plan.iter().zip(0..).map(|((_, id), place)| (*id, f64::from(place)))).collect()
}

fn correlation(of: &'static str, with: Selector, pairs: &[(f64, f64)]) -> Correlation {
    let (one, other): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let rho = pearson(&ranks(&one), &ranks(&other));
    let p = rho.map(|rho| two_sided(rho * (pairs.len() as f64 - 1.0).sqrt()));
    Correlation { of, with, count: pairs.len(), rho, p }
}

/// Ranks from 1; equal values share their mean rank.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&one, &other| values[one].total_cmp(&values[other]));
    let mut ranks = vec![0.0; values.len()];
    let mut rank = 0.0;
    for tied in order.chunk_by(|&one, &other| values[one] == values[other]) {
        let mean = rank + (tied.len() as f64 + 1.0) / 2.0;
        tied.iter().for_each(|&at| ranks[at] = mean);
        rank += tied.len() as f64;
    }
    ranks
}

fn pearson(one: &[f64], other: &[f64]) -> Option<f64> {
    let count = one.len() as f64;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / count;
    let (a, b) = (mean(one), mean(other));
    let moment =
        |x: &[f64], x0: f64, y: &[f64], y0: f64| -> f64 { x.iter().zip(y).map(|(x, y)| (x - x0) * (y - y0)).sum() };
    let spread = (moment(one, a, one, a) * moment(other, b, other, b)).sqrt();
    (one.len() > 2 && spread > 0.0).then(|| moment(one, a, other, b) / spread)
}

/// Chance that a standard normal number is at least this far from 0. The rational approximation of erfc of Abramowitz and
/// Stegun 7.1.26, within 1.5e-7.
fn two_sided(z: f64) -> f64 {
    let x = z.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let poly =
        t * (0.254_829_592 + t * (-0.284_496_736 + t * (1.421_413_741 + t * (-1.453_152_027 + t * 1.061_405_429))));
    (poly * (-x * x).exp()).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_correlations_of_known_rows() {
        let pairs = |values: &[(f64, f64)]| correlation("length", Selector::Wait, values);
        let rising = pairs(&[(1.0, 10.0), (2.0, 11.0), (3.0, 40.0), (4.0, 41.0)]);
        assert_eq!(rising.rho, Some(1.0));
        let tied = pairs(&[(1.0, 1.0), (1.0, 2.0), (2.0, 3.0), (3.0, 4.0)]);
        // ranks 1.5, 1.5, 3, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5)
        assert!((tied.rho.unwrap() - 0.948_683_298).abs() < 1e-9);
        assert_eq!(pairs(&[(1.0, 5.0), (2.0, 5.0), (3.0, 5.0)]).rho, None, "a constant has no ranks");
    }

    #[test]
    fn the_normal_tail_is_right_within_its_bound() {
        for (z, p) in [(0.0, 1.0), (1.0, 0.317_310_508), (1.959_963_985, 0.05), (3.290_526_731, 0.001)] {
            assert!((two_sided(z) - p).abs() < 2e-7, "{z}: {}", two_sided(z));
        }
    }
}
