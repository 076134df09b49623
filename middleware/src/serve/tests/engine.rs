//! An engine that does what a test says.

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use lockstep_core::{
    BehaviorDistribution, Delta, Evidence, FinishReason, RolloutId, SamplerProfile, Stamp, Support, TokenId,
    WeightVersion,
    delta::KvHistory,
    ports::{DeltaStream, PortError, PortResult, SampleRequest, Sampler, SamplerCapabilities},
    profile::{Dtypes, FilterName, LogProbMeaning, TieRule},
};
use std::sync::{Arc, Mutex};

/// Ids in the fake vocabulary.
pub(super) const VOCABULARY: u32 = 1000;

/// What the engine does next.
#[derive(Debug, Clone)]
pub(super) enum Act {
    /// Draws so many tokens at a weight step, in one delta.
    Draw(usize, u64),
    /// Draws what is left, one token a delta.
    Rest,
    /// Sends this.
    Send(Box<Delta>),
    /// Fails.
    Fail(PortError),
    /// Says nothing more, and does not end.
    Hang,
}

type Script = dyn Fn(usize, &SampleRequest) -> Vec<Act> + Send + Sync;

/// The engine: token number t of an answer is 10 + t, kept with its neighbour at one half each.
#[derive(Clone)]
pub(super) struct Fake {
    script: Arc<Script>,
    pub(super) asked: Arc<Mutex<Vec<SampleRequest>>>,
    pub(super) cancelled: Arc<Mutex<Vec<RolloutId>>>,
    resumes: bool,
}

impl Fake {
    /// Acts by the number of the call and its request.
    pub(super) fn new(script: impl Fn(usize, &SampleRequest) -> Vec<Act> + Send + Sync + 'static) -> Self {
        Self { script: Arc::new(script), asked: Arc::default(), cancelled: Arc::default(), resumes: true }
    }

    /// Draws every answer to its end.
    pub(super) fn counting() -> Self {
        Self::new(|_, _| vec![Act::Rest])
    }

    /// Cannot resume.
    pub(super) fn forgetful(self) -> Self {
        Self { resumes: false, ..self }
    }

    pub(super) fn asked(&self) -> Vec<SampleRequest> {
        self.asked.lock().unwrap().clone()
    }
}

pub(super) fn profile() -> Arc<SamplerProfile> {
    let dtype = || "f32".to_owned();
    Arc::new(SamplerProfile {
        engine: "fake".into(),
        version: "1".into(),
        filters: vec![FilterName::Temperature],
        ties: TieRule::LowerId,
        log_probs: LogProbMeaning::Drawn,
        dtypes: Dtypes { weights: dtype(), activations: dtype(), kv_cache: dtype(), head: dtype() },
    })
}

pub(super) fn stamp(step: u64) -> Stamp {
    Stamp::declared(WeightVersion { epoch: 0, step }, Evidence::Label(format!("step-{step}"))).unwrap()
}

/// Tokens `start..start + count` of an answer, as this engine draws them.
pub(super) fn delta(rollout: RolloutId, start: usize, count: usize, step: u64) -> Delta {
    let mut behavior = BehaviorDistribution::default();
    for token in (start..start + count).map(|at| 10 + at as u32) {
        let ids = vec![TokenId(token), TokenId(token + 1)];
        behavior.push(&Support::exact(TokenId(token), ids, vec![0.5f64.ln(); 2]).unwrap());
    }
    let (start, stamp, kv, profile, finish) = (start as u32, stamp(step), KvHistory::Fresh, profile(), None);
    Delta { rollout, start, behavior, stamp, kv, profile, finish }
}

/// The same delta, the last of its answer.
pub(super) fn last(delta: Delta, finish: FinishReason) -> Delta {
    Delta { finish: Some(finish), ..delta }
}

fn deltas(acts: Vec<Act>, request: &SampleRequest) -> Vec<PortResult<Delta>> {
    let limits = request.request.params.limits();
    let (id, limit) = (request.request.id, limits.max_new_tokens as usize);
    let finish = |at: usize| {
        let token = TokenId(10 + at as u32 - 1);
        let stopped = limits.stop.contains(&token).then_some(FinishReason::Stop(token));
        stopped.or((at == limit).then_some(FinishReason::Length))
    };
    let (mut at, mut out) = (request.resumed.len(), Vec::new());
    for act in acts {
        match act {
            Act::Draw(count, step) => {
                let drawn = delta(id, at, count, step);
                at += count;
                out.push(Ok(Delta { finish: finish(at), ..drawn }));
            }
            Act::Rest => {
                let mut ended = None;
                while ended.is_none() && at < limit {
                    let drawn = delta(id, at, 1, 0);
                    at += 1;
                    ended = finish(at);
                    out.push(Ok(Delta { finish: ended, ..drawn }));
                }
            }
            Act::Send(delta) => out.push(Ok(*delta)),
            Act::Fail(error) => out.push(Err(error)),
            Act::Hang => {}
        }
    }
    out
}

#[async_trait]
impl Sampler for Fake {
    fn capabilities(&self) -> SamplerCapabilities {
        SamplerCapabilities { profile: profile(), vocabulary: VOCABULARY, resumes: self.resumes }
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        let [request] = requests.as_slice() else { panic!("{} requests at once", requests.len()) };
        let call = {
            let mut asked = self.asked.lock().unwrap();
            asked.push(request.clone());
            asked.len() - 1
        };
        let acts = (self.script)(call, request);
        if let [Act::Fail(error)] = acts.as_slice() {
            return Err(error.clone());
        }
        let hangs = matches!(acts.last(), Some(Act::Hang));
        let drawn = stream::iter(deltas(acts, request));
        Ok(if hangs { drawn.chain(stream::pending()).boxed() } else { drawn.boxed() })
    }

    async fn cancel(&self, rollouts: &[RolloutId]) -> PortResult<()> {
        self.cancelled.lock().unwrap().extend_from_slice(rollouts);
        Ok(())
    }
}
