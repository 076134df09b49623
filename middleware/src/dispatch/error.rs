//! Why a plan could not be filled.

use super::history::HistoryError;
use crate::ledger::LedgerError;
use lockstep_core::{
    dispatch::{DispatchError as OutOfTurn, Failure},
    plan::PlanError,
    ports::PortError,
    reward::RewardError,
    rollout::FoldError,
};

/// A plan that could not be filled.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// The ledger could not keep what arrived.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The sampler refused or broke.
    #[error("plan {plan}, after {arrived} of {planned} answers: {source}")]
    Sampler {
        /// The plan.
        plan: u64,
        /// Answers complete by then.
        arrived: usize,
        /// Answers planned.
        planned: usize,
        /// What the sampler said.
        #[source]
        source: PortError,
    },
    /// A limit on attempts.
    #[error("{failure}; the last time: {source}")]
    Failed {
        /// Which.
        failure: Failure,
        /// What the sampler said last.
        #[source]
        source: PortError,
    },
    /// The deltas of an answer do not make one.
    #[error(transparent)]
    Fold(#[from] FoldError),
    /// An answer the plan does not accept.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A call out of turn.
    #[error(transparent)]
    OutOfTurn(#[from] OutOfTurn),
    /// A reward that cannot be joined.
    #[error(transparent)]
    Reward(#[from] RewardError),
    /// A ledger that cannot be gone on from.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// Nothing is open, nothing is released.
    #[error("no plan is open, and a batch is waited for")]
    NothingOpen,
}
