//! Fills a plan: sends its requests, writes what comes back to the ledger, and seals it when everybody is there.
//!
//! Looks at neither length nor reward; waits for the slowest.

use crate::ledger::{Ledger, LedgerError, Record};
use futures_util::StreamExt;
use lockstep_core::{
    Batch, BatchPlan, Delta, Rollout, RolloutId, TokenId,
    plan::PlanError,
    ports::{PortError, SampleRequest, Sampler},
    rollout::{FoldError, Request},
};
use std::collections::BTreeMap;

/// Most deltas that one sync of the ledger makes durable.
const DELTAS_A_SYNC: usize = 1024;

/// How often an answer is taken up again after the sampler broke off.
const MAX_INTERRUPTIONS: u32 = 3;

/// A plan that could not be filled.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// The ledger could not keep what arrived.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The sampler refused or broke.
    #[error("plan {plan}, after {arrived} of {planned} answers: {source}")]
    Sampler {
        /// The plan.
        plan: u64,
        /// Answers complete by then.
        arrived: usize,
        /// Answers planned.
        planned: usize,
        /// What the sampler said.
        #[source]
        source: PortError,
    },
    /// The deltas of an answer do not make one.
    #[error(transparent)]
    Fold(#[from] FoldError),
    /// An answer the plan does not accept.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Opens the plan in the ledger, has it sampled, seals it.
///
/// A sampler that breaks off is asked again for what is missing, from the tokens that are there already.
///
/// # Errors
/// A sampler that refuses or keeps breaking off, a ledger that cannot keep what arrived, answers that do not fit the plan.
pub async fn fill(mut plan: BatchPlan, sampler: &dyn Sampler, ledger: &mut Ledger) -> Result<Batch, DispatchError> {
    ledger.append(&Record::PlanOpened { plan: plan.number(), requests: plan.requests().to_vec() })?;
    ledger.sync()?;
    let mut answers = Answers::default();
    let mut interruptions = 0;
    while let Err(source) = collect(&plan, &mut answers, sampler, ledger).await? {
        interruptions += 1;
        let gone = matches!(source, PortError::Unavailable(_)) && interruptions <= MAX_INTERRUPTIONS;
        if !gone {
            let (number, planned) = (plan.number(), plan.requests().len());
            return Err(DispatchError::Sampler { plan: number, arrived: answers.finished(), planned, source });
        }
        tracing::warn!(plan = plan.number(), %source, "resuming what the sampler broke off");
    }
    for request in plan.requests().to_vec() {
        let deltas = answers.take(request.id);
        plan.arrive(Rollout::fold(request, deltas)?)?;
    }
    let number = plan.number();
    let batch = plan.seal()?;
    ledger.append(&Record::PlanSealed { plan: number })?;
    ledger.sync()?;
    Ok(batch)
}

/// One stream of the sampler, to its end; the inner error is the sampler's.
async fn collect(
    plan: &BatchPlan,
    answers: &mut Answers,
    sampler: &dyn Sampler,
    ledger: &mut Ledger,
) -> Result<Result<(), PortError>, DispatchError> {
    let open = plan.requests().iter().filter(|request| !answers.is_finished(request.id));
    let requests: Vec<SampleRequest> = open.map(|request| answers.request(request)).collect();
    if requests.is_empty() {
        return Ok(Ok(()));
    }
    let deltas = match sampler.generate(requests).await {
        Ok(deltas) => deltas,
        Err(error) => return Ok(Err(error)),
    };
    let mut ready = deltas.ready_chunks(DELTAS_A_SYNC);
    while let Some(chunk) = ready.next().await {
        let mut broke = None;
        let mut arrived = Vec::with_capacity(chunk.len());
        for delta in chunk {
            match delta {
                Ok(delta) => arrived.push(delta),
                Err(error) => broke = Some(error),
            }
        }
        arrived.iter().try_for_each(|delta| ledger.append_delta(delta))?;
        ledger.sync()?;
        arrived.into_iter().for_each(|delta| answers.acknowledge(delta));
        if let Some(error) = broke {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}

/// What is durable of each answer.
#[derive(Default)]
struct Answers(BTreeMap<RolloutId, Vec<Delta>>);

impl Answers {
    fn acknowledge(&mut self, delta: Delta) {
        self.0.entry(delta.rollout).or_default().push(delta);
    }

    fn is_finished(&self, rollout: RolloutId) -> bool {
        self.0.get(&rollout).and_then(|deltas| deltas.last()).is_some_and(|delta| delta.finish.is_some())
    }

    fn finished(&self) -> usize {
        self.0.keys().filter(|rollout| self.is_finished(**rollout)).count()
    }

    fn request(&self, request: &Request) -> SampleRequest {
        let deltas = self.0.get(&request.id).into_iter().flatten();
        let resumed: Vec<TokenId> = deltas.flat_map(|delta| delta.behavior.tokens().iter().copied()).collect();
        SampleRequest { request: request.clone(), resumed }
    }

    fn take(&mut self, rollout: RolloutId) -> Vec<Delta> {
        self.0.remove(&rollout).unwrap_or_default()
    }
}
