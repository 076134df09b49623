//! What the pair's queue saw: a short run, recorded when the pair was made.

use super::sampler::MemorySampler;
use crate::{draw::Shape, target::Ask};
use async_trait::async_trait;
use lockstep_core::{
    delta::FinishReason,
    ports::{Outcome, Outcomes, PortResult, Queue, QueueEntry, SampleRequest},
    rollout::Request,
};

const PLANS: u64 = 4;

/// Plans that were answered, each trained on as it was dispatched.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct History {
    plans: Vec<Vec<Outcome>>,
}

impl History {
    /// Answers a few plans. A plan that cannot be opened or answered is left out.
    pub fn recorded(ask: &Ask, sampler: &MemorySampler) -> Self {
        let plan = |number: u64| {
            let shape = Shape { question: 0x9e00 + number, answers: 4, max_new_tokens: 2 * ask.max_new_tokens };
            let plan = ask.plan(&ask.prompts, shape).ok()?;
            plan.requests().iter().map(|request| outcome(request, sampler)).collect()
        };
        Self { plans: (0..PLANS).filter_map(plan).collect() }
    }

    fn trained(&self) -> &[Vec<Outcome>] {
        // The last plan is still on its way.
        &self.plans[..self.plans.len().saturating_sub(1)]
    }
}

/// What became of a request. Rewards are made up: in every second group all answers have the same.
fn outcome(request: &Request, sampler: &MemorySampler) -> Option<Outcome> {
    let asked = SampleRequest { request: request.clone(), resumed: vec![] };
    let deltas = sampler.answer(asked).collect::<PortResult<Vec<_>>>().ok()?;
    let reward = if request.group.is_multiple_of(2) { request.group / 2 } else { request.id.index } % 2;
    Some(Outcome {
        rollout: request.id,
        group: request.group,
        length: deltas.iter().map(|delta| delta.behavior.len() as u32).sum(),
        cut: deltas.last().is_some_and(|delta| delta.finish == Some(FinishReason::Length)),
        reward: f64::from(reward),
    })
}

fn entries(outcomes: &[Outcome]) -> Vec<QueueEntry> {
    outcomes.iter().map(|outcome| QueueEntry { rollout: outcome.rollout, length: outcome.length }).collect()
}

#[async_trait]
impl Queue for History {
    async fn generated(&self) -> PortResult<Vec<QueueEntry>> {
        Ok(entries(&self.plans.concat()))
    }

    async fn consumed(&self) -> PortResult<Vec<Vec<QueueEntry>>> {
        Ok(self.trained().iter().map(|outcomes| entries(outcomes)).collect())
    }

    async fn outcomes(&self) -> PortResult<Outcomes> {
        Ok(Outcomes { generated: self.plans.concat(), trained: self.trained().to_vec() })
    }
}
