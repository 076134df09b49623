//! Small optimiser steps on made-up rewards, to see weights and terms move.

use crate::{
    obstacle::{AtPort, Obstacle},
    target::Target,
};
use lockstep_core::{
    Batch, RewardBook, ScoredBatch, WeightVersion,
    dlc::{Rule, ess::DEFAULT_HORIZON},
    ports::{PublishedWeights, StepOptions, StepReport},
    score::RolloutLogProbs,
    version::Stamp,
};

/// The batch with rewards 1, 0, 1, 0, ..: within a group of even size half the answers are pushed up, half down.
fn rewarded(batch: &Batch) -> Result<ScoredBatch, Obstacle> {
    let mut book = RewardBook::default();
    for (index, rollout) in batch.rollouts().iter().enumerate() {
        book.post(rollout.id(), if index % 2 == 0 { 1.0 } else { 0.0 })?;
    }
    Ok(batch.clone().with_rewards(&mut book)?)
}

/// One update.
pub(crate) async fn step(
    target: &Target,
    batch: &Batch,
    log_s: &[RolloutLogProbs],
    rule: Rule,
) -> Result<StepReport, Obstacle> {
    step_on(target, &rewarded(batch)?, log_s, rule).await
}

/// One update on rewards of one's own.
pub(crate) async fn step_on(
    target: &Target,
    batch: &ScoredBatch,
    log_s: &[RolloutLogProbs],
    rule: Rule,
) -> Result<StepReport, Obstacle> {
    let options = StepOptions { rule, horizon: DEFAULT_HORIZON };
    target.trainer()?.step(batch, log_s, &options).await.at("trainer")
}

/// Gives the sampler a version of the trainer's: what was published, and what the sampler says it holds since.
pub(crate) async fn load(target: &Target, version: WeightVersion) -> Result<(PublishedWeights, Stamp), Obstacle> {
    let published = target.trainer()?.publish(version).await.at("trainer")?;
    let stamp = give(target, &published).await?;
    Ok((published, stamp))
}

/// Gives the sampler what was published.
pub(crate) async fn give(target: &Target, published: &PublishedWeights) -> Result<Stamp, Obstacle> {
    let control = target.control()?;
    control.pause().await.at("control")?;
    let stamp = control.load_weights(published).await.at("control");
    control.resume().await.at("control")?;
    stamp
}

/// Gives the sampler the trainer's weights where it holds others and can be given any.
pub(crate) async fn synchronise(target: &Target) -> Result<WeightVersion, Obstacle> {
    let version = target.trainer()?.version().await.at("trainer")?;
    if let Some(control) = &target.control
        && control.version().await.at("control")?.version() != Some(version)
    {
        load(target, version).await?;
    }
    Ok(version)
}

/// Not applicable where the trainer keeps no older weights.
pub(crate) fn needs_snapshots(target: &Target) -> Result<(), Obstacle> {
    if target.trainer()?.capabilities().snapshots {
        return Ok(());
    }
    Err(Obstacle::NotApplicable("the trainer keeps no snapshots, so p_s cannot be scored after an update".into()))
}
