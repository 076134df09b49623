//! A sampler whose requests are rewritten on their way in, and whose deltas are on their way out.

use crate::target::Target;
use async_trait::async_trait;
use futures_util::StreamExt;
use lockstep_core::{
    BehaviorDistribution, Delta, RolloutId, SamplingParams, Support, WeightVersion,
    ports::{DeltaStream, PortError, PortResult, SampleRequest, Sampler, SamplerCapabilities},
    rollout::Request,
    sampling::{Limits, Truncation},
    support::SupportError,
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// The call a delta belongs to.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// What was asked, before it was rewritten.
    pub(super) request: SampleRequest,
    /// Requests in the same call.
    pub(super) beside: usize,
    /// Calls before this one.
    pub(super) before: u64,
}

/// Where a row stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct At<'a> {
    /// The call.
    pub(super) call: &'a Call,
    /// The row, counted from the first token of the answer.
    pub(super) row: u64,
    /// What the label says.
    pub(super) version: Option<WeightVersion>,
}

impl At<'_> {
    /// A key of the row.
    pub(super) fn key(&self) -> [u64; 3] {
        let RolloutId { plan, index } = self.call.request.request.id;
        [plan, u64::from(index), self.row]
    }

    /// The parameters that were asked for.
    pub(super) fn params(&self) -> &SamplingParams {
        &self.call.request.request.params
    }
}

type Before = dyn Fn(&SampleRequest) -> PortResult<SampleRequest> + Send + Sync;
type After = dyn Fn(Delta, &Call) -> PortResult<Delta> + Send + Sync;

struct Tampered {
    inner: Arc<dyn Sampler>,
    before: Arc<Before>,
    after: Arc<After>,
    calls: AtomicU64,
}

#[async_trait]
impl Sampler for Tampered {
    fn capabilities(&self) -> SamplerCapabilities {
        self.inner.capabilities()
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        let before = self.calls.fetch_add(1, Ordering::SeqCst);
        let call = |request: &SampleRequest| Call { request: request.clone(), beside: requests.len(), before };
        let calls: BTreeMap<RolloutId, Call> =
            requests.iter().map(|request| (request.request.id, call(request))).collect();
        let rewritten = requests.iter().map(|request| (self.before)(request)).collect::<PortResult<Vec<_>>>()?;
        let after = self.after.clone();
        let rewrite = move |delta: Delta| match calls.get(&delta.rollout) {
            Some(call) => after(delta, call),
            None => Err(PortError::Failed(format!("rollout {} was not asked for", delta.rollout))),
        };
        let inner = self.inner.generate(rewritten).await?;
        Ok(Box::pin(inner.map(move |delta| delta.and_then(&rewrite))))
    }

    async fn cancel(&self, rollouts: &[RolloutId]) -> PortResult<()> {
        self.inner.cancel(rollouts).await
    }
}

/// The target with requests rewritten.
pub(super) fn asking(
    target: Target,
    before: impl Fn(&SampleRequest) -> PortResult<SampleRequest> + Send + Sync + 'static,
) -> Target {
    tampering(target, before, |delta, _| Ok(delta))
}

/// The target with deltas rewritten.
pub(super) fn answering(
    target: Target,
    after: impl Fn(Delta, &Call) -> PortResult<Delta> + Send + Sync + 'static,
) -> Target {
    tampering(target, |request| Ok(request.clone()), after)
}

/// The target with every support rewritten.
pub(super) fn reporting(
    target: Target,
    rewrite: impl Fn(&Support, At<'_>) -> Result<Support, SupportError> + Send + Sync + 'static,
) -> Target {
    answering(target, supports(rewrite))
}

/// The target with requests and supports rewritten.
pub(super) fn asking_and_reporting(
    target: Target,
    before: impl Fn(&SampleRequest) -> PortResult<SampleRequest> + Send + Sync + 'static,
    rewrite: impl Fn(&Support, At<'_>) -> Result<Support, SupportError> + Send + Sync + 'static,
) -> Target {
    tampering(target, before, supports(rewrite))
}

fn tampering(
    mut target: Target,
    before: impl Fn(&SampleRequest) -> PortResult<SampleRequest> + Send + Sync + 'static,
    after: impl Fn(Delta, &Call) -> PortResult<Delta> + Send + Sync + 'static,
) -> Target {
    let (before, after) = (Arc::new(before), Arc::new(after));
    let wrap = |inner| Arc::new(Tampered { inner, before, after, calls: AtomicU64::new(0) }) as _;
    target.sampler = target.sampler.map(wrap);
    target
}

fn supports(
    rewrite: impl Fn(&Support, At<'_>) -> Result<Support, SupportError> + Send + Sync + 'static,
) -> impl Fn(Delta, &Call) -> PortResult<Delta> + Send + Sync + 'static {
    move |mut delta, call| {
        let version = delta.stamp.version();
        let mut behavior = BehaviorDistribution::default();
        for (row, support) in (u64::from(delta.start)..).zip(delta.behavior.rows()) {
            let rewritten = rewrite(&support, At { call, row, version });
            behavior.push(&rewritten.map_err(|error| PortError::Failed(error.to_string()))?);
        }
        delta.behavior = behavior;
        Ok(delta)
    }
}

/// The same request with other parameters.
pub(super) fn with_params(
    asked: &SampleRequest,
    change: impl FnOnce(&mut f64, &mut Truncation, &mut Limits),
) -> PortResult<SampleRequest> {
    let params = &asked.request.params;
    let (mut temperature, mut truncation) = (params.temperature(), *params.truncation());
    let mut limits = params.limits().clone();
    change(&mut temperature, &mut truncation, &mut limits);
    let params = SamplingParams::new(temperature, truncation, limits, params.seed())
        .map_err(|error| PortError::Refused(error.to_string()))?;
    Ok(SampleRequest { request: Request { params, ..asked.request.clone() }, resumed: asked.resumed.clone() })
}
