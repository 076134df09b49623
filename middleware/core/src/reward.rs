//! Where reward enters, for the first time: after the batch is complete.

use crate::{
    plan::{Batch, PlanError},
    rollout::Rollout,
    token::RolloutId,
};
use std::{collections::BTreeMap, ops::Range};

/// A reward that cannot be joined.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RewardError {
    /// No number.
    #[error("reward {reward} of rollout {rollout} is not a finite number")]
    NotFinite {
        /// The rollout.
        rollout: RolloutId,
        /// Its reward.
        reward: f64,
    },
    /// A second, different reward.
    #[error("rollout {rollout} has reward {first} already, and now {second}")]
    Contradicts {
        /// The rollout.
        rollout: RolloutId,
        /// The first reward.
        first: f64,
        /// The second.
        second: f64,
    },
    /// A rollout without reward.
    #[error("{missing} of {rollouts} rollouts have no reward, the first is {first}")]
    Missing {
        /// How many.
        missing: usize,
        /// Size of the batch.
        rollouts: usize,
        /// The first of them.
        first: RolloutId,
    },
}

/// How judging a rollout came out. A failure is an outcome too, and the rollout keeps its place.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It has this reward.
    Reward(f64),
    /// The environment or the reward broke or ran out of time. What it counts as was fixed before the run.
    Failed {
        /// What happened.
        reason: String,
        /// The reward it counts as.
        counts_as: f64,
    },
}

impl Outcome {
    /// The reward, or what the failure counts as.
    pub fn reward(&self) -> f64 {
        match self {
            Self::Reward(reward) | Self::Failed { counts_as: reward, .. } => *reward,
        }
    }
}

/// Rewards that wait for their batch. Only a sealed batch opens it.
#[derive(Debug, Default)]
pub struct RewardBook {
    rewards: BTreeMap<RolloutId, f64>,
}

impl RewardBook {
    /// Notes an outcome, as [`RewardBook::post`] does.
    ///
    /// # Errors
    /// As [`RewardBook::post`].
    pub fn record(&mut self, rollout: RolloutId, outcome: &Outcome) -> Result<(), RewardError> {
        self.post(rollout, outcome.reward())
    }

    /// The rewards there are of a sealed batch, in dispatch order; the book keeps them.
    pub fn of(&self, batch: &Batch) -> Vec<Option<f64>> {
        batch.rollouts().iter().map(|rollout| self.rewards.get(&rollout.id()).copied()).collect()
    }

    /// Whether a rollout's outcome is noted.
    pub fn has(&self, rollout: RolloutId) -> bool {
        self.rewards.contains_key(&rollout)
    }

    /// Notes the reward of a rollout; the same reward again changes nothing.
    ///
    /// # Errors
    /// A reward that is not finite, or that contradicts an earlier one.
    pub fn post(&mut self, rollout: RolloutId, reward: f64) -> Result<(), RewardError> {
        if !reward.is_finite() {
            return Err(RewardError::NotFinite { rollout, reward });
        }
        let first = *self.rewards.entry(rollout).or_insert(reward);
        if first != reward {
            return Err(RewardError::Contradicts { rollout, first, second: reward });
        }
        Ok(())
    }
}

impl Batch {
    /// Joins the rewards.
    ///
    /// # Errors
    /// A rollout without reward; the book is left as it was.
    pub fn with_rewards(self, book: &mut RewardBook) -> Result<ScoredBatch, RewardError> {
        let ids: Vec<RolloutId> = self.rollouts().iter().map(Rollout::id).collect();
        let missing: Vec<RolloutId> = ids.iter().copied().filter(|id| !book.rewards.contains_key(id)).collect();
        if let Some(&first) = missing.first() {
            return Err(RewardError::Missing { missing: missing.len(), rollouts: ids.len(), first });
        }
        let rewards = ids.iter().filter_map(|id| book.rewards.remove(id)).collect();
        Ok(ScoredBatch { batch: self, rewards })
    }
}

/// A complete batch with its rewards; the only road here leads through [`Batch`].
#[derive(Debug, Clone, PartialEq)]
pub struct ScoredBatch {
    batch: Batch,
    rewards: Vec<f64>,
}

