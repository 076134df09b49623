//! What the pair's queue saw: a short run, recorded when the pair was made.

use super::sampler::MemorySampler;
use crate::{draw::Shape, target::Ask};
use async_trait::async_trait;
use lockstep_core::{
    RolloutId,
    ports::{PortResult, Queue, QueueEntry, SampleRequest},
    rollout::Request,
};
use std::sync::Arc;

const PLANS: u64 = 4;

/// Plans that were answered, each trained on as it was dispatched.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct History {
    plans: Vec<Vec<QueueEntry>>,
}

impl History {
    /// Answers a few plans. A plan that cannot be opened or answered is left out.
    pub fn recorded(ask: &Ask, sampler: &Arc<MemorySampler>) -> Self {
        let plan = |number: u64| {
            let shape = Shape { question: 0x9e00 + number, answers: 4, max_new_tokens: 2 * ask.max_new_tokens };
            let plan = ask.plan(&ask.prompts, shape).ok()?;
            let fresh = |request: &Request| SampleRequest { request: request.clone(), resumed: vec![] };
            plan.requests().iter().map(|request| entry(request.id, sampler, &fresh(request))).collect()
        };
        Self { plans: (0..PLANS).filter_map(plan).collect() }
    }
}

fn entry(rollout: RolloutId, sampler: &MemorySampler, asked: &SampleRequest) -> Option<QueueEntry> {
    let deltas = sampler.answer(asked).ok()?;
    Some(QueueEntry { rollout, length: deltas.iter().map(|delta| delta.behavior.len() as u32).sum() })
}

#[async_trait]
impl Queue for History {
    async fn generated(&self) -> PortResult<Vec<QueueEntry>> {
        Ok(self.plans.concat())
    }

    /// The last plan is still on its way.
    async fn consumed(&self) -> PortResult<Vec<Vec<QueueEntry>>> {
        Ok(self.plans[..self.plans.len().saturating_sub(1)].to_vec())
    }
}
