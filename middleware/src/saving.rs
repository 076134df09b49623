//! A built-in trainer that can be killed: before every step its state is on disk, and a later process goes on from there.
//!
//! The state before step n is written when step n is asked for: by then whoever asks has recorded the steps before it, so that
//! the disk never knows a step that its ledger does not. Two folders take turns, and a small file names the one that is whole.

use async_trait::async_trait;
use lockstep_core::{
    Batch, ScoredBatch, WeightVersion,
    ports::{
        PortError, PortResult, Probe, ProbeLoss, PublishedWeights, Scorer, ScorerCapabilities, StepOptions, StepReport,
        Trainer, TrainerCapabilities,
    },
    score::{RolloutLogProbs, ScoredAt},
};
use lockstep_engine::{Qwen3Trainer, TrainerPort};
use std::path::{Path, PathBuf};

const CURRENT: &str = "current";

/// The folder a trainer goes on from, where a whole state was written.
pub fn saved(state: &Path) -> Option<PathBuf> {
    let named = std::fs::read_to_string(state.join(CURRENT)).ok()?;
    Some(state.join(named.trim()))
}

/// The version a saved state names.
///
/// # Errors
/// A file that cannot be read, or names no version.
pub fn version(saved: &Path) -> std::io::Result<WeightVersion> {
    let path = saved.join("trainer.json");
    let wrong = |why: String| std::io::Error::other(format!("{}: {why}", path.display()));
    let text = std::fs::read_to_string(&path).map_err(|error| wrong(error.to_string()))?;
    let state: serde_json::Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let named = state["version"].as_str().ok_or_else(|| wrong("it names no version".into()))?;
    named.parse().map_err(|error: lockstep_core::version::NotAVersion| wrong(error.to_string()))
}

/// Writes the state beside the last whole one, then names it the whole one.
fn save(trainer: &Qwen3Trainer, state: &Path) -> Result<(), PortError> {
    let last = saved(state);
    let name = if last.is_some_and(|last| last.ends_with("a")) { "b" } else { "a" };
    let failed = |error: &dyn std::fmt::Display| PortError::Failed(format!("the trainer's state: {error}"));
    trainer.save(&state.join(name)).map_err(|error| failed(&error))?;
    crate::journal::write_whole(&state.join(CURRENT), name).map_err(|error| failed(&error))
}

/// A trainer, and where its state goes.
#[derive(Debug)]
pub struct SavingTrainer {
    port: TrainerPort,
    state: Option<PathBuf>,
}

impl SavingTrainer {
    /// Writes into `state` before every step, where there is one.
    pub fn new(port: TrainerPort, state: Option<PathBuf>) -> Self {
        Self { port, state }
    }
}

#[async_trait]
impl Scorer for SavingTrainer {
    async fn capabilities(&self) -> PortResult<ScorerCapabilities> {
        Scorer::capabilities(&self.port).await
    }

    async fn score(&self, batch: &Batch, version: WeightVersion) -> PortResult<ScoredAt> {
        self.port.score(batch, version).await
    }
}

#[async_trait]
impl Trainer for SavingTrainer {
    fn capabilities(&self) -> TrainerCapabilities {
        Trainer::capabilities(&self.port)
    }

    async fn step(
        &self,
        batch: &ScoredBatch,
        log_s: &[RolloutLogProbs],
        options: &StepOptions,
    ) -> PortResult<StepReport> {
        if let Some(state) = self.state.clone() {
            self.port.with(move |trainer| save(trainer, &state)).await??;
        }
        self.port.step(batch, log_s, options).await
    }

    async fn version(&self) -> PortResult<WeightVersion> {
        self.port.version().await
    }

    async fn publish(&self, version: WeightVersion) -> PortResult<PublishedWeights> {
        self.port.publish(version).await
    }

    async fn retain(&self, live: &[WeightVersion]) -> PortResult<()> {
        self.port.retain(live).await
    }
}

#[async_trait]
impl Probe for SavingTrainer {
    async fn gradient(&self, loss: &ProbeLoss) -> PortResult<Vec<f64>> {
        self.port.gradient(loss).await
    }
}
