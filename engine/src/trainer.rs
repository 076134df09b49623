//! The trainer: scores a batch under any live version, and makes one update of it. Both run the same micro-batches through
//! the same code, so that at equal versions `log p_theta - log p_s` is 0 to the last bit. The formulas of the correction
//! stand in `lockstep_core::dlc`. Knows nothing of who drives it.

use crate::head::{self, LOGITS_BYTES, Side};
use crate::train_error::{Place, TrainError, TrainResult};
use crate::{Error, Optimiser, Pass, Qwen3};
use candle_core::{DType, Device};
use lanes::Lanes;
use lockstep_core::dlc::TokenCorrection;
use lockstep_core::plan::Batch;
use lockstep_core::ports::{ProbeLoss, PublishedWeights};
use lockstep_core::score::{RolloutLogProbs, ScoredAt, SupportLogProbs};
use lockstep_core::support::Support;
use lockstep_core::version::{Digest, WeightVersion};
use passes::Micro;
use std::collections::BTreeMap;
use std::path::PathBuf;

mod lanes;
mod passes;
mod port;
mod state;
mod step;

pub use port::TrainerPort;

pub(crate) use passes::{cut, ids};
pub(crate) use step::{Tokens, backward};

/// Tokens of one forward unless the caller wants another number.
pub const TOKENS_PER_PASS: usize = 2048;

/// What a trainer needs besides its model.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where published weights go.
    pub directory: PathBuf,
    /// Tokens of one forward and backward, at most, where an answer is not longer. Bounds the memory of a step.
    pub tokens_per_pass: usize,
    /// Bytes of logits held at a time, where the whole vocabulary is needed.
    pub logits_bytes: usize,
    /// Where weights that are read from files go: where the model is.
    pub device: Device,
}

impl Settings {
    /// Publishes into `directory`; 2,048 tokens a pass, 64 MiB of logits, on the CPU.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            tokens_per_pass: TOKENS_PER_PASS,
            logits_bytes: LOGITS_BYTES,
            device: Device::Cpu,
        }
    }
}

/// A Qwen3 model, its optimiser, and the weights of every older version that is still needed.
#[derive(Debug)]
pub struct Qwen3Trainer {
    model: Qwen3,
    optimiser: Optimiser,
    version: WeightVersion,
    snapshots: BTreeMap<WeightVersion, Qwen3>,
    settings: Settings,
    lanes: Lanes,
}

impl Qwen3Trainer {
    /// Trains `model` in place; its weights now are `version`.
    pub fn new(model: Qwen3, optimiser: Optimiser, version: WeightVersion, settings: Settings) -> Self {
        let lanes = if model.weights().device().is_cpu() { Lanes::new(model.weights().floats()) } else { Lanes::one() };
        Self { model, optimiser, version, snapshots: BTreeMap::new(), settings, lanes }
    }

    /// The same, computing as [`Qwen3::with_plain_operations`] says, at every live version.
    #[must_use]
    pub fn with_plain_operations(self, dtype: DType) -> Self {
        let plain = |(version, model): (_, Qwen3)| (version, model.with_plain_operations(dtype));
        let snapshots = self.snapshots.into_iter().map(plain).collect();
        Self { model: self.model.with_plain_operations(dtype), snapshots, ..self }
    }

    /// The version of the weights now.
    pub fn version(&self) -> WeightVersion {
        self.version
    }

    /// The model, at the weights now.
    pub fn model(&self) -> &Qwen3 {
        &self.model
    }

    /// The optimiser.
    pub fn optimiser(&self) -> &Optimiser {
        &self.optimiser
    }

    /// The optimiser, to change its constants between steps.
    pub fn optimiser_mut(&mut self) -> &mut Optimiser {
        &mut self.optimiser
    }

    /// The versions whose weights are here, oldest first.
    pub fn live(&self) -> Vec<WeightVersion> {
        let mut live: Vec<_> = self.snapshots.keys().copied().chain([self.version]).collect();
        live.sort_unstable();
        live
    }

    /// The model at the weights of a live version.
    ///
    /// # Errors
    /// A version that is not live, with those that are.
    pub fn at(&self, version: WeightVersion) -> TrainResult<&Qwen3> {
        let not_live = || TrainError::NotLive { version, live: self.live() };
        if version == self.version {
            return Ok(&self.model);
        }
        self.snapshots.get(&version).ok_or_else(not_live)
    }

