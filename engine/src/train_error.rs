//! Everything the trainer refuses, with the numbers and the place.

use crate::Error;
use lockstep_core::dlc::decompose::RatioNotFinite;
use lockstep_core::dlc::weigh::WeighError;
use lockstep_core::ports::PortError;
use lockstep_core::rivals::MethodError;
use lockstep_core::score::{ScoreError, SelectError};
use lockstep_core::support::SupportError;
use lockstep_core::token::{RolloutId, TokenId};
use lockstep_core::version::WeightVersion;
use std::fmt;

/// What every fallible function of the trainer returns.
pub type TrainResult<T> = std::result::Result<T, TrainError>;

/// Where a token stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In a rollout.
    Rollout {
        /// The rollout.
        rollout: RolloutId,
        /// Index of the segment.
        segment: usize,
        /// Index of the token within it.
        position: usize,
    },
    /// In an example of supervised training.
    Example {
        /// Index of the example.
        example: usize,
        /// Index of the token within its answer.
        position: usize,
    },
    /// In the sequence a probe asks about.
    Probe {
        /// Index of the token.
        position: usize,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rollout { rollout, segment, position } => {
                write!(f, "rollout {rollout}, segment {segment}, position {position}")
            }
            Self::Example { example, position } => write!(f, "example {example}, position {position}"),
            Self::Probe { position } => write!(f, "probe, position {position}"),
        }
    }
}

/// A refusal or a failure of the trainer. Whatever it is, weights, moments and version are as they were.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A version whose weights are gone, or never were.
    #[error("version {version} is not live; live are {}", list(live))]
    NotLive {
        /// The version asked for.
        version: WeightVersion,
        /// Versions with weights, oldest first.
        live: Vec<WeightVersion>,
    },
    /// p_s that does not exist.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// Scores of another batch.
    #[error("{found} {what} are scored, the {owner} has {expected}")]
    Scored {
        /// What is counted.
        what: &'static str,
        /// Scores given.
        found: usize,
        /// Scores needed.
        expected: usize,
        /// What has them.
        owner: String,
    },
    /// Scores that do not fit their segment.
    #[error("rollout {rollout}, segment {segment}: {source}")]
    Score {
        /// The rollout.
        rollout: RolloutId,
        /// Index of the segment.
        segment: usize,
        /// What does not fit.
        source: ScoreError,
    },
    /// An advantage that is no number.
    #[error("advantage {advantage} of rollout {rollout} is not a finite number")]
    Advantage {
        /// The rollout.
        rollout: RolloutId,
        /// Its advantage.
        advantage: f64,
    },
    /// A support that contradicts itself.
    #[error("{place}: {source}")]
    Support {
        /// Where.
        place: Place,
        /// What is wrong with it.
        source: SupportError,
    },
    /// Nothing before the first token, so it has no distribution.
    #[error("{0}: nothing stands before the token")]
    NoPrefix(Place),
    /// Nothing to train on.
    #[error("the batch has no tokens to train on")]
    Empty,
    /// An id the head does not have.
    #[error("{place}: token {token} is outside a head of {vocab} rows")]
    OutsideHead {
        /// Where.
        place: Place,
        /// The id.
        token: TokenId,
        /// Rows of the head.
        vocab: usize,
    },
    /// q over another vocabulary than p.
    #[error("{place}: q is over a vocabulary of {found}, the head has {vocab} rows")]
    OtherVocabulary {
        /// Where.
        place: Place,
        /// Size of q's vocabulary.
        found: u32,
        /// Rows of the head.
        vocab: usize,
    },
    /// Logits that cannot be normalised.
    #[error("{place}: {source}")]
    Logits {
        /// Where.
        place: Place,
        /// What the kernel said.
        source: lockstep_kernels::Error,
    },
    /// A position that cannot be corrected.
    #[error("{place}: {source}")]
    Weigh {
        /// Where.
        place: Place,
        /// What is wrong with it.
        source: WeighError,
    },
    /// A position that a method cannot correct.
    #[error("{place}: {source}")]
    Correct {
        /// Where.
        place: Place,
        /// What is wrong with it.
        source: MethodError,
    },
    /// A batch that a method cannot weigh.
    #[error(transparent)]
    Method(MethodError),
    /// A loss that is no number.
    #[error("loss {0} is not a finite number; nothing was changed")]
    Loss(f64),
    /// A gradient that is no number.
    #[error("gradient of {name} has norm {norm}; nothing was changed")]
    Gradient {
        /// The parameter.
        name: String,
        /// Its norm.
        norm: f64,
    },
    /// A parameter that the backward did not reach.
    #[error("{name} has no gradient: the graph is cut below it")]
    NoGradient {
        /// The parameter.
        name: String,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] Error),
}

fn list(versions: &[WeightVersion]) -> String {
    versions.iter().map(WeightVersion::to_string).collect::<Vec<_>>().join(", ")
}

impl TrainError {
    pub(crate) fn ratio(place: Place) -> impl Fn(RatioNotFinite) -> Self {
        move |ratio| Self::Weigh { place, source: ratio.into() }
    }
}

impl From<candle_core::Error> for TrainError {
    fn from(error: candle_core::Error) -> Self {
        Self::Engine(error.into())
    }
}

impl From<TrainError> for PortError {
    fn from(error: TrainError) -> Self {
        let text = error.to_string();
        match &error {
            TrainError::Engine(error) => refused_or_failed(error, text),
            TrainError::Loss(_)
            | TrainError::Gradient { .. }
            | TrainError::NoGradient { .. }
            | TrainError::Logits { .. } => Self::Failed(text),
            _ => Self::Refused(text),
        }
    }
}

/// Ids, positions and filters out of range are the caller's; everything else broke here.
pub(crate) fn refused_or_failed(error: &Error, text: String) -> PortError {
    match error {
        Error::Token { .. }
        | Error::Position { .. }
        | Error::EmptyRow { .. }
        | Error::Greedy { .. }
        | Error::Kernel { source: lockstep_kernels::Error::Parameter { .. }, .. } => PortError::Refused(text),
        _ => PortError::Failed(text),
    }
}
