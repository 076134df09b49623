//! The trainer behind its ports: a worker that owns it, one call after the other.

use super::Qwen3Trainer;
use crate::train_error::TrainResult;
use crate::worker::Worker;
use async_trait::async_trait;
use lockstep_core::plan::Batch;
use lockstep_core::ports::{
    PortResult, Probe, ProbeLoss, PublishedWeights, Scorer, ScorerCapabilities, StepOptions, StepReport, Trainer,
    TrainerCapabilities,
};
use lockstep_core::reward::ScoredBatch;
use lockstep_core::score::{RolloutLogProbs, ScoredAt};
use lockstep_core::version::WeightVersion;

/// [`Scorer`], [`Trainer`] and [`Probe`] over one [`Qwen3Trainer`].
#[derive(Debug)]
pub struct TrainerPort {
    worker: Worker<Qwen3Trainer>,
}

impl TrainerPort {
    /// Gives the trainer a thread of its own.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn new(trainer: Qwen3Trainer) -> std::io::Result<Self> {
        Ok(Self { worker: Worker::start("lockstep-trainer", trainer)? })
    }

    /// Runs `job` on the trainer, after what was asked before; for what the ports do not offer.
    ///
    /// # Errors
    /// The worker has stopped, or the job panics.
    pub async fn with<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Qwen3Trainer) -> R + Send + 'static,
    ) -> PortResult<R> {
        self.worker.call(job).await
    }

    async fn run<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Qwen3Trainer) -> TrainResult<R> + Send + 'static,
    ) -> PortResult<R> {
        Ok(self.worker.call(job).await??)
    }
}

#[async_trait]
impl Scorer for TrainerPort {
    async fn capabilities(&self) -> PortResult<ScorerCapabilities> {
        self.run(|trainer| Ok(ScorerCapabilities { live: trainer.live() })).await
    }

    async fn score(&self, batch: &Batch, version: WeightVersion) -> PortResult<ScoredAt> {
        let batch = batch.clone();
        self.run(move |trainer| trainer.score(&batch, version)).await
    }
}

#[async_trait]
impl Trainer for TrainerPort {
    fn capabilities(&self) -> TrainerCapabilities {
        TrainerCapabilities { snapshots: true }
    }

    async fn step(
        &self,
        batch: &ScoredBatch,
        log_s: &[RolloutLogProbs],
        options: &StepOptions,
    ) -> PortResult<StepReport> {
        let (batch, log_s, options) = (batch.clone(), log_s.to_vec(), *options);
        self.run(move |trainer| trainer.step(&batch, &log_s, &options)).await
    }

    async fn version(&self) -> PortResult<WeightVersion> {
        self.run(|trainer| Ok(trainer.version())).await
    }

    async fn publish(&self, version: WeightVersion) -> PortResult<PublishedWeights> {
        self.run(move |trainer| trainer.publish(version)).await
    }

    async fn retain(&self, live: &[WeightVersion]) -> PortResult<()> {
        let live = live.to_vec();
        self.run(move |trainer| {
            trainer.retain(&live);
            Ok(())
        })
        .await
    }
}

#[async_trait]
impl Probe for TrainerPort {
    async fn gradient(&self, loss: &ProbeLoss) -> PortResult<Vec<f64>> {
        let loss = loss.clone();
        self.run(move |trainer| trainer.gradient(&loss)).await
    }
}
