//! What the plans refuse.

use super::MAX_ROLLOUTS;
use lockstep_core::{
    RolloutId,
    dispatch::{DispatchError, Failure},
    plan::PlanError,
    reward::RewardError,
    rollout::FoldError,
};

/// A call that breaks a rule of the plans.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlansError {
    /// Out of turn.
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    /// A broken rule of membership.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Deltas that do not make an answer.
    #[error(transparent)]
    Fold(#[from] FoldError),
    /// A reward that cannot be joined.
    #[error(transparent)]
    Reward(#[from] RewardError),
    /// The plan cannot be completed.
    #[error("the plan ended: {0}")]
    Failed(#[from] Failure),
    /// Nothing more will come.
    #[error("no more batches will come: {0}")]
    Stopped(String),
    /// A plan of too many rollouts.
    #[error("a plan of {groups} groups with {answers} answers each has {rollouts} rollouts, not 1..={MAX_ROLLOUTS}")]
    TooMany {
        /// Groups asked for.
        groups: u32,
        /// Answers to each.
        answers: u32,
        /// Their product.
        rollouts: u64,
    },
    /// A plan of a number that is not its turn.
    #[error(
        "plan {plan} of {groups} groups with {answers} answers each was asked for; no such plan is open, and the next is {next}"
    )]
    Number {
        /// The number asked for.
        plan: u64,
        /// Groups asked for.
        groups: u32,
        /// Answers to each.
        answers: u32,
        /// The number of the next plan.
        next: u64,
    },
    /// A plan that was trained on.
    #[error("plan {0} was consumed already")]
    Closed(u64),
    /// A rollout that is being drawn.
    #[error("rollout {0} is being drawn")]
    Drawing(RolloutId),
    /// A rollout that was asked otherwise before.
    #[error("rollout {0} was asked before, with another prompt or other parameters")]
    Asked(RolloutId),
    /// Two prompts in one group.
    #[error(
        "rollouts {sibling} and {rollout} answer one prompt of the plan, but were sent different ones of {first} and {second} ids"
    )]
    Siblings {
        /// Which was sent first.
        sibling: RolloutId,
        /// Which was sent now.
        rollout: RolloutId,
        /// Ids of its prompt.
        first: usize,
        /// Ids of this one's.
        second: usize,
    },
    /// A plan that was not sealed.
    #[error("plan {plan} waits for {missing} of {planned} rollouts and cannot have been trained on")]
    Unsealed {
        /// The plan.
        plan: u64,
        /// Rollouts missing.
        missing: usize,
        /// Rollouts planned.
        planned: usize,
    },
    /// The trainer trained on something else than it was given.
    #[error(
        "plan {plan}: {trained} rollouts were trained on, {given} were given; {} not trained on, {} of no such plan",
        name(.missing), name(.foreign)
    )]
    Difference {
        /// The plan.
        plan: u64,
        /// Rollouts reported.
        trained: usize,
        /// Rollouts of the plan, or of the rank's part of it.
        given: usize,
        /// Given, and not reported.
        missing: Vec<RolloutId>,
        /// Reported, and not given; or reported twice.
        foreign: Vec<RolloutId>,
    },
    /// The trainer says another length.
    #[error("rollout {rollout} was trained on with {trained} tokens, {sampled} were sampled")]
    Length {
        /// The rollout.
        rollout: RolloutId,
        /// Tokens reported.
        trained: u32,
        /// Tokens sampled.
        sampled: u32,
    },
    /// The trainer's mask took tokens out.
    #[error("rollout {rollout} has {sampled} sampled tokens, but the mask kept {kept}")]
    Masked {
        /// The rollout.
        rollout: RolloutId,
        /// Tokens the loss saw.
        kept: u32,
        /// Tokens sampled.
        sampled: u32,
    },
    /// A rank that somebody else holds.
    #[error("rank {rank} of {ranks} is held by {holder} until its lease ends")]
    Held {
        /// The rank.
        rank: u32,
        /// Number of ranks.
        ranks: u32,
        /// Who holds it.
        holder: String,
    },
    /// A rank there is not.
    #[error("there is no rank {rank} of {ranks}; the consumers so far have {expected} ranks")]
    Rank {
        /// The rank.
        rank: u32,
        /// Its number of ranks.
        ranks: u32,
        /// The number of ranks there are.
        expected: u32,
    },
}

impl PlansError {
    /// Whether a trainer says that it trained on something that it was not given, or not in its turn.
    pub fn is_selection(&self) -> bool {
        matches!(
            self,
            Self::Unsealed { .. }
                | Self::Difference { .. }
                | Self::Length { .. }
                | Self::Masked { .. }
                | Self::Closed(_)
                | Self::Dispatch(DispatchError::NotReleased(_))
        )
    }
}

fn name(rollouts: &[RolloutId]) -> String {
    match rollouts {
        [] => "none".into(),
        [one] => one.to_string(),
        [first, .., last] => format!("{} ({first} to {last})", rollouts.len()),
    }
}
