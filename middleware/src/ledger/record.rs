//! What the ledger remembers.

use lockstep_core::{
    BehaviorDistribution, Delta, FinishReason, RolloutId, SamplerProfile, Stamp, WeightVersion,
    behavior::{BehaviorError, Columns},
    delta::KvHistory,
    ports::PublishedWeights,
    rollout::Request,
};
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

/// One entry of the ledger. New kinds are appended at the end: the number of a kind is part of the format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// An engine; deltas name it by its place among these records.
    Profile(SamplerProfile),
    /// A plan, before anything is sampled: its requests in dispatch order.
    PlanOpened {
        /// Number of the plan.
        plan: u64,
        /// Its requests.
        requests: Vec<Request>,
    },
    /// Tokens as they arrived.
    Delta(DeltaRecord),
    /// The batch is complete.
    PlanSealed {
        /// Number of the plan.
        plan: u64,
    },
    /// The reward of a rollout, known after its batch was sealed.
    Reward {
        /// The rollout.
        rollout: RolloutId,
        /// Its reward.
        reward: f64,
    },
    /// The trainer made a step of the batch.
    Consumed {
        /// Number of the plan.
        plan: u64,
        /// What was trained on, in order.
        rollouts: Vec<RolloutId>,
        /// The weights before the update.
        before: WeightVersion,
        /// The weights after it.
        after: WeightVersion,
    },
    /// The sampler got new weights.
    Resync(ResyncRecord),
    /// What bounds dispatch from here on.
    Dispatch {
        /// Plans that may be open at a time.
        max_open_plans: u32,
        /// Width of the window in which a plan may overtake older ones; 1 is strict.
        window: u32,
    },
    /// Answers went to a sampler.
    Sent(SentRecord),
    /// An answer is complete.
    Arrived {
        /// The rollout.
        rollout: RolloutId,
        /// When, in milliseconds since 1970.
        at: u64,
    },
    /// Judging a rollout broke or ran out of time; it keeps its place.
    RewardFailed {
        /// The rollout.
        rollout: RolloutId,
        /// What happened.
        reason: String,
        /// The reward it counts as, fixed before the run.
        counts_as: f64,
    },
    /// What a driven trainer says it trained on, where that is less than what was sampled.
    Trained {
        /// The rollout.
        rollout: RolloutId,
        /// Its sampled tokens, as the trainer counts them.
        tokens: u32,
        /// How many of them its mask kept.
        kept: u32,
    },
    /// The run goes on after its process ended. Steps on a trainer's later weights are lost and made again.
    Resumed {
        /// The version the trainer goes on from, in the epoch it opens.
        restored: WeightVersion,
        /// Plans that were trained on and are trained on again, since that was lost.
        again: Vec<u64>,
        /// Answers that go on from their recorded tokens, with their number.
        resumed: Vec<(RolloutId, u32)>,
        /// Answers that were sent and of which nothing was recorded: sampled again, counted in `attempts`.
        resampled: Vec<RolloutId>,
    },
}

/// Answers that went to a sampler together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SentRecord {
    /// To whom.
    pub sampler: String,
    /// When, in milliseconds since 1970.
    pub at: u64,
    /// Which.
    pub answers: Vec<SentAnswer>,
}

/// An answer that went to a sampler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentAnswer {
    /// Its rollout.
    pub rollout: RolloutId,
    /// 1, and one more for every time its tokens were lost. The seed follows from it: `SamplingParams::for_attempt`.
    pub attempt: u32,
    /// Recorded tokens it goes on from.
    pub tokens: u32,
}

/// Weights a sampler was given, and what it says it holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResyncRecord {
    /// What it was given.
    pub weights: PublishedWeights,
    /// What it says.
    pub stamp: Stamp,
}

/// A delta with its profile by number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeltaRecord {
    /// The rollout.
    pub rollout: RolloutId,
    /// Index of its first token among the rollout's sampled tokens.
    pub start: u32,
    /// Tokens and supports.
    pub columns: Columns,
    /// The weights that drew them.
    pub stamp: Stamp,
    /// The cache they were drawn on.
    pub kv: KvHistory,
    /// Number of the profile record.
    pub profile: u32,
    /// Set on the last delta of an answer.
    pub finish: Option<FinishReason>,
}

impl DeltaRecord {
    /// The record of a delta whose profile has this number.
    pub fn new(delta: &Delta, profile: u32) -> Self {
        Self {
            rollout: delta.rollout,
            start: delta.start,
            columns: delta.behavior.columns().clone(),
            stamp: delta.stamp.clone(),
            kv: delta.kv,
            profile,
            finish: delta.finish,
        }
    }

    /// The delta again, through the same checks as when it arrived.
    ///
    /// # Errors
    /// Columns that contradict themselves.
    pub fn delta(self, profile: Arc<SamplerProfile>) -> Result<Delta, BehaviorError> {
        Ok(Delta {
            rollout: self.rollout,
            start: self.start,
            behavior: BehaviorDistribution::from_columns(self.columns)?,
            stamp: self.stamp,
            kv: self.kv,
            profile,
            finish: self.finish,
        })
    }
}

impl Record {
    /// The profile, when this is one.
    pub fn profile(&self) -> Option<&SamplerProfile> {
        match self {
            Self::Profile(profile) => Some(profile),
            _ => None,
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Profile(profile) => write!(f, "the profile of {} {}", profile.engine, profile.version),
            Self::PlanOpened { plan, requests } => {
                write!(f, "the opening of plan {plan} with {} rollouts", requests.len())
            }
            Self::Delta(delta) => write!(f, "a delta of rollout {} from token {}", delta.rollout, delta.start),
            Self::PlanSealed { plan } => write!(f, "the sealing of plan {plan}"),
            Self::Reward { rollout, .. } => write!(f, "the reward of rollout {rollout}"),
            Self::Consumed { plan, after, .. } => write!(f, "the step on plan {plan} to {after}"),
            Self::Resync(resync) => write!(f, "the re-synchronisation to {}", resync.weights.version),
            Self::Dispatch { max_open_plans, .. } => write!(f, "the rules of dispatch, {max_open_plans} open plans"),
            Self::Sent(sent) => write!(f, "the sending of {} answers to {}", sent.answers.len(), sent.sampler),
            Self::Arrived { rollout, .. } => write!(f, "the arrival of rollout {rollout}"),
            Self::RewardFailed { rollout, .. } => write!(f, "the failed reward of rollout {rollout}"),
            Self::Trained { rollout, .. } => write!(f, "what was trained on of rollout {rollout}"),
            Self::Resumed { restored, .. } => write!(f, "the resumption at {restored}"),
        }
    }
}
