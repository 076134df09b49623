//! What the ledger remembers.

use super::compact;
use crate::{resync::ResyncEvent, session::SessionRecord};
use lockstep_core::{
    BehaviorDistribution, Delta, FinishReason, RolloutId, SamplerProfile, Stamp, WeightVersion,
    behavior::{BehaviorError, Columns},
    delta::KvHistory,
    ports::PublishedWeights,
    rollout::Request,
};
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

/// The number of [`Record::Delta`] in a payload.
pub(super) const DELTA: u32 = 2;

/// What a record is about, for the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Opened,
    Delta,
    /// Of a rollout, without tokens.
    About,
    Sealed,
    Consumed,
}

impl Kind {
    pub(super) const ALL: [Self; 5] = [Self::Opened, Self::Delta, Self::About, Self::Sealed, Self::Consumed];
}

/// What a record says to the index.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Subject {
    pub(super) kind: Kind,
    pub(super) plan: u64,
    /// The rollout's place in its plan; [`Subject::PLAN`] for what is about all of them.
    pub(super) index: u32,
    pub(super) start: u32,
    /// Tokens of a delta, requests of a plan.
    pub(super) count: u32,
    pub(super) version: Option<WeightVersion>,
}

impl Subject {
    pub(super) const PLAN: u32 = u32::MAX;

    /// What a record without tokens says of a rollout.
    fn about(RolloutId { plan, index }: RolloutId) -> Self {
        Self { kind: Kind::About, plan, index, start: 0, count: 0, version: None }
    }

    fn plan(kind: Kind, plan: u64, count: usize) -> Self {
        Self { kind, plan, index: Self::PLAN, start: 0, count: count as u32, version: None }
    }
}

/// The beginning of a delta's payload, up to the number of its tokens.
#[derive(Debug, Deserialize)]
pub(super) struct DeltaHead {
    rollout: RolloutId,
    start: u32,
    stamp: Stamp,
    _kv: KvHistory,
    _profile: u32,
    _finish: Option<FinishReason>,
    tokens: u64,
}

impl DeltaHead {
    pub(super) fn subject(&self) -> Subject {
        let (RolloutId { plan, index }, version) = (self.rollout, self.stamp.version());
        Subject { kind: Kind::Delta, plan, index, start: self.start, count: self.tokens as u32, version }
    }
}

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
    /// A turn of a conversation, from which its session is rebuilt.
    Session(SessionRecord),
    /// What a trainer says it trained on, which is not what the plan has, or not in its turn.
    Misreported {
        /// Number of the plan.
        plan: u64,
        /// In the trainer's order.
        rollouts: Vec<TrainedOn>,
    },
    /// What was decided about the sampler's weights after a step, with its inputs, or what new weights did.
    Synchronisation(ResyncEvent),
}

/// What a trainer says of one rollout it trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TrainedOn {
    /// The rollout.
    pub rollout: RolloutId,
    /// Sampled tokens it had.
    pub tokens: u32,
    /// How many of them the loss saw.
    pub masked_in: u32,
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
    /// The weights that drew them.
    pub stamp: Stamp,
    /// The cache they were drawn on.
    pub kv: KvHistory,
    /// Number of the profile record.
    pub profile: u32,
    /// Set on the last delta of an answer.
    pub finish: Option<FinishReason>,
    /// Tokens and supports; last, so that what precedes them can be read alone.
    #[serde(with = "compact")]
    pub columns: Columns,
}

impl DeltaRecord {
    /// The record of a delta whose profile has this number.
    pub fn new(delta: &Delta, profile: u32) -> Self {
        Self {
            rollout: delta.rollout,
            start: delta.start,
            stamp: delta.stamp.clone(),
            kv: delta.kv,
            profile,
            finish: delta.finish,
            columns: delta.behavior.columns().clone(),
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

    /// What the index keeps of it; nothing of what belongs to no plan.
    pub(super) fn subject(&self) -> Option<Subject> {
        match self {
            Self::PlanOpened { plan, requests } => Some(Subject::plan(Kind::Opened, *plan, requests.len())),
            Self::Delta(delta) => {
                let (RolloutId { plan, index }, version) = (delta.rollout, delta.stamp.version());
                let count = delta.columns.tokens.len() as u32;
                Some(Subject { kind: Kind::Delta, plan, index, start: delta.start, count, version })
            }
            Self::PlanSealed { plan } => Some(Subject::plan(Kind::Sealed, *plan, 0)),
            Self::Reward { rollout, .. } => Some(Subject::about(*rollout)),
            Self::Consumed { plan, rollouts, .. } => Some(Subject::plan(Kind::Consumed, *plan, rollouts.len())),
            Self::PlanReserved { plan, groups, answers } => {
                Some(Subject::plan(Kind::Opened, *plan, *groups as usize * *answers as usize))
            }
            Self::Trained { plan, rollouts } => Some(Subject::plan(Kind::Consumed, *plan, rollouts.len())),
            Self::Profile(_)
            | Self::Resync(_)
            | Self::Dispatched(_)
            | Self::Dispatch { .. }
            | Self::Sent(_)
            | Self::Arrived { .. }
            | Self::RewardFailed { .. }
            | Self::Resumed { .. }
            | Self::Misreported { .. }
            | Self::Session(_)
            | Self::Synchronisation(_) => None,
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
            Self::Synchronisation(event) => event.fmt(f),
            Self::Trained { plan, .. } => write!(f, "the training on plan {plan}"),
            Self::Misreported { plan, .. } => write!(f, "a training that is not plan {plan}"),
            Self::Resync(resync) => write!(f, "the re-synchronisation to {}", resync.weights.version),
            Self::Dispatch { max_open_plans, .. } => write!(f, "the rules of dispatch, {max_open_plans} open plans"),
            Self::Sent(sent) => write!(f, "the sending of {} answers to {}", sent.answers.len(), sent.sampler),
            Self::Arrived { rollout, .. } => write!(f, "the arrival of rollout {rollout}"),
            Self::RewardFailed { rollout, .. } => write!(f, "the failed reward of rollout {rollout}"),
            Self::Resumed { restored, .. } => write!(f, "the resumption at {restored}"),
        }
    }
}
