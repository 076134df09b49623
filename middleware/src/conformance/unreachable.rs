//! A port nobody answers at: every call gives the reason, so that each check that needs it says it could not run.

use async_trait::async_trait;
use lockstep_core::{
    Batch, RolloutId, SamplerProfile, ScoredBatch, Stamp, WeightVersion,
    ports::{
        Control, ControlCapabilities, DeltaStream, PortError, PortResult, Probe, ProbeLoss, PublishedWeights,
        SampleRequest, Sampler, SamplerCapabilities, Scorer, ScorerCapabilities, StepOptions, StepReport, Trainer,
        TrainerCapabilities,
    },
    profile::{Dtypes, LogProbMeaning, TieRule},
    score::{RolloutLogProbs, ScoredAt},
};
use std::sync::Arc;

/// The reason.
#[derive(Debug, Clone)]
pub struct Unreachable {
    reason: PortError,
}

impl Unreachable {
    /// A port that is not there for this reason.
    pub fn because(reason: PortError) -> Self {
        Self { reason }
    }

    fn refuse<T>(&self) -> PortResult<T> {
        Err(self.reason.clone())
    }
}

#[async_trait]
impl Sampler for Unreachable {
    fn capabilities(&self) -> SamplerCapabilities {
        let unknown = || "unknown".to_owned();
        let profile = SamplerProfile {
            engine: unknown(),
            version: unknown(),
            filters: vec![],
            ties: TieRule::Unspecified,
            log_probs: LogProbMeaning::Drawn,
            dtypes: Dtypes { weights: unknown(), activations: unknown(), kv_cache: unknown(), head: unknown() },
        };
        SamplerCapabilities { profile: Arc::new(profile), vocabulary: 1, resumes: false }
    }

    async fn generate(&self, _: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        self.refuse()
    }

    async fn cancel(&self, _: &[RolloutId]) -> PortResult<()> {
        self.refuse()
    }
}

#[async_trait]
impl Control for Unreachable {
    fn capabilities(&self) -> ControlCapabilities {
        ControlCapabilities { digest: false }
    }

    async fn pause(&self) -> PortResult<()> {
        self.refuse()
    }

    async fn load_weights(&self, _: &PublishedWeights) -> PortResult<Stamp> {
        self.refuse()
    }

    async fn resume(&self) -> PortResult<()> {
        self.refuse()
    }

    async fn version(&self) -> PortResult<Stamp> {
        self.refuse()
    }
}

#[async_trait]
impl Scorer for Unreachable {
    async fn capabilities(&self) -> PortResult<ScorerCapabilities> {
        self.refuse()
    }

    async fn score(&self, _: &Batch, _: WeightVersion) -> PortResult<ScoredAt> {
        self.refuse()
    }
}

#[async_trait]
impl Trainer for Unreachable {
    fn capabilities(&self) -> TrainerCapabilities {
        TrainerCapabilities { snapshots: true }
    }

    async fn step(&self, _: &ScoredBatch, _: &[RolloutLogProbs], _: &StepOptions) -> PortResult<StepReport> {
        self.refuse()
    }

    async fn version(&self) -> PortResult<WeightVersion> {
        self.refuse()
    }

    async fn publish(&self, _: WeightVersion) -> PortResult<PublishedWeights> {
        self.refuse()
    }

    async fn retain(&self, _: &[WeightVersion]) -> PortResult<()> {
        self.refuse()
    }
}

#[async_trait]
impl Probe for Unreachable {
    async fn gradient(&self, _: &ProbeLoss) -> PortResult<Vec<f64>> {
        self.refuse()
    }
}
