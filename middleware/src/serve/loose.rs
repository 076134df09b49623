//! Requests that name no rollout: each is a plan of its own, known here as long as it can be rewarded or resumed.

use super::{draw::Order, refusal::Refusal};
use crate::dispatch::FIRST_LOOSE;
use lockstep_core::{Delta, RolloutId, SamplingParams, TokenId, rollout::Request};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Requests that are remembered for their rewards.
const REMEMBERED: usize = 65_536;
/// Tokens of broken answers that are kept to be resumed.
const KEPT_TOKENS: usize = 1 << 20;

#[derive(Debug)]
struct Inner {
    next: u64,
    asked: VecDeque<(u64, u32)>,
    broken: VecDeque<(Request, Vec<Arc<Delta>>)>,
    kept_tokens: usize,
}

/// All requests of no plan.
#[derive(Debug)]
pub struct Loose(Mutex<Inner>);

impl Default for Loose {
    fn default() -> Self {
        Self::from_number(FIRST_LOOSE)
    }
}

impl Loose {
    /// Their numbers begin here.
    pub fn from_number(next: u64) -> Self {
        let (asked, broken, kept_tokens) = Default::default();
        Self(Mutex::new(Inner { next, asked, broken, kept_tokens }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The requests of a client that names no rollout. `params` has one entry an answer.
    ///
    /// # Errors
    /// Those of `params`.
    pub fn requests(
        &self,
        prompts: &[Vec<TokenId>],
        params: impl Fn(RolloutId) -> Result<SamplingParams, Refusal>,
        n: u32,
    ) -> Result<Vec<Request>, Refusal> {
        let mut inner = self.inner();
        let plan = inner.next;
        let answers =
            prompts.iter().enumerate().flat_map(|(group, prompt)| (0..n).map(move |_| (group as u32, prompt)));
        let requests = answers.enumerate().map(|(index, (group, prompt))| {
            let id = RolloutId { plan, index: index as u32 };
            Ok(Request { id, group, prompt: prompt.clone(), params: params(id)? })
        });
        let requests = requests.collect::<Result<Vec<_>, Refusal>>()?;
        inner.next += 1;
        if inner.asked.len() == REMEMBERED {
            inner.asked.pop_front();
        }
        inner.asked.push_back((plan, requests.len() as u32));
        Ok(requests)
    }

    /// Whether a rollout can still be rewarded.
    ///
    /// # Errors
    /// An unknown one.
    pub fn check(&self, id: RolloutId) -> Result<(), Refusal> {
        let inner = self.inner();
        let found = inner.asked.binary_search_by_key(&id.plan, |&(plan, _)| plan).ok();
        let answers = found.and_then(|at| inner.asked.get(at)).map_or(0, |&(_, answers)| answers);
        if id.index < answers { Ok(()) } else { Err(Refusal::unknown(format!("rollout {id} is not known here"))) }
    }

    /// Keeps an answer that broke off with what there is of it; the oldest ones make room.
    pub fn broke(&self, request: Request, deltas: Vec<Arc<Delta>>) {
        let mut inner = self.inner();
        inner.kept_tokens += tokens(&deltas);
        inner.broken.push_back((request, deltas));
        while inner.kept_tokens > KEPT_TOKENS && inner.broken.len() > 1 {
            let oldest = inner.broken.pop_front();
            inner.kept_tokens -= oldest.map_or(0, |(_, deltas)| tokens(&deltas));
        }
    }

    /// The order that goes on with an answer that broke off.
    ///
    /// # Errors
    /// An unknown rollout, another prompt or other parameters.
    pub fn take(&self, id: RolloutId, prompt: &[TokenId], params: &SamplingParams) -> Result<Order, Refusal> {
        let mut inner = self.inner();
        let unknown =
            || Refusal::unknown(format!("rollout {id} is of no open plan, and nothing of it waits to be resumed"));
        let at = inner.broken.iter().position(|(request, _)| request.id == id).ok_or_else(unknown)?;
        let same =
            inner.broken.get(at).is_some_and(|(request, _)| request.prompt == prompt && request.params == *params);
        if !same {
            let message = format!("rollout {id} was asked before, with another prompt or other parameters");
            return Err(Refusal::conflict(message));
        }
        let (request, have) = inner.broken.remove(at).ok_or_else(unknown)?;
        inner.kept_tokens -= tokens(&have);
        Ok(Order::loose(request, have))
    }
}

fn tokens(deltas: &[Arc<Delta>]) -> usize {
    deltas.iter().map(|delta| delta.behavior.len()).sum()
}
