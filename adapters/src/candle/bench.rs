//! The weights, the conversations they have caches of, and the next token of an answer.

use super::{
    CandleModel,
    draw::draw,
    model::{self, Model},
};
use candle_transformers::models::qwen3::Config;
use lockstep_core::{
    BehaviorDistribution, Delta, FinishReason, SamplerProfile, Stamp, WeightVersion,
    delta::KvHistory,
    ports::{PortError, PortResult, PublishedWeights, SampleRequest},
    profile::{Dtypes, FilterName, LogProbMeaning, TieRule},
    version::Evidence,
};
use std::{collections::VecDeque, path::Path, sync::Arc};

/// Conversations whose caches are kept.
const KEPT: usize = 16;

/// A model with the caches of some ids.
#[derive(Debug)]
struct Conversation {
    model: Model,
    held: Vec<u32>,
    /// Weights loaded before it began.
    loads: u64,
}

/// An answer under way.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) asked: SampleRequest,
    conversation: Option<Conversation>,
    kv: KvHistory,
    pub(super) ended: bool,
}

impl Answer {
    pub(super) fn new(asked: SampleRequest) -> Self {
        Self { asked, conversation: None, kv: KvHistory::Fresh, ended: false }
    }

    fn ids(&self) -> Vec<u32> {
        self.asked.request.prompt.iter().chain(&self.asked.resumed).map(|id| id.0).collect()
    }

    fn finish(&self) -> Option<FinishReason> {
        let (limits, resumed) = (self.asked.request.params.limits(), &self.asked.resumed);
        let stop = resumed.last().copied().filter(|token| limits.stop.contains(token)).map(FinishReason::Stop);
        stop.or((resumed.len() >= limits.max_new_tokens as usize).then_some(FinishReason::Length))
    }
}

/// What draws.
#[derive(Debug)]
pub(super) struct Bench {
    kind: CandleModel,
    config: Config,
    /// The weights, without caches.
    model: Model,
    pub(super) stamp: Stamp,
    loads: u64,
    pub(super) paused: bool,
    /// The latest last.
    kept: VecDeque<Conversation>,
    pub(super) profile: Arc<SamplerProfile>,
}

fn stamp(version: WeightVersion) -> Stamp {
    let declared = Stamp::declared(version, Evidence::Label(version.to_string()));
    declared.unwrap_or_else(Stamp::undeclared)
}

fn profile(kind: CandleModel) -> SamplerProfile {
    let f32 = || "f32".to_owned();
    SamplerProfile {
        engine: format!("candle-transformers {}", kind.name()),
        version: "0.11".into(),
        filters: vec![FilterName::Temperature, FilterName::MinP, FilterName::TopK, FilterName::TopP],
        ties: TieRule::Unspecified,
        log_probs: LogProbMeaning::Drawn,
        dtypes: Dtypes { weights: f32(), activations: f32(), kv_cache: f32(), head: f32() },
    }
}

impl Bench {
    pub(super) fn open(kind: CandleModel, directory: &Path, version: WeightVersion) -> PortResult<Self> {
        let config = model::config(directory)?;
        let model = Model::load(kind, &config, directory)?;
        let (kept, profile) = (VecDeque::new(), Arc::new(profile(kind)));
        Ok(Self { kind, config, model, stamp: stamp(version), loads: 0, paused: false, kept, profile })
    }

    pub(super) fn vocabulary(&self) -> u32 {
        self.config.vocab_size as u32
    }

    /// # Errors
    /// A file that is not there or not of this model; then the old weights stay.
    pub(super) fn load(&mut self, weights: &PublishedWeights) -> PortResult<Stamp> {
        self.model = Model::load(self.kind, &self.config, Path::new(&weights.path))?;
        self.stamp = stamp(weights.version);
        self.loads += 1;
        self.kept.clear();
        Ok(self.stamp.clone())
    }

    /// # Errors
    /// An answer for which the model has no positions, or no prompt.
    pub(super) fn check(&self, asked: &SampleRequest) -> PortResult<()> {
        let (prompt, limits) = (asked.request.prompt.len(), asked.request.params.limits());
        let (longest, most) = (prompt + limits.max_new_tokens as usize, self.config.max_position_embeddings);
        if prompt == 0 {
            return Err(PortError::Refused(format!("rollout {}: its prompt is empty", asked.request.id)));
        }
        if longest > most {
            let id = asked.request.id;
            return Err(PortError::Refused(format!("rollout {id} may need {longest} positions, the model has {most}")));
        }
        Ok(())
    }

    /// The next token of an answer, as a delta; none where it was complete before.
    pub(super) fn next(&mut self, answer: &mut Answer) -> PortResult<Delta> {
        let complete = answer.finish();
        let (start, mut behavior) = (answer.asked.resumed.len() as u32, BehaviorDistribution::default());
        if complete.is_none() {
            let logits = self.logits(answer)?;
            let support = draw(&logits, &answer.asked.request.params, u64::from(start))?;
            answer.asked.resumed.push(support.sampled().token);
            behavior.push(&support);
        }
        let finish = answer.finish();
        answer.ended = finish.is_some();
        if answer.ended {
            self.keep(answer);
        }
        let (rollout, kv) = (answer.asked.request.id, answer.kv);
        let (stamp, profile) = (self.stamp.clone(), self.profile.clone());
        Ok(Delta { rollout, start, behavior, stamp, kv, profile, finish })
    }

    /// Logits after the ids of an answer: those its cache lacks are read at once.
    fn logits(&mut self, answer: &mut Answer) -> PortResult<Vec<f32>> {
        let ids = answer.ids();
        let own = answer.conversation.take();
        if own.as_ref().is_some_and(|own| own.loads != self.loads) {
            answer.kv = KvHistory::Recomputed;
        }
        let mut conversation = match own.filter(|own| own.loads == self.loads) {
            Some(own) => own,
            None => self.conversation(&ids),
        };
        let offset = conversation.held.len();
        let logits = conversation.model.forward(&ids[offset..], offset).map_err(model::failed)?;
        conversation.held = ids;
        answer.conversation = Some(conversation);
        Ok(logits)
    }

    /// The longest kept conversation that some ids go on from, or a new one.
    fn conversation(&mut self, ids: &[u32]) -> Conversation {
        let goes_on = |kept: &Conversation| kept.held.len() < ids.len() && ids.starts_with(&kept.held);
        let longest =
            self.kept.iter().enumerate().filter(|(_, kept)| goes_on(kept)).max_by_key(|(_, kept)| kept.held.len());
        let kept = longest.map(|(at, _)| at).and_then(|at| self.kept.remove(at));
        kept.unwrap_or_else(|| Conversation { model: self.model.clone(), held: vec![], loads: self.loads })
    }

    fn keep(&mut self, answer: &mut Answer) {
        self.kept.extend(answer.conversation.take().filter(|conversation| conversation.loads == self.loads));
        if self.kept.len() > KEPT {
            self.kept.pop_front();
        }
    }
}
