//! A sampler that draws otherwise than the one inside: one token at a time, each drawn again from the inner report.

use crate::mix::unit;
use async_trait::async_trait;
use futures_util::{TryStreamExt, stream};
use lockstep_core::{
    BehaviorDistribution, Delta, RolloutId, SamplingParams, Support, TokenId,
    delta::FinishReason,
    ports::{DeltaStream, PortError, PortResult, SampleRequest, Sampler, SamplerCapabilities},
    rollout::Request,
    sampling::{Limits, Truncation},
    support::SupportError,
};
use std::{collections::BTreeMap, sync::Arc};

/// Draws with a uniform number from a report, and reports anew.
pub(super) type Redraw = fn(&Support, &SamplingParams, f64) -> Result<Support, SupportError>;

/// The temperature and the filters the inner sampler is asked with.
pub(super) type Widen = fn(&SamplingParams) -> (f64, Truncation);

/// The inner sampler asked for one token at a time. Where it cannot resume, longer answers pass through as they are.
pub(super) struct Stepwise {
    /// The sampler.
    pub(super) inner: Arc<dyn Sampler>,
    /// The other draw.
    pub(super) redraw: Redraw,
    /// Other parameters for the inner sampler.
    pub(super) widen: Option<Widen>,
}

impl Stepwise {
    /// The next token of every open request.
    async fn round(&self, open: &mut Vec<SampleRequest>) -> PortResult<Vec<Delta>> {
        let one_more = open.iter().map(|asked| one_more(asked, self.widen)).collect::<PortResult<Vec<_>>>()?;
        let deltas: Vec<Delta> = self.inner.generate(one_more).await?.try_collect().await?;
        let mut by_rollout: BTreeMap<RolloutId, Delta> =
            deltas.into_iter().filter(|delta| !delta.behavior.is_empty()).map(|delta| (delta.rollout, delta)).collect();
        let mut drawn = Vec::new();
        for asked in open.iter_mut() {
            let missing = || PortError::Failed(format!("rollout {} got no token", asked.request.id));
            let delta = by_rollout.remove(&asked.request.id).ok_or_else(missing)?;
            drawn.push(self.redrawn(asked, delta)?);
        }
        let ended = |id| drawn.iter().any(|delta: &Delta| delta.rollout == id && delta.finish.is_some());
        open.retain(|asked| !ended(asked.request.id));
        Ok(drawn)
    }

    fn redrawn(&self, asked: &mut SampleRequest, mut delta: Delta) -> PortResult<Delta> {
        let params = &asked.request.params;
        let u = unit(&[params.seed(), asked.resumed.len() as u64, 0x7e]);
        let support =
            (self.redraw)(&delta.behavior.row(0), params, u).map_err(|error| PortError::Failed(error.to_string()))?;
        let token = support.sampled().token;
        delta.behavior = BehaviorDistribution::default();
        delta.behavior.push(&support);
        delta.finish = finish(token, asked.resumed.len() + 1, params.limits());
        asked.resumed.push(token);
        Ok(delta)
    }
}

fn finish(token: TokenId, length: usize, limits: &Limits) -> Option<FinishReason> {
    let stopped = limits.stop.contains(&token).then_some(FinishReason::Stop(token));
    stopped.or((length >= limits.max_new_tokens as usize).then_some(FinishReason::Length))
}

fn one_more(asked: &SampleRequest, widen: Option<Widen>) -> PortResult<SampleRequest> {
    let params = &asked.request.params;
    let max_new_tokens = asked.resumed.len() as u32 + 1;
    let limits = Limits { max_new_tokens, ..params.limits().clone() };
    let (temperature, truncation) =
        widen.map_or_else(|| (params.temperature(), *params.truncation()), |widen| widen(params));
    let params = SamplingParams::new(temperature, truncation, limits, params.seed())
        .map_err(|error| PortError::Refused(error.to_string()))?;
    Ok(SampleRequest { request: Request { params, ..asked.request.clone() }, resumed: asked.resumed.clone() })
}

#[async_trait]
impl Sampler for Stepwise {
    fn capabilities(&self) -> SamplerCapabilities {
        self.inner.capabilities()
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        let short = |asked: &SampleRequest| asked.request.params.limits().max_new_tokens == 1;
        if !self.inner.capabilities().resumes && !requests.iter().all(short) {
            return self.inner.generate(requests).await;
        }
        let (mut open, mut deltas) = (requests, Vec::new());
        while !open.is_empty() {
            deltas.extend(self.round(&mut open).await?);
        }
        Ok(Box::pin(stream::iter(deltas.into_iter().map(Ok))))
    }

    async fn cancel(&self, rollouts: &[RolloutId]) -> PortResult<()> {
        self.inner.cancel(rollouts).await
    }
}
