//! The sampler of the pair, and its control plane.

use super::{VOCABULARY, model::Model, trainer::Store, truncate::kept};
use crate::mix::unit;
use async_trait::async_trait;
use futures_util::stream;
use lockstep_core::{
    BehaviorDistribution, Delta, Evidence, RolloutId, SamplerProfile, Stamp, Support, TokenId, WeightVersion,
    delta::{FinishReason, KvHistory},
    ports::{
        Control, ControlCapabilities, DeltaStream, PortError, PortResult, PublishedWeights, SampleRequest, Sampler,
        SamplerCapabilities,
    },
    profile::{Dtypes, FilterName, LogProbMeaning, TieRule},
    support::SupportError,
};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Tokens in a delta, at most.
const CHUNK: usize = 5;

/// Draws from its own copy of the weights, a few tokens at a time: as they are asked for.
#[derive(Debug)]
pub struct MemorySampler {
    shared: Arc<Shared>,
    store: Arc<Store>,
}

#[derive(Debug)]
struct Shared {
    held: Mutex<Arc<Model>>,
    paused: Mutex<bool>,
    spacing: f64,
    profile: Arc<SamplerProfile>,
}

impl Shared {
    fn held(&self) -> MutexGuard<'_, Arc<Model>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn paused(&self) -> MutexGuard<'_, bool> {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemorySampler {
    /// A sampler with these weights, which finds new ones in the store; its logits are multiples of the spacing, 0 for none.
    pub fn new(model: Arc<Model>, store: Arc<Store>, spacing: f64) -> Self {
        let dtype = || "f64".to_owned();
        let profile = Arc::new(SamplerProfile {
            engine: "memory".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            filters: vec![FilterName::Temperature, FilterName::TopK, FilterName::TopP, FilterName::MinP],
            ties: TieRule::LowerId,
            log_probs: LogProbMeaning::Drawn,
            dtypes: Dtypes { weights: dtype(), activations: dtype(), kv_cache: dtype(), head: dtype() },
        });
        let shared = Shared { held: Mutex::new(model), paused: Mutex::new(false), spacing, profile };
        Self { shared: Arc::new(shared), store }
    }

    /// The deltas of one answer, each drawn when it is asked for.
    pub(super) fn answer(&self, asked: SampleRequest) -> Answer {
        let prefix = [&asked.request.prompt[..], &asked.resumed].concat();
        let length = asked.resumed.len();
        Answer { shared: self.shared.clone(), asked, prefix, length, drawn_by: None, kv: KvHistory::Fresh, over: false }
    }
}

/// An answer under way; what it resumes from is conditioned on, not drawn again.
pub(super) struct Answer {
    shared: Arc<Shared>,
    asked: SampleRequest,
    prefix: Vec<TokenId>,
    length: usize,
    drawn_by: Option<WeightVersion>,
    kv: KvHistory,
    over: bool,
}

impl Iterator for Answer {
    type Item = PortResult<Delta>;

    fn next(&mut self) -> Option<PortResult<Delta>> {
        (!self.over).then(|| self.chunk())
    }
}

impl Answer {
    /// The next few tokens, with the weights held now.
    fn chunk(&mut self) -> PortResult<Delta> {
        if *self.shared.paused() {
            return Err(PortError::Unavailable("the sampler is paused".into()));
        }
        let model = self.shared.held().clone();
        if self.drawn_by.replace(model.version).is_some_and(|version| version != model.version) {
            self.kv = KvHistory::Recomputed;
        }
        let limits = self.asked.request.params.limits().clone();
        let (start, mut supports, mut finish) = (self.length, Vec::new(), None);
        while finish.is_none() && supports.len() < CHUNK && self.length < limits.max_new_tokens as usize {
            let support = next((&model, self.shared.spacing), (&self.asked, &self.prefix, self.length))
                .map_err(|error| PortError::Failed(error.to_string()))?;
            let token = support.sampled().token;
            self.prefix.push(token);
            self.length += 1;
            supports.push(support);
            finish = limits.stop.contains(&token).then_some(FinishReason::Stop(token));
        }
        let full = self.length >= limits.max_new_tokens as usize;
        finish = finish.or(full.then_some(FinishReason::Length));
        self.over = finish.is_some();
        let (rollout, behavior, stamp) = (self.asked.request.id, columns(&supports), stamp(&model)?);
        let profile = self.shared.profile.clone();
        Ok(Delta { rollout, start: start as u32, behavior, stamp, kv: self.kv, profile, finish })
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
    // 0 is added so that there is one zero: -0 would stand behind it where ids are ranked, and break a tie.
    let rounded = |logit: &f64| if spacing > 0.0 { (logit / spacing).round() * spacing + 0.0 } else { *logit };
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
        SamplerCapabilities { profile: self.shared.profile.clone(), vocabulary: VOCABULARY, resumes: true }
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        if *self.shared.paused() {
            return Err(PortError::Unavailable("the sampler is paused".into()));
        }
        let mut answers: VecDeque<Answer> = requests.into_iter().map(|asked| self.answer(asked)).collect();
        // A delta of each answer in turn.
        let deltas = std::iter::from_fn(move || {
            let mut answer = answers.pop_front()?;
            let delta = answer.next();
            if !answer.over && !matches!(delta, Some(Err(_))) {
                answers.push_back(answer);
            }
            delta
        });
        Ok(Box::pin(stream::iter(deltas)))
    }

    async fn cancel(&self, _: &[RolloutId]) -> PortResult<()> {
        Ok(())
    }
}

#[async_trait]
impl Control for MemorySampler {
    fn capabilities(&self) -> ControlCapabilities {
        ControlCapabilities { digest: true }
    }

    async fn pause(&self) -> PortResult<()> {
        *self.shared.paused() = true;
        Ok(())
    }

    async fn load_weights(&self, weights: &PublishedWeights) -> PortResult<Stamp> {
        let model = self.store.get(&weights.path)?;
        if model.version != weights.version || weights.digest.is_some_and(|digest| model.digest() != digest) {
            return Err(PortError::Refused(format!("{} does not hold {}", weights.path, weights.version)));
        }
        let stamp = stamp(&model)?;
        *self.shared.held() = model;
        Ok(stamp)
    }

    async fn resume(&self) -> PortResult<()> {
        *self.shared.paused() = false;
        Ok(())
    }

    async fn version(&self) -> PortResult<Stamp> {
        stamp(&self.shared.held())
    }
}
