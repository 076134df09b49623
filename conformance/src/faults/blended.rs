//! A sampler whose tokens come partly from older weights than the label says.

use crate::target::Target;
use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt};
use lockstep_core::{
    Batch, BatchPlan, BehaviorDistribution, Delta, Rollout, RolloutId, Support, TokenId, WeightVersion,
    delta::FinishReason,
    ports::{DeltaStream, PortError, PortResult, SampleRequest, Sampler, SamplerCapabilities, Scorer},
    rollout::Request,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Which tokens show older weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// All tokens after the first version.
    AfterTheFirst,
    /// Tokens of an answer that began under another version.
    WithinAnAnswer,
}

/// The target whose reports stand part of the way back to older weights.
pub(super) fn blending(mut target: Target, when: When, back: f64) -> Target {
    let scorer = target.scorer.clone();
    let wrap = |(inner, scorer)| Arc::new(Blended { inner, shared: Arc::new(Shared::new(scorer, when, back)) }) as _;
    target.sampler =
        target.sampler.map(|inner| scorer.map_or_else(|| inner.clone(), |scorer| wrap((inner.clone(), scorer))));
    target
}

struct Blended {
    inner: Arc<dyn Sampler>,
    shared: Arc<Shared>,
}

struct Shared {
    scorer: Arc<dyn Scorer>,
    when: When,
    back: f64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    first: Option<WeightVersion>,
    answers: BTreeMap<RolloutId, Answer>,
}

#[derive(Clone)]
struct Answer {
    request: Request,
    tokens: Vec<TokenId>,
    first: Option<WeightVersion>,
}

impl Shared {
    fn new(scorer: Arc<dyn Scorer>, when: When, back: f64) -> Self {
        Self { scorer, when, back, state: Mutex::default() }
    }

    fn open(&self, requests: &[SampleRequest]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for SampleRequest { request, resumed } in requests {
            let answer = Answer { request: request.clone(), tokens: resumed.clone(), first: None };
            state.answers.insert(request.id, answer);
        }
    }

    /// The answer before this delta, and the older version its tokens should show.
    fn note(&self, delta: &Delta) -> Option<(Answer, WeightVersion)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = delta.stamp.version()?;
        let first = *state.first.get_or_insert(now);
        let answer = state.answers.get_mut(&delta.rollout)?;
        let began = *answer.first.get_or_insert(now);
        let before = answer.clone();
        answer.tokens.extend(delta.behavior.tokens());
        let older = if self.when == When::WithinAnAnswer { began } else { first };
        (older != now).then_some((before, older))
    }

    async fn blend(&self, delta: Delta) -> PortResult<Delta> {
        match self.note(&delta) {
            Some((before, older)) if !delta.behavior.is_empty() => self.rewritten(delta, &before, older).await,
            _ => Ok(delta),
        }
    }

    async fn rewritten(&self, mut delta: Delta, before: &Answer, older: WeightVersion) -> PortResult<Delta> {
        let Some(now) = delta.stamp.version() else { return Ok(delta) };
        let batch = alone(&delta, before)?;
        let (old, new) = (self.scorer.score(&batch, older).await?, self.scorer.score(&batch, now).await?);
        let mut behavior = BehaviorDistribution::default();
        for (old, new) in crate::difference::rows(&batch, &old).zip(crate::difference::rows(&batch, &new)) {
            let pairs = old.scores.log_p.iter().zip(&new.scores.log_p);
            let shifts: Vec<f64> = pairs.map(|(old, new)| self.back * (old - new)).collect();
            behavior.push(&shifted(&old.support, &shifts).map_err(|error| PortError::Failed(error.to_string()))?);
        }
        delta.behavior = behavior;
        Ok(delta)
    }
}

fn shifted(support: &Support, shifts: &[f64]) -> Result<Support, lockstep_core::support::SupportError> {
    let by_id: BTreeMap<TokenId, f64> = support.ids().iter().copied().zip(shifts.iter().copied()).collect();
    super::rows::with_log_q(support, |id, log_q| log_q + by_id.get(&id).copied().unwrap_or_default())
}

/// The delta as a batch of its own, everything before it as its prompt.
fn alone(delta: &Delta, before: &Answer) -> PortResult<Batch> {
    let failed = |error: &dyn std::fmt::Display| PortError::Failed(error.to_string());
    let id = RolloutId { plan: before.request.id.plan, index: 0 };
    let prompt = [&before.request.prompt[..], &before.tokens].concat();
    let request = Request { id, group: 0, prompt, params: before.request.params.clone() };
    let mut plan = BatchPlan::restore(id.plan, vec![request.clone()]).map_err(|error| failed(&error))?;
    let finish = Some(delta.finish.unwrap_or(FinishReason::Length));
    let delta = Delta { rollout: id, start: 0, finish, ..delta.clone() };
    plan.arrive(Rollout::fold(request, [delta]).map_err(|error| failed(&error))?).map_err(|error| failed(&error))?;
    plan.seal().map_err(|error| failed(&error))
}

#[async_trait]
impl Sampler for Blended {
    fn capabilities(&self) -> SamplerCapabilities {
        self.inner.capabilities()
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        self.shared.open(&requests);
        let shared = self.shared.clone();
        let inner = self.inner.generate(requests).await?;
        let blend = move |delta: PortResult<Delta>| {
            let shared = shared.clone();
            async move { shared.blend(delta?).await }.boxed()
        };
        Ok(Box::pin(inner.then(blend)))
    }

    async fn cancel(&self, rollouts: &[RolloutId]) -> PortResult<()> {
        self.inner.cancel(rollouts).await
    }
}
