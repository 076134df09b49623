//! What can be wrong with a ledger.

use super::{
    frame::{FrameError, MAX_PAYLOAD},
    index::Entry,
    record::Subject,
};
use lockstep_core::RolloutId;
use std::{
    io,
    path::{Path, PathBuf},
};

/// A ledger that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The disk said no.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What came back.
        #[source]
        source: io::Error,
    },
    /// A damaged frame that is no torn tail of the last file, so nothing is cut.
    #[error("{} is damaged at byte {offset}{}, after {}: {source}", path.display(), in_rollout(rollout), after.as_deref().unwrap_or("nothing"))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the frame begins.
        offset: u64,
        /// The rollout it is about, where an index says so.
        rollout: Option<RolloutId>,
        /// The last sound record before it.
        after: Option<String>,
        /// What is wrong with it.
        #[source]
        source: FrameError,
    },
    /// A segment is not there.
    #[error("{} is missing: segments before and behind it are there", .0.display())]
    Missing(PathBuf),
    /// An index that changed while it was used.
    #[error("{} is no index of its segment; remove it and it is made again", .0.display())]
    Index(PathBuf),
    /// Somebody else writes.
    #[error("{} is written by another process", .0.display())]
    Locked(PathBuf),
    /// A record of more than [`MAX_PAYLOAD`] bytes.
    #[error("a record does not fit a frame of {MAX_PAYLOAD} bytes: {0}")]
    TooLarge(String),
    /// An append after one that failed.
    #[error("the ledger {} stopped acknowledging after an earlier error", .0.display())]
    Stopped(PathBuf),
    /// Other tokens than the ledger has, at the same place.
    #[error("rollout {rollout} has a delta from token {start} already, and it is another one")]
    Differs {
        /// The rollout.
        rollout: RolloutId,
        /// Start of the delta.
        start: u32,
    },
    /// Tokens are missing before the delta.
    #[error("rollout {rollout}: delta starts at token {found}, but {expected} tokens are there")]
    Gap {
        /// The rollout.
        rollout: RolloutId,
        /// Tokens so far.
        expected: u32,
        /// Start of the delta.
        found: u32,
    },
    /// A delta of a plan that was consumed and removed.
    #[error("rollout {0} belongs to a plan that was consumed and removed")]
    Retired(RolloutId),
    /// A delta that names a profile the ledger has not.
    #[error("rollout {rollout} names profile {profile}, but the ledger has {known}")]
    Profile {
        /// The rollout.
        rollout: RolloutId,
        /// Number of the profile.
        profile: u32,
        /// Profiles there are.
        known: usize,
    },
}

fn in_rollout(rollout: &Option<RolloutId>) -> String {
    rollout.map_or_else(String::new, |rollout| format!(", in rollout {rollout}"))
}

impl LedgerError {
    /// Damage with the rollout that an index names there.
    pub(super) fn in_rollout(self, entry: &Entry) -> Self {
        match self {
            Self::Damaged { path, offset, after, source, .. } if entry.index != Subject::PLAN => {
                let rollout = Some(RolloutId { plan: entry.plan, index: entry.index });
                Self::Damaged { path, offset, rollout, after, source }
            }
            other => other,
        }
    }

    /// The same fault for another who waited for it.
    pub(super) fn again(&self, path: &Path) -> Self {
        match self {
            Self::Io { action, path, source } => {
                let source = io::Error::new(source.kind(), source.to_string());
                Self::Io { action, path: path.clone(), source }
            }
            _ => Self::Stopped(path.to_owned()),
        }
    }
}

pub(super) fn io_error<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> LedgerError + use<'a> {
    move |source| LedgerError::Io { action, path: path.to_owned(), source }
}
