//! The sampler of the pair, and its control plane.

use super::{VOCABULARY, model::Model, trainer::Store, truncate::kept};
use crate::mix::unit;
use async_trait::async_trait;
use futures_util::stream;
use lockstep_core::{
    BehaviorDistribution, Delta, Evidence, RolloutId, SamplerProfile, Stamp, Support, TokenId,
    delta::{FinishReason, KvHistory},
    ports::{
        Control, ControlCapabilities, DeltaStream, PortError, PortResult, PublishedWeights, SampleRequest, Sampler,
        SamplerCapabilities,
    },
    profile::{Dtypes, FilterName, LogProbMeaning, TieRule},
    support::SupportError,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tokens in a delta, at most.
const CHUNK: usize = 5;

/// Draws from its own copy of the weights.
#[derive(Debug)]
pub struct MemorySampler {
    held: Mutex<Arc<Model>>,
    paused: Mutex<bool>,
    store: Arc<Store>,
    spacing: f64,
    profile: Arc<SamplerProfile>,
}

impl MemorySampler {
    /// A sampler with these weights, which finds new ones in the store; its logits are multiples of the spacing, 0 for none.
    pub fn new(model: Arc<Model>, store: Arc<Store>, spacing: f64) -> Self {
        let dtype = || "f64".to_owned();
        let profile = SamplerProfile {
            engine: "memory".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            filters: vec![FilterName::Temperature, FilterName::TopK, FilterName::TopP, FilterName::MinP],
            ties: TieRule::LowerId,
            log_probs: LogProbMeaning::Drawn,
            dtypes: Dtypes { weights: dtype(), activations: dtype(), kv_cache: dtype(), head: dtype() },
        };
        Self { held: Mutex::new(model), paused: Mutex::new(false), store, spacing, profile: Arc::new(profile) }
    }

    fn held(&self) -> MutexGuard<'_, Arc<Model>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The deltas of one answer; what it resumes from is conditioned on, not drawn again.
    pub(super) fn answer(&self, asked: &SampleRequest) -> PortResult<Vec<Delta>> {
        let model = self.held().clone();
        let stamp = stamp(&model)?;
        let limits = asked.request.params.limits();
        let mut prefix = [&asked.request.prompt[..], &asked.resumed].concat();
        let start = asked.resumed.len();
        let (mut supports, mut finish) = (Vec::new(), None);
        while finish.is_none() {
            let length = start + supports.len();
            if length >= limits.max_new_tokens as usize {
                finish = Some(FinishReason::Length);
                break;
            }
            let support = next((&model, self.spacing), (asked, &prefix, length))
                .map_err(|error| PortError::Failed(error.to_string()))?;
            let token = support.sampled().token;
            prefix.push(token);
            supports.push(support);
            finish = limits.stop.contains(&token).then_some(FinishReason::Stop(token));
        }
        let delta = |start: usize, behavior| Delta {
            rollout: asked.request.id,
            start: start as u32,
            behavior,
            stamp: stamp.clone(),
            kv: KvHistory::Fresh,
            profile: self.profile.clone(),
            finish: None,
        };
        let mut deltas: Vec<Delta> =
            (0..).zip(supports.chunks(CHUNK)).map(|(at, chunk)| delta(start + at * CHUNK, columns(chunk))).collect();
        if deltas.is_empty() {
            deltas.push(delta(start, BehaviorDistribution::default()));
        }
        deltas.iter_mut().last().into_iter().for_each(|last| last.finish = finish);
        Ok(deltas)
    }
}

fn columns(supports: &[Support]) -> BehaviorDistribution {
    let mut behavior = BehaviorDistribution::default();
    supports.iter().for_each(|support| behavior.push(support));
    behavior
}

/// Draws the token after a prefix; the draw depends on the request's seed and on the position alone.
fn next(
    (model, spacing): (&Model, f64),
    (asked, prefix, length): (&SampleRequest, &[TokenId], usize),
) -> Result<Support, SupportError> {
    let params = &asked.request.params;
    let rounded = |logit: &f64| if spacing > 0.0 { (logit / spacing).round() * spacing } else { *logit };
    let logits = model.logits(Model::context(prefix)).iter().map(rounded);
    let z: Vec<f64> = logits.map(|logit| logit / params.temperature()).collect();
    let entries = kept(&z, params.truncation());
    let u = unit(&[params.seed(), length as u64]);
    let mut below = 0.0;
    let drawn = entries.iter().find(|(_, log_q)| {
        below += log_q.exp();
        u < below
    });
    let last = entries.last().map_or(TokenId(0), |&(id, _)| id);
    let token = drawn.map_or(last, |&(id, _)| id);
    let (ids, log_q) = entries.into_iter().unzip();
    Support::exact(token, ids, log_q)
}

fn stamp(model: &Model) -> PortResult<Stamp> {
    let stamp = Stamp::declared(model.version, Evidence::Digest(model.digest()));
    stamp.ok_or_else(|| PortError::Failed(format!("no evidence for {}", model.version)))
}

#[async_trait]
impl Sampler for MemorySampler {
    fn capabilities(&self) -> SamplerCapabilities {
        SamplerCapabilities { profile: self.profile.clone(), vocabulary: VOCABULARY, resumes: true }
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        if *self.paused.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(PortError::Unavailable("the sampler is paused".into()));
        }
        let answers = requests.iter().map(|asked| self.answer(asked)).collect::<PortResult<Vec<_>>>()?;
        Ok(Box::pin(stream::iter(interleaved(answers).into_iter().map(Ok))))
    }

    async fn cancel(&self, _: &[RolloutId]) -> PortResult<()> {
        Ok(())
    }
}

/// A delta of each answer in turn.
fn interleaved(answers: Vec<Vec<Delta>>) -> Vec<Delta> {
    let mut queues: Vec<_> = answers.into_iter().map(Vec::into_iter).collect();
    let mut out = Vec::new();
    loop {
        let round: Vec<Delta> = queues.iter_mut().filter_map(Iterator::next).collect();
        if round.is_empty() {
            return out;
        }
        out.extend(round);
    }
}

#[async_trait]
impl Control for MemorySampler {
    fn capabilities(&self) -> ControlCapabilities {
        ControlCapabilities { digest: true }
    }

    async fn pause(&self) -> PortResult<()> {
        *self.paused.lock().unwrap_or_else(PoisonError::into_inner) = true;
        Ok(())
    }

    async fn load_weights(&self, weights: &PublishedWeights) -> PortResult<Stamp> {
        let model = self.store.get(&weights.path)?;
        if model.version != weights.version || model.digest() != weights.digest {
            return Err(PortError::Refused(format!("{} does not hold {}", weights.path, weights.version)));
        }
        let stamp = stamp(&model)?;
        *self.held() = model;
        Ok(stamp)
    }

    async fn resume(&self) -> PortResult<()> {
        *self.paused.lock().unwrap_or_else(PoisonError::into_inner) = false;
        Ok(())
    }

    async fn version(&self) -> PortResult<Stamp> {
        stamp(&self.held())
    }
}
