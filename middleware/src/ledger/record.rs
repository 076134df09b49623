//! What the ledger remembers.

use crate::session::SessionRecord;
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
    /// A plan whose trainer drives the loop: its size, before anything is asked of it.
    PlanReserved {
        /// Number of the plan.
        plan: u64,
        /// Prompts in it.
        groups: u32,
        /// Answers to each.
        answers: u32,
    },
    /// The request of a rollout of a reserved plan.
    Dispatched(Request),
    /// What a trainer says it trained on, which is what the plan has.
    Trained {
        /// Number of the plan.
        plan: u64,
        /// In the trainer's order.
        rollouts: Vec<TrainedOn>,
    },
    /// A turn of a conversation, from which its session is rebuilt.
    Session(SessionRecord),
}

/// What a trainer says of one rollout it trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainedOn {
    /// The rollout.
    pub rollout: RolloutId,
    /// Sampled tokens it had.
    pub tokens: u32,
    /// How many of them the loss saw.
    pub masked_in: u32,
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
    pub(super) fn new(delta: &Delta, profile: u32) -> Self {
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
            Self::PlanReserved { plan, groups, answers } => {
                write!(f, "the opening of plan {plan} with {groups} groups of {answers}")
            }
            Self::Dispatched(request) => write!(f, "the request of rollout {}", request.id),
            Self::Session(record) => write!(f, "turn {} of session {}", record.turn, record.session),
            Self::Trained { plan, .. } => write!(f, "the training on plan {plan}"),
            Self::Resync(resync) => write!(f, "the re-synchronisation to {}", resync.weights.version),
        }
    }
}
