//! log p of every known entry of every support, as the trainer sees it.

use crate::{behavior::BehaviorDistribution, plan::Batch, support::Support, token::RolloutId, version::WeightVersion};
use serde::{Deserialize, Serialize};

/// log p over the supports of a run of tokens, `[T]` rows with the offsets of the behaviour they belong to.
///
/// Over a kept support, p is renormalised over it at the recorded temperature; over an untruncated q it is taken over the
/// whole vocabulary. A singleton owns no entry: its log p is 0.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SupportLogProbs {
    /// log p of each known entry, `[N]`, nats; NaN never, `-inf` where the behaviour's own entry is not known.
    pub log_p: Vec<f32>,
    /// log p of the drawn token, `[T]`.
    pub log_p_sampled: Vec<f32>,
    /// Log mass under p of the entries q does not know, `[T]`; empty when every row is exact, `-inf` in exact rows.
    pub log_rest: Vec<f32>,
}

/// Log-probs of one row, in nats.
#[derive(Debug, Clone, PartialEq)]
pub struct RowLogProbs {
    /// Of the known entries.
    pub log_p: Vec<f64>,
    /// Of the drawn token.
    pub log_p_sampled: f64,
    /// Of the mass of the others, where there are others.
    pub log_rest: Option<f64>,
}

/// Log-probs that do not belong to a behaviour.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ScoreError {
    /// A column of the wrong length.
    #[error("scores have {found} values in {column}, the behaviour needs {expected}")]
    Length {
        /// Name of the column.
        column: &'static str,
        /// Values there.
        found: usize,
        /// Values needed.
        expected: usize,
    },
    /// No number.
    #[error("log p of the token at position {position} is {log_p}, not a finite number <= 0")]
    NotALogProb {
        /// Index of the row.
        position: usize,
        /// The value.
        log_p: f64,
    },
}

impl SupportLogProbs {
    /// Appends the log-probs of one row with the given support, rounded to f32 as they travel.
    pub fn push(&mut self, support: &Support, row: &RowLogProbs) {
        if !is_bare(support) {
            self.log_p.extend(row.log_p.iter().map(|&log_p| log_p as f32));
            self.log_p.resize(self.log_p.len() + support.ids().len() - row.log_p.len(), f32::NEG_INFINITY);
        }
        if let Some(log_rest) = row.log_rest {
            self.log_rest.resize(self.log_p_sampled.len(), f32::NEG_INFINITY);
            self.log_rest.push(log_rest as f32);
        } else if !self.log_rest.is_empty() {
            self.log_rest.push(f32::NEG_INFINITY);
        }
        self.log_p_sampled.push(row.log_p_sampled as f32);
    }

    /// Checks the columns against the behaviour they were scored for.
    ///
    /// # Errors
    /// A column of the wrong length, a log-prob of a drawn token that is not finite or above 0.
    pub fn check(&self, behavior: &BehaviorDistribution) -> Result<(), ScoreError> {
        let columns = behavior.columns();
        let rest = if columns.rest.is_some() { behavior.len() } else { 0 };
        let lengths = [
            ("log_p", self.log_p.len(), columns.ids.len()),
            ("log_p_sampled", self.log_p_sampled.len(), behavior.len()),
            ("log_rest", self.log_rest.len(), rest),
        ];
        if let Some((column, found, expected)) = lengths.into_iter().find(|&(_, found, expected)| found != expected) {
            return Err(ScoreError::Length { column, found, expected });
        }
        let bad = self.log_p_sampled.iter().position(|&log_p| !(log_p.is_finite() && log_p <= 0.0));
        bad.map_or(Ok(()), |position| {
            Err(ScoreError::NotALogProb { position, log_p: f64::from(self.log_p_sampled[position]) })
        })
    }