    /// log p over the recorded supports of every segment, under the weights of `version`.
    ///
    /// # Errors
    /// A version that is not live, ids or positions that the model does not have.
    pub fn score(&self, batch: &Batch, version: WeightVersion) -> TrainResult<ScoredAt> {
        let model = self.at(version)?;
        let mut rollouts: Vec<RolloutLogProbs> =
            batch.rollouts().iter().map(|r| vec![SupportLogProbs::default(); r.segments().len()]).collect();
        let score = |(start, end): (usize, usize)| {
            let micro = Micro::new(batch, start..end)?;
            let rows = head::scores(&self.side(model, &micro)?, &micro.asked)?;
            Ok((micro, rows))
        };
        self.lanes.run(&passes::ranges(batch, self.settings.tokens_per_pass), score, |(micro, rows)| {
            for ((asked, at), row) in micro.asked.iter().zip(&micro.at).zip(&rows) {
                rollouts[at.rollout][at.segment].push(&asked.support, row);
            }
            Ok(())
        })?;
        for (scores, rollout) in rollouts.iter_mut().zip(batch.rollouts()) {
            for (scores, segment) in scores.iter_mut().zip(rollout.segments()) {
                if segment.behavior.columns().rest.is_some() {
                    scores.log_rest.resize(segment.behavior.len(), f32::NEG_INFINITY);
                }
            }
        }
        Ok(ScoredAt { version, rollouts })
    }

    /// One forward outside the graph.
    fn side(&self, model: &Qwen3, micro: &Micro) -> TrainResult<Side> {
        let hidden = model.hidden_packed(&ids(&micro.ids), Pass::Score)?;
        Side::new(model, &hidden, self.settings.logits_bytes)
    }

    /// Writes the weights of a live version to `<directory>/<version>.safetensors`: a temporary file, synced, renamed.
    ///
    /// # Errors
    /// A version that is not live, a file that cannot be written.
    pub fn publish(&self, version: WeightVersion) -> TrainResult<PublishedWeights> {
        let weights = self.at(version)?.weights();
        let directory = &self.settings.directory;
        std::fs::create_dir_all(directory).map_err(|source| Error::File { path: directory.clone(), source })?;
        let path = directory.join(format!("{version}.safetensors"));
        weights.save(&path)?;
        let digest = Some(Digest(weights.digest()?));
        Ok(PublishedWeights { version, path: path.to_string_lossy().into_owned(), digest })
    }

    /// Drops the weights of every version but these and the one held now. Until then each step leaves one more copy.
    pub fn retain(&mut self, live: &[WeightVersion]) {
        self.snapshots.retain(|version, _| live.contains(version));
    }

    /// Gradient of a loss given by its coefficients with respect to the logits of its position, over the support's ids, at
    /// advantage 1. Runs through the same head as a step.
    ///
    /// # Errors
    /// A position without a token or without anything before it, a support that does not hold the token, coefficients of
    /// another number.
    pub fn gradient(&self, probe: &ProbeLoss) -> TrainResult<Vec<f64>> {
        let ProbeLoss { tokens, position, support, w, c, temperature } = probe;
        let place = Place::Probe { position: *position };
        let token = *tokens.get(*position).filter(|_| *position > 0).ok_or(TrainError::NoPrefix(place))?;
        if c.len() != support.len() {
            let (found, expected) = (c.len(), support.len());
            let owner = "support of the probe".to_owned();
            return Err(TrainError::Scored { what: "coefficients", found, expected, owner });
        }
        let even = vec![-(support.len() as f64).ln(); support.len()];
        let support = Support::exact(token, support.clone(), even);
        let support = support.map_err(|source| TrainError::Support { place, source })?;
        let prefix: Vec<u32> = tokens[..*position].iter().map(|token| token.0).collect();
        let hidden = self.model.hidden_packed(&[&prefix], Pass::Score)?;
        let side = Side::new(&self.model, &hidden, self.settings.logits_bytes)?;
        let asked = head::Asked { place, row: position - 1, support, temperature: *temperature, sampler: None };
        head::gradient(&side, &asked, TokenCorrection { w: *w, c: c.clone(), tail: None })
    }
}
