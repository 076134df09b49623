//! What a sampler and a trainer must be able to do. Object-safe; every call may cross a process boundary.

use crate::{
    delta::Delta,
    dlc::{EssReport, Rule, statistics::TermReport},
    plan::Batch,
    profile::SamplerProfile,
    reward::ScoredBatch,
    rollout::Request,
    score::{RolloutLogProbs, ScoredAt},
    token::{RolloutId, TokenId},
    version::{Digest, Stamp, WeightVersion},
};
use async_trait::async_trait;
use futures_core::Stream;
use serde::{Deserialize, Serialize};
use std::{pin::Pin, sync::Arc};

/// Why a port did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// The request breaks a rule; asking again will not help.
    #[error("{0}")]
    Refused(String),
    /// The other side is not there.
    #[error("{0}")]
    Unavailable(String),
    /// The other side broke while working.
    #[error("{0}")]
    Failed(String),
}

/// Result of a call through a port.
pub type PortResult<T> = Result<T, PortError>;

/// Deltas as they arrive.
pub type DeltaStream = Pin<Box<dyn Stream<Item = PortResult<Delta>> + Send>>;

/// A request, and the tokens it already has: an interrupted answer is resumed, not sampled again.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleRequest {
    /// What was planned.
    pub request: Request,
    /// Sampled tokens that are there already.
    pub resumed: Vec<TokenId>,
}

/// What a sampler can do.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerCapabilities {
    /// What it is.
    pub profile: Arc<SamplerProfile>,
    /// Ids in its vocabulary.
    pub vocabulary: u32,
    /// Whether it resumes from given tokens.
    pub resumes: bool,
}

/// Draws answers and reports the distribution each token was really drawn from.
#[async_trait]
pub trait Sampler: Send + Sync {
    /// What it can do.
    fn capabilities(&self) -> SamplerCapabilities;

    /// Answers the requests; the deltas of different answers interleave, those of one answer are in order.
    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream>;

    /// Stops the answers; what has been drawn stays drawn, and they may be asked for again at once. Ids of no running answer are
    /// passed over.
    async fn cancel(&self, rollouts: &[RolloutId]) -> PortResult<()>;
}

/// Weights in a place both sides can read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedWeights {
    /// Their version.
    pub version: WeightVersion,
    /// The directory or file.
    pub path: String,
    /// Hash of the tensors in name order; without one nothing is held against what is loaded. Stored as 32 bytes, none as zeros.
    #[serde(with = "stored_digest")]
    pub digest: Option<Digest>,
}

mod stored_digest {
    use crate::version::Digest;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    const NONE: Digest = Digest([0; 32]);

    pub(super) fn serialize<S: Serializer>(digest: &Option<Digest>, to: S) -> Result<S::Ok, S::Error> {
        digest.unwrap_or(NONE).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Digest>, D::Error> {
        Ok(Some(Digest::deserialize(from)?).filter(|digest| *digest != NONE))
    }
}

/// What a sampler's control plane can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlCapabilities {
    /// Whether it can prove its weights by their digest.
    pub digest: bool,
}

/// Changes the weights a sampler draws with.
#[async_trait]
pub trait Control: Send + Sync {
    /// What it can do.
    fn capabilities(&self) -> ControlCapabilities;

    /// Stops drawing, keeps what has been drawn.
    async fn pause(&self) -> PortResult<()>;

    /// Replaces the weights; the caches built by the old ones are dropped. Gives the stamp of what is loaded now.
    async fn load_weights(&self, weights: &PublishedWeights) -> PortResult<Stamp>;

    /// Draws again.
    async fn resume(&self) -> PortResult<()>;

    /// The weights held now.
    async fn version(&self) -> PortResult<Stamp>;
}

/// What a scorer can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScorerCapabilities {
    /// Versions it can score at.
    pub live: Vec<WeightVersion>,
}

/// Scores a batch under the trainer's weights of some version.
#[async_trait]
pub trait Scorer: Send + Sync {
    /// What it can do.
    async fn capabilities(&self) -> PortResult<ScorerCapabilities>;

