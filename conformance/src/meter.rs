//! Counts the tokens a sampler draws, and ends the asking at a budget.

use crate::target::Target;
use async_trait::async_trait;
use futures_util::StreamExt;
use lockstep_core::{
    Delta, RolloutId,
    ports::{DeltaStream, PortError, PortResult, SampleRequest, Sampler, SamplerCapabilities},
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Tokens asked for and drawn.
#[derive(Debug)]
pub(crate) struct Meter {
    budget: u64,
    asked: AtomicU64,
    drawn: AtomicU64,
}

impl Meter {
    pub(crate) fn new(budget: u64) -> Self {
        Self { budget, asked: AtomicU64::new(0), drawn: AtomicU64::new(0) }
    }

    /// Tokens drawn so far.
    pub(crate) fn drawn(&self) -> u64 {
        self.drawn.load(Ordering::SeqCst)
    }

    /// Notes a request before it is sent.
    fn ask(&self, tokens: u64) -> PortResult<()> {
        let drawn = self.drawn();
        if drawn + tokens > self.budget {
            let budget = self.budget;
            return Err(PortError::Refused(format!(
                "{tokens} tokens more after {drawn} would exceed the budget of {budget}"
            )));
        }
        self.asked.fetch_add(tokens, Ordering::SeqCst);
        Ok(())
    }

    /// Notes what came back; more than was ever asked for is an error.
    fn count(&self, delta: Delta) -> PortResult<Delta> {
        let tokens = delta.behavior.len() as u64;
        let drawn = self.drawn.fetch_add(tokens, Ordering::SeqCst) + tokens;
        let asked = self.asked.load(Ordering::SeqCst);
        // A token or two more than asked are for a check to find, an endless stream is not.
        if drawn > asked + asked / 4 + 64 {
            return Err(PortError::Failed(format!("the sampler drew {drawn} tokens where {asked} were asked for")));
        }
        Ok(delta)
    }
}

/// The target with its sampler on a meter.
pub(crate) fn metered(target: &Target, meter: &Arc<Meter>) -> Target {
    let on_meter = |inner| Arc::new(Metered { inner, meter: meter.clone() }) as _;
    Target { sampler: target.sampler.clone().map(on_meter), ..target.clone() }
}

struct Metered {
    inner: Arc<dyn Sampler>,
    meter: Arc<Meter>,
}

#[async_trait]
impl Sampler for Metered {
    fn capabilities(&self) -> SamplerCapabilities {
        self.inner.capabilities()
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        let open = |asked: &SampleRequest| {
            u64::from(asked.request.params.limits().max_new_tokens).saturating_sub(asked.resumed.len() as u64)
        };
        self.meter.ask(requests.iter().map(open).sum())?;
        let meter = self.meter.clone();
        let deltas = self.inner.generate(requests).await?;
        Ok(Box::pin(deltas.map(move |delta| delta.and_then(|delta| meter.count(delta)))))
    }

    async fn cancel(&self, rollouts: &[RolloutId]) -> PortResult<()> {
        self.inner.cancel(rollouts).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{draw, pair};

    #[tokio::test]
    async fn the_budget_ends_the_asking_and_says_at_what_number() {
        let meter = Arc::new(Meter::new(100));
        let target = metered(&pair::target(1), &meter);
        let shape = draw::Shape { question: 1, answers: 1, max_new_tokens: 12 };
        let drawn = draw::sample(&target, shape).await.unwrap().tokens() as u64;
        assert_eq!(meter.drawn(), drawn);
        let shape = draw::Shape { question: 2, answers: 3, max_new_tokens: 12 };
        let error = draw::sample(&target, shape).await.unwrap_err().to_string();
        assert_eq!(error, format!("port sampler: 144 tokens more after {drawn} would exceed the budget of 100"));
    }
}
