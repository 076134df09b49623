//! What makes batches: plans, or one of the rules that today's trainers use instead.

use super::{Scenario, facts::Facts};
use lockstep_core::RolloutId;
use std::collections::{BTreeMap, BTreeSet};

/// What makes batches. Only the first is blind to length and reward.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Policy {
    /// Whole plans, in the order the state machine releases them.
    #[default]
    Planned,
    /// The answers that finish first, whatever plan they were dispatched with.
    FirstFinished,
    /// Plans, without the answers during which more than so many steps were made.
    DropByAge {
        /// The age that is still kept.
        steps: u64,
    },
    /// Plans, without the groups with a member during which more than so many steps were made.
    CancelGroups {
        /// The age that is still kept.
        steps: u64,
    },
    /// Plans, without the groups whose rewards are all the same.
    DropZeroVariance,
    /// Plans, without the groups whose shaped rewards, `reward + shaping * (1 - length / longest)`, are all the same.
    DropZeroVarianceShaped {
        /// Weight of the shaping.
        shaping: f64,
    },
    /// Groups without variance are dropped, and the next plans' groups move up to fill the batch.
    RefillZeroVariance,
    /// A plan is trained on when this share of it is there; the slowest answers are thrown away.
    EvictSlowest {
        /// The share.
        keep: f64,
    },
    /// Plans, but an answer that was broken off is sampled again from its first token although its tokens are there.
    ResampleFailures,
    /// Plans, but an answer that a sampler had taken up from its recorded tokens comes back empty when that sampler dies.
    EmptyPartials,
}

/// Batches in the making.
#[derive(Debug, Default)]
pub(super) struct Maker {
    pool: Vec<RolloutId>,
    arrived: BTreeMap<u64, Vec<RolloutId>>,
    closed: BTreeSet<u64>,
}

impl Policy {
    /// Whether the state machine alone says when a plan may be opened and trained on.
    pub(super) fn is_planned(self) -> bool {
        matches!(self, Self::Planned | Self::ResampleFailures | Self::EmptyPartials)
    }
}

impl Maker {
    /// An answer is there and judged.
    pub(super) fn ready(&mut self, scenario: &Scenario, rollout: RolloutId) -> Option<Vec<RolloutId>> {
        let size = scenario.planned() as usize;
        match scenario.policy {
            Policy::FirstFinished => {
                self.pool.push(rollout);
                (self.pool.len() >= size).then(|| self.pool.drain(..size).collect())
            }
            Policy::EvictSlowest { keep } => {
                let there = self.arrived.entry(rollout.plan).or_default();
                there.push(rollout);
                let enough = there.len() as f64 >= keep * size as f64;
                (enough && self.closed.insert(rollout.plan)).then(|| there.clone())
            }
            _ => None,
        }
    }

    /// A whole plan is there and judged.
    pub(super) fn released(&mut self, scenario: &Scenario, facts: &Facts, plan: u64) -> Option<Vec<RolloutId>> {
        let all: Vec<RolloutId> = (0..scenario.planned()).map(|index| RolloutId { plan, index }).collect();
        let reward = |rollout: RolloutId| facts.reward(rollout);
        match scenario.policy {
            Policy::FirstFinished | Policy::EvictSlowest { .. } => None,
            Policy::DropZeroVariance => Some(with_variance(scenario, &all, reward)),
            Policy::DropZeroVarianceShaped { shaping } => {
                let longest = f64::from(scenario.lengths.longest);
                let shaped = |rollout| reward(rollout) + shaping * (1.0 - f64::from(facts.tokens(rollout)) / longest);
                Some(with_variance(scenario, &all, shaped))
            }
            Policy::RefillZeroVariance => {
                self.pool.extend(with_variance(scenario, &all, reward));
                let size = all.len();
                (self.pool.len() >= size).then(|| self.pool.drain(..size).collect())
            }
            _ => Some(all),
        }
    }
}

fn with_variance(scenario: &Scenario, all: &[RolloutId], value: impl Fn(RolloutId) -> f64) -> Vec<RolloutId> {
    let groups = all.chunks(scenario.answers as usize);
    let kept = groups.filter(|group| group.iter().any(|&rollout| value(rollout) != value(group[0])));
    kept.flatten().copied().collect()
}

/// What is left of a batch when the trainer takes it up.
pub(super) fn taken_up(scenario: &Scenario, facts: &Facts, batch: Vec<RolloutId>) -> Vec<RolloutId> {
    let old = |rollout: RolloutId, steps: u64| facts.age(rollout) > steps;
    match scenario.policy {
        Policy::DropByAge { steps } => batch.into_iter().filter(|&rollout| !old(rollout, steps)).collect(),
        Policy::CancelGroups { steps } => {
            let groups = batch.chunks(scenario.answers as usize);
            let kept = groups.filter(|group| !group.iter().any(|&rollout| old(rollout, steps)));
            kept.flatten().copied().collect()
        }
        _ => batch,
    }
}
