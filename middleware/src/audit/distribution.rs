//! What was generated beside what was trained on: a value's distribution over the complete rollouts, twice.

use super::{Account, RolloutFacts};
use lockstep_core::RolloutId;
use serde::Serialize;
use std::collections::BTreeSet;

/// A distribution in a few numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Distribution {
    /// Number of values.
    pub count: usize,
    /// Mean.
    pub mean: f64,
    /// Half of the values are at most this.
    pub median: f64,
    /// Nine tenths of the values are at most this.
    pub p90: f64,
    /// The largest.
    pub max: f64,
}

/// The same value of what was generated and of what was trained on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Comparison {
    /// Of every complete rollout of the plans that training has reached.
    pub generated: Option<Distribution>,
    /// Of every rollout trained on.
    pub trained: Option<Distribution>,
    /// Largest difference of the two cumulative distributions (Kolmogorov-Smirnov); 0 when they are equal.
    pub distance: f64,
    /// Whether the two have the same values, each as often.
    pub equal: bool,
}

impl Comparison {
    /// Whether the two have the same values, each as often.
    pub fn is_equal(&self) -> bool {
        self.equal
    }
}

/// Compares a value of what was generated with that of what was trained on. Plans that may still be trained on by the rules
/// of dispatch, and rollouts that are not complete, are in neither.
pub(super) fn compare(account: &Account, value: impl Fn(&RolloutFacts) -> Option<f64>) -> Comparison {
    let trained_ids = account.trained();
    let reached = reached(account, &trained_ids);
    let generated = account.rollouts.values().filter(|it| reached.contains(&it.id.plan) && it.arrival.is_some());
    let generated = sorted(generated.filter_map(&value));
    let batches = account.batches.iter().flat_map(|batch| &batch.trained);
    let trained = sorted(batches.filter_map(|(id, _)| account.rollouts.get(id)).filter_map(&value));
    let (equal, distance) = (generated == trained, distance(&generated, &trained));
    Comparison { generated: summary(&generated), trained: summary(&trained), distance, equal }
}

/// Plans of which anything was trained on, and those that were passed over for good.
pub(super) fn reached(account: &Account, trained: &BTreeSet<RolloutId>) -> BTreeSet<u64> {
    let touched: BTreeSet<u64> = trained.iter().map(|id| id.plan).collect();
    let newest = touched.last().copied().unwrap_or(0);
    let window = account.batches.last().map_or(1, |batch| batch.window);
    let passed = account.plans.iter().map(|plan| plan.plan).filter(|plan| plan + window <= newest);
    passed.chain(touched.iter().copied()).collect()
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn summary(values: &[f64]) -> Option<Distribution> {
    let max = *values.last()?;
    let at = |share: f64| values[((values.len() as f64 * share).ceil() as usize).clamp(1, values.len()) - 1];
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    Some(Distribution { count: values.len(), mean, median: at(0.5), p90: at(0.9), max })
}

fn distance(one: &[f64], other: &[f64]) -> f64 {
    if one.is_empty() || other.is_empty() {
        return if one.len() == other.len() { 0.0 } else { 1.0 };
    }
    let share = |values: &[f64], at: f64| values.partition_point(|value| *value <= at) as f64 / values.len() as f64;
    one.iter().chain(other).map(|&at| (share(one, at) - share(other, at)).abs()).fold(0.0, f64::max)
}