impl ScoredBatch {
    /// The batch.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// One reward a rollout, in dispatch order.
    pub fn rewards(&self) -> &[f64] {
        &self.rewards
    }

    /// The batch in parts for data-parallel ranks, as [`Batch::shards`] cuts it: whole groups, so that every advantage is what
    /// it is in the whole batch.
    ///
    /// # Errors
    /// More ranks than groups, or none.
    pub fn shards(&self, ranks: u32) -> Result<Vec<Self>, PlanError> {
        let part =
            |range: Range<usize>| Self { batch: self.batch.part(range.clone()), rewards: self.rewards[range].to_vec() };
        Ok(self.batch.shards(ranks)?.into_iter().map(part).collect())
    }

    /// Mean reward.
    pub fn mean_reward(&self) -> f64 {
        self.rewards.iter().sum::<f64>() / self.rewards.len() as f64
    }

    /// Group-relative advantages, one a rollout: `A_i = R_i - mean(R of i's group)`; a group without variance gets exactly 0.
    ///
    /// Not divided by the standard deviation (Dr. GRPO, arXiv 2503.20783).
    pub fn advantages(&self) -> Vec<f64> {
        let mut groups = BTreeMap::<u32, (f64, f64)>::new();
        let rewards = self.batch.rollouts().iter().zip(&self.rewards);
        for (rollout, reward) in rewards.clone() {
            let (sum, count) = groups.entry(rollout.group()).or_default();
            *sum += reward;
            *count += 1.0;
        }
        let mean = |group| groups.get(&group).map_or(0.0, |(sum, count)| sum / count);
        rewards.map(|(rollout, reward)| reward - mean(rollout.group())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::{answer, plan};

    fn sealed() -> Batch {
        let mut plan = plan(2, 2);
        for request in plan.requests().to_vec() {
            plan.arrive(answer(&request, &[4])).unwrap();
        }
        plan.seal().unwrap()
    }

    fn id(index: u32) -> RolloutId {
        RolloutId { plan: 0, index }
    }

    #[test]
    fn advantages_are_relative_to_the_group() {
        let mut book = RewardBook::default();
        [1.0, 0.0, 1.0, 1.0].iter().zip(0..).for_each(|(&reward, index)| book.post(id(index), reward).unwrap());
        let scored = sealed().with_rewards(&mut book).unwrap();
        assert_eq!(scored.advantages(), [0.5, -0.5, 0.0, 0.0]);
        assert_eq!(scored.mean_reward(), 0.75);
    }

    #[test]
    fn shards_have_the_advantages_of_the_whole() {
        let mut book = RewardBook::default();
        [1.0, 0.0, 1.0].iter().zip(0..).for_each(|(&reward, index)| book.post(id(index), reward).unwrap());
        book.record(id(3), &Outcome::Failed { reason: "timed out".into(), counts_as: -1.0 }).unwrap();
        let scored = sealed().with_rewards(&mut book).unwrap();
        assert_eq!(scored.rewards(), [1.0, 0.0, 1.0, -1.0], "a failure keeps its row");
        let shards = scored.shards(2).unwrap();
        assert_eq!(shards.iter().flat_map(ScoredBatch::advantages).collect::<Vec<_>>(), scored.advantages());
        let rollouts: Vec<RolloutId> =
            shards.iter().flat_map(|shard| shard.batch().rollouts()).map(Rollout::id).collect();
        assert_eq!(rollouts, [id(0), id(1), id(2), id(3)]);
    }

    #[test]
    fn missing_contradicting_and_non_finite_rewards_are_named() {
        let mut book = RewardBook::default();
        book.post(id(0), 1.0).unwrap();
        assert_eq!(book.post(id(0), 1.0), Ok(()));
        assert!(matches!(book.post(id(0), 0.5), Err(RewardError::Contradicts { .. })));
        assert!(matches!(book.post(id(1), f64::NAN), Err(RewardError::NotFinite { .. })));
        let missing = sealed().with_rewards(&mut book).unwrap_err();
        assert_eq!(missing.to_string(), "3 of 4 rollouts have no reward, the first is p0.r1");
    }
}
