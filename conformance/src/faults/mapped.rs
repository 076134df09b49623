//! A sampler whose deltas are rewritten on their way out.

use async_trait::async_trait;
use futures_util::StreamExt;
use lockstep_core::{
    BehaviorDistribution, Delta, RolloutId, Support,
    ports::{DeltaStream, PortError, PortResult, SampleRequest, Sampler, SamplerCapabilities},
    support::SupportError,
};
use std::sync::Arc;

/// Rewrites a delta.
pub(super) type Rewrite = dyn Fn(Delta) -> PortResult<Delta> + Send + Sync;

/// The inner sampler, its deltas rewritten.
pub(super) struct Mapped {
    inner: Arc<dyn Sampler>,
    rewrite: Arc<Rewrite>,
}

impl Mapped {
    pub(super) fn around(inner: Arc<dyn Sampler>, rewrite: Arc<Rewrite>) -> Arc<dyn Sampler> {
        Arc::new(Self { inner, rewrite })
    }

    /// Every support rewritten; the row is counted from the first token of the answer.
    pub(super) fn supports(
        inner: Arc<dyn Sampler>,
        rewrite: impl Fn(&Support, (RolloutId, u64)) -> Result<Support, SupportError> + Send + Sync + 'static,
    ) -> Arc<dyn Sampler> {
        let rewrite = move |mut delta: Delta| {
            let mut behavior = BehaviorDistribution::default();
            for (row, support) in (u64::from(delta.start)..).zip(delta.behavior.rows()) {
                behavior.push(
                    &rewrite(&support, (delta.rollout, row)).map_err(|error| PortError::Failed(error.to_string()))?,
                );
            }
            delta.behavior = behavior;
            Ok(delta)
        };
        Self::around(inner, Arc::new(rewrite))
    }
}

#[async_trait]
impl Sampler for Mapped {
    fn capabilities(&self) -> SamplerCapabilities {
        self.inner.capabilities()
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        let rewrite = self.rewrite.clone();
        let inner = self.inner.generate(requests).await?;
        Ok(Box::pin(inner.map(move |delta| delta.and_then(|delta| rewrite(delta)))))
    }

    async fn cancel(&self, rollouts: &[RolloutId]) -> PortResult<()> {
        self.inner.cancel(rollouts).await
    }
}