    /// log p over the recorded supports under the weights of `version`.
    async fn score(&self, batch: &Batch, version: WeightVersion) -> PortResult<ScoredAt>;
}

/// What one training step did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// The weights behind the step's forward.
    pub before: WeightVersion,
    /// The weights after its update.
    pub after: WeightVersion,
    /// Mean loss a token.
    pub loss: f64,
    /// L2 norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// The two terms, under the weights before the update.
    pub terms: TermReport,
    /// ESS of the raw lag ratios by the version that drew the answers; answers of several versions are in none.
    pub ess: Vec<(WeightVersion, EssReport)>,
}

impl StepReport {
    /// ESS of the answers drawn at one version.
    pub fn ess_at(&self, version: WeightVersion) -> Option<&EssReport> {
        self.ess.iter().find(|(drawn_at, _)| *drawn_at == version).map(|(_, ess)| ess)
    }
}

/// What a trainer can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainerCapabilities {
    /// Whether it keeps the weights of older versions, which DLC needs.
    pub snapshots: bool,
}

/// How a step turns a batch into an update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepOptions {
    /// The correction.
    pub rule: Rule,
    /// H of the horizon ESS, in tokens.
    pub horizon: u32,
}

/// Updates the weights.
#[async_trait]
pub trait Trainer: Send + Sync {
    /// What it can do.
    fn capabilities(&self) -> TrainerCapabilities;

    /// One update: computes `(w, c)` inside its own forward.
    async fn step(
        &self,
        batch: &ScoredBatch,
        log_s: &[RolloutLogProbs],
        options: &StepOptions,
    ) -> PortResult<StepReport>;

    /// The weights held now.
    async fn version(&self) -> PortResult<WeightVersion>;

    /// Puts the weights of a live version where the sampler can read them.
    async fn publish(&self, version: WeightVersion) -> PortResult<PublishedWeights>;

    /// Drops the snapshots of all versions but these and the current one.
    async fn retain(&self, live: &[WeightVersion]) -> PortResult<()>;
}

/// Coefficients of a loss a probe is asked about: `(w, c)` by position, over an exact support.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeLoss {
    /// Prompt and answer.
    pub tokens: Vec<TokenId>,
    /// Index of the token whose loss is asked for.
    pub position: usize,
    /// Ids of its support.
    pub support: Vec<TokenId>,
    /// Weight of the token.
    pub w: f64,
    /// Centring coefficients, one a support id.
    pub c: Vec<f64>,
    /// Divisor of the logits.
    pub temperature: f64,
}

/// Answers questions about gradients, for conformance.
#[async_trait]
pub trait Probe: Send + Sync {
    /// Gradient of the loss with respect to the logits of its position, over the support's ids, at advantage 1.
    async fn gradient(&self, loss: &ProbeLoss) -> PortResult<Vec<f64>>;
}

/// A rollout as a queue saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueEntry {
    /// The rollout.
    pub rollout: RolloutId,
    /// Its length in sampled tokens.
    pub length: u32,
}

/// What became of a rollout.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// The rollout.
    pub rollout: RolloutId,
    /// Its prompt group.
    pub group: u32,
    /// Its length in sampled tokens.
    pub length: u32,
    /// Whether the token limit ended it.
    pub cut: bool,
    /// Its reward.
    pub reward: f64,
}

/// What became of everything, as a queue saw it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcomes {
    /// Everything generated and rewarded, in dispatch order.
    pub generated: Vec<Outcome>,
    /// Everything trained on, batch by batch.
    pub trained: Vec<Vec<Outcome>>,
}

/// What stood between sampler and trainer: what was generated, and what was trained on.
#[async_trait]
pub trait Queue: Send + Sync {
    /// Everything dispatched and generated, in dispatch order.
    async fn generated(&self) -> PortResult<Vec<QueueEntry>>;

    /// Everything trained on, batch by batch.
    async fn consumed(&self) -> PortResult<Vec<Vec<QueueEntry>>>;

    /// Lengths, ends and rewards of both; refused by a queue that keeps none.
    async fn outcomes(&self) -> PortResult<Outcomes> {
        Err(PortError::Refused("the queue keeps no rewards and no finish reasons".into()))
    }
}