    /// The log-probs of row `position` of the behaviour they were scored for.
    ///
    /// # Panics
    /// When `position` is not below the behaviour's length, as slices do; see [`SupportLogProbs::check`].
    pub fn row(&self, behavior: &BehaviorDistribution, position: usize) -> RowLogProbs {
        let columns = behavior.columns();
        let entries = columns.offsets[position] as usize..columns.offsets[position + 1] as usize;
        let log_p_sampled = f64::from(self.log_p_sampled[position]);
        let log_rest =
            self.log_rest.get(position).filter(|&&rest| rest != f32::NEG_INFINITY).map(|&rest| f64::from(rest));
        let log_p = if entries.is_empty() && log_rest.is_none() {
            vec![log_p_sampled]
        } else {
            let known = columns.log_q[entries.clone()].iter().take_while(|&&log_q| log_q != f32::NEG_INFINITY).count();
            self.log_p[entries][..known].iter().map(|&log_p| f64::from(log_p)).collect()
        };
        RowLogProbs { log_p, log_p_sampled, log_rest }
    }
}

/// True for a row that owns no entry.
fn is_bare(support: &Support) -> bool {
    support.is_exact() && support.ids().len() == 1
}

impl RowLogProbs {
    /// The same values as they travel: rounded to f32.
    pub fn rounded(self) -> Self {
        let round = |log_p: f64| f64::from(log_p as f32);
        let log_p = self.log_p.into_iter().map(round).collect();
        Self { log_p, log_p_sampled: round(self.log_p_sampled), log_rest: self.log_rest.map(round) }
    }
}

/// Scores of one rollout: one entry a segment.
pub type RolloutLogProbs = Vec<SupportLogProbs>;

/// A batch scored at one version: one entry a rollout, in dispatch order.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoredAt {
    /// The weights used.
    pub version: WeightVersion,
    /// log p under them.
    pub rollouts: Vec<RolloutLogProbs>,
}

/// p_s that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// The engine did not say which weights it holds.
    #[error("rollout {rollout}, segment {segment}: its weight version is undeclared, so p_s is not defined")]
    Undeclared {
        /// The rollout.
        rollout: RolloutId,
        /// Index of the segment.
        segment: usize,
    },
    /// Nobody scored at the segment's version.
    #[error("rollout {rollout}, segment {segment}: no score at its version {version}")]
    NotScored {
        /// The rollout.
        rollout: RolloutId,
        /// Index of the segment.
        segment: usize,
        /// Its version.
        version: WeightVersion,
    },
}

/// The distinct declared versions of a batch, oldest first.
///
/// # Errors
/// A segment whose version is undeclared.
pub fn versions(batch: &Batch) -> Result<Vec<WeightVersion>, SelectError> {
    let mut versions = Vec::new();
    for rollout in batch.rollouts() {
        for (segment, part) in rollout.segments().iter().enumerate() {
            let undeclared = SelectError::Undeclared { rollout: rollout.id(), segment };
            versions.push(part.stamp.version().ok_or(undeclared)?);
        }
    }
    versions.sort_unstable();
    versions.dedup();
    Ok(versions)
}

/// log p_s: for each segment the scores at the version that drew it.
///
/// # Errors
/// A segment whose version is undeclared or was not scored.
pub fn select(batch: &Batch, scored: &[ScoredAt]) -> Result<Vec<RolloutLogProbs>, SelectError> {
    let rollouts = batch.rollouts().iter().enumerate();
    rollouts
        .map(|(index, rollout)| {
            let segments = rollout.segments().iter().enumerate();
            segments
                .map(|(segment, part)| {
                    let rollout = rollout.id();
                    let version = part.stamp.version().ok_or(SelectError::Undeclared { rollout, segment })?;
                    let scores = scored.iter().find(|scored| scored.version == version);
                    let scores = scores.and_then(|scored| scored.rollouts.get(index)?.get(segment));
                    scores.cloned().ok_or(SelectError::NotScored { rollout, segment, version })
                })
                .collect()
        })
        .collect()
}
