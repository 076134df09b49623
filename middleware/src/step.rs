//! One training step: score at the sampler's weights, update, re-synchronise when the lag has grown too large.

use lockstep_core::{
    ScoredBatch, Stamp, WeightVersion,
    ports::{Control, PortResult, PublishedWeights, Scorer, StepOptions, StepReport, Trainer},
    score::{ScoredAt, select, versions},
};
use std::sync::Arc;

/// The sampler's control plane and the trainer, as one step sees them.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "its ports are trait objects without one")]
pub struct Pair {
    /// Gives the sampler new weights.
    pub control: Arc<dyn Control>,
    /// Scores at the weights of any live version.
    pub scorer: Arc<dyn Scorer>,
    /// Updates the weights.
    pub trainer: Arc<dyn Trainer>,
}

/// log p_s of a batch: one scoring a distinct version in it.
pub async fn score(pair: &Pair, batch: &ScoredBatch) -> PortResult<Vec<ScoredAt>> {
    let mut scored = Vec::new();
    for version in versions(batch.batch()).map_err(refused)? {
        scored.push(pair.scorer.score(batch.batch(), version).await?);
    }
    Ok(scored)
}

/// The update: log p_theta, `(w, c)`, gradient, all in the trainer's own forward.
pub async fn update(
    pair: &Pair,
    batch: &ScoredBatch,
    scored: &[ScoredAt],
    options: &StepOptions,
) -> PortResult<StepReport> {
    let log_s = select(batch.batch(), scored).map_err(refused)?;
    pair.trainer.step(batch, &log_s, options).await
}

/// Gives the sampler the weights of a version; the trainer keeps those, and those of the versions in `live`, which drew answers
/// that are not trained on yet.
pub async fn resync(
    pair: &Pair,
    version: WeightVersion,
    live: &[WeightVersion],
) -> PortResult<(PublishedWeights, Stamp)> {
    let weights = pair.trainer.publish(version).await?;
    pair.control.pause().await?;
    let stamp = pair.control.load_weights(&weights).await?;
    pair.control.resume().await?;
    pair.trainer.retain(&[live, &[version]].concat()).await?;
    Ok((weights, stamp))
}

fn refused(error: impl std::fmt::Display) -> lockstep_core::ports::PortError {
    lockstep_core::ports::PortError::Refused(error.to_string())
}
