//! Ports that are waited for only so long: a target that hangs is one that could not be asked.

use async_trait::async_trait;
use lockstep_conformance::Target;
use lockstep_core::{
    Batch, RolloutId, ScoredBatch, Stamp, WeightVersion,
    ports::{
        Control, ControlCapabilities, DeltaStream, PortError, PortResult, Probe, ProbeLoss, PublishedWeights,
        SampleRequest, Sampler, SamplerCapabilities, Scorer, ScorerCapabilities, StepOptions, StepReport, Trainer,
        TrainerCapabilities,
    },
    score::{RolloutLogProbs, ScoredAt},
};
use std::{future::Future, sync::Arc, time::Duration};
use tokio_stream::StreamExt;

/// The target with every call, and every wait for a delta, bounded.
pub fn patient(target: Target, patience: Duration) -> Target {
    Target {
        sampler: target.sampler.map(|port| Arc::new(Patient { port, patience }) as _),
        control: target.control.map(|port| Arc::new(Patient { port, patience }) as _),
        scorer: target.scorer.map(|port| Arc::new(Patient { port, patience }) as _),
        trainer: target.trainer.map(|port| Arc::new(Patient { port, patience }) as _),
        probe: target.probe.map(|port| Arc::new(Patient { port, patience }) as _),
        ..target
    }
}

struct Patient<P: ?Sized> {
    port: Arc<P>,
    patience: Duration,
}

fn late(patience: Duration) -> PortError {
    PortError::Unavailable(format!("no answer within {} s", patience.as_secs_f64()))
}

impl<P: ?Sized> Patient<P> {
    async fn wait<T>(&self, call: impl Future<Output = PortResult<T>>) -> PortResult<T> {
        tokio::time::timeout(self.patience, call).await.map_err(|_| late(self.patience))?
    }
}

#[async_trait]
impl Sampler for Patient<dyn Sampler> {
    fn capabilities(&self) -> SamplerCapabilities {
        self.port.capabilities()
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        let patience = self.patience;
        let deltas = self.wait(self.port.generate(requests)).await?;
        let bounded =
            deltas.timeout(patience).map(move |delta| delta.map_err(|_| late(patience)).and_then(|delta| delta));
        Ok(Box::pin(bounded))
    }

    async fn cancel(&self, rollouts: &[RolloutId]) -> PortResult<()> {
        self.wait(self.port.cancel(rollouts)).await
    }
}

#[async_trait]
impl Control for Patient<dyn Control> {
    fn capabilities(&self) -> ControlCapabilities {
        self.port.capabilities()
    }

    async fn pause(&self) -> PortResult<()> {
        self.wait(self.port.pause()).await
    }

    async fn load_weights(&self, weights: &PublishedWeights) -> PortResult<Stamp> {
        self.wait(self.port.load_weights(weights)).await
    }

    async fn resume(&self) -> PortResult<()> {
        self.wait(self.port.resume()).await
    }

    async fn version(&self) -> PortResult<Stamp> {
        self.wait(self.port.version()).await
    }
}

#[async_trait]
impl Scorer for Patient<dyn Scorer> {
    async fn capabilities(&self) -> PortResult<ScorerCapabilities> {
        self.wait(self.port.capabilities()).await
    }

    async fn score(&self, batch: &Batch, version: WeightVersion) -> PortResult<ScoredAt> {
        self.wait(self.port.score(batch, version)).await
    }
}

#[async_trait]
impl Trainer for Patient<dyn Trainer> {
    fn capabilities(&self) -> TrainerCapabilities {
        self.port.capabilities()
    }

    async fn step(
        &self,
        batch: &ScoredBatch,
        log_s: &[RolloutLogProbs],
        options: &StepOptions,
    ) -> PortResult<StepReport> {
        self.wait(self.port.step(batch, log_s, options)).await
    }

    async fn version(&self) -> PortResult<WeightVersion> {
        self.wait(self.port.version()).await
    }

    async fn publish(&self, version: WeightVersion) -> PortResult<PublishedWeights> {
        self.wait(self.port.publish(version)).await
    }

    async fn retain(&self, live: &[WeightVersion]) -> PortResult<()> {
        self.wait(self.port.retain(live)).await
    }
}

#[async_trait]
impl Probe for Patient<dyn Probe> {
    async fn gradient(&self, loss: &ProbeLoss) -> PortResult<Vec<f64>> {
        self.wait(self.port.gradient(loss)).await
    }
}
