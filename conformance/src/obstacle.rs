//! Why a check could not be carried out.

use crate::check::Verdict;
use lockstep_core::{
    plan::PlanError, ports::PortError, reward::RewardError, rollout::FoldError, sampling::SamplingError,
    score::ScoreError, score::SelectError, support::SupportError,
};

/// What kept a check from a pass or a fail.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Obstacle {
    /// The target lacks what the check needs.
    #[error("{0}")]
    NotApplicable(String),
    /// A port gave an error.
    #[error("port {port}: {source}")]
    Port {
        /// Name of the port.
        port: &'static str,
        /// Its error.
        source: PortError,
    },
    /// A port gave deltas that are no answer.
    #[error(transparent)]
    Fold(#[from] FoldError),
    /// Answers and plan do not fit together.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The target's sampling parameters are out of range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// Scores that do not belong to the batch.
    #[error(transparent)]
    Score(#[from] ScoreError),
    /// No p_s for a segment.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// A support built for a question contradicts itself.
    #[error(transparent)]
    Support(#[from] SupportError),
    /// Rewards that cannot be joined.
    #[error(transparent)]
    Reward(#[from] RewardError),
    /// Nothing can be concluded; says by which numbers.
    #[error("{0}")]
    Unclear(String),
}

impl From<Obstacle> for Verdict {
    fn from(obstacle: Obstacle) -> Self {
        match obstacle {
            Obstacle::NotApplicable(reason) => Self::NotApplicable(reason),
            other => Self::CouldNotRun(other.to_string()),
        }
    }
}

/// Names the port an error came from.
pub(crate) trait AtPort<T> {
    fn at(self, port: &'static str) -> Result<T, Obstacle>;
}

impl<T> AtPort<T> for Result<T, PortError> {
    fn at(self, port: &'static str) -> Result<T, Obstacle> {
        self.map_err(|source| Obstacle::Port { port, source })
    }
}
