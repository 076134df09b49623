//! Pull: plans that the gateway opens itself, from prompts, and fills through its own engines, so that trainers ask for batches.
//!
//! Every answer is drawn like that of a trainer which drives the loop: by [`super::draw`], which knows of the weight updates and
//! pauses that pass through the gateway.

use super::{
    Gateway,
    draw::{self, DrawError, Order},
    prompts::Prompts,
    refusal::Refusal,
};
use crate::ledger::Record;
use lockstep_core::{BatchPlan, SamplingParams, plan::PromptGroup, reward::Outcome, rollout::Request};
use std::{sync::Arc, time::Duration};
use tokio::{sync::OwnedSemaphorePermit, task::JoinSet};

/// How judging may come out when nobody says a reward.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judging {
    /// How long after its plan is complete an answer of a pulled plan waits for its reward.
    pub limit: Duration,
    /// What an answer counts as that could not be judged.
    pub counts_as: f64,
    /// How often judging may fail before that.
    pub attempts: u32,
}

impl Default for Judging {
    fn default() -> Self {
        Self { limit: Duration::from_secs(600), counts_as: 0.0, attempts: 1 }
    }
}

/// What batches are made of.
#[derive(Debug)]
pub struct Pull {
    /// The prompts, in their order.
    pub prompts: Prompts,
    /// Prompts of a plan.
    pub groups: u32,
    /// Answers to each.
    pub answers: u32,
    /// How they are sampled; every answer's seed is derived from this one's and its name.
    pub params: SamplingParams,
    /// Plans after which no more come.
    pub plans: Option<u64>,
    /// Pause before an answer that broke off goes on; doubled every time.
    pub pause: Duration,
}

impl Pull {
    /// The plan of a number: a function of the number, the prompts and the seed alone.
    ///
    /// # Errors
    /// No answers, no prompts.
    fn plan(&self, number: u64) -> Result<BatchPlan, Refusal> {
        let groups = (0..self.groups).map(|group| PromptGroup {
            prompt: self.prompts.ids(number, group, self.groups).to_vec(),
            answers: vec![self.params.clone(); self.answers as usize],
        });
        let plan = BatchPlan::open(number, groups.collect());
        let opened = plan.map_err(|error| Refusal::internal(error.to_string()))?;
        let requests = opened.requests().iter().map(|request| {
            let (params, seed) = (&self.params, super::ask::seed_of(request.id, self.params.seed()));
            let limits = params.limits().clone();
            let params = SamplingParams::new(params.temperature(), *params.truncation(), limits, seed);
            let params = params.map_err(|error| Refusal::internal(error.to_string()))?;
            Ok(Request { params, ..request.clone() })
        });
        let requests = requests.collect::<Result<Vec<_>, Refusal>>()?;
        BatchPlan::restore(number, requests).map_err(|error| Refusal::internal(error.to_string()))
    }

    /// The line of the prompts' file that a group of a plan is from.
    pub(super) fn line(&self, plan: u64, group: u32) -> usize {
        self.prompts.line(plan, group, self.groups)
    }
}

/// Opens plans as there is room, and fills them, until there are no more; goes on with those that were open before a restart.
pub async fn feed(gateway: Arc<Gateway>, pull: Arc<Pull>) {
    let mut filling = JoinSet::new();
    for open in gateway.plans.open_plans() {
        filling.spawn(fill(gateway.clone(), pull.clone(), open.plan));
    }
    loop {
        let number = gateway.plans.room().await;
        if pull.plans.is_some_and(|plans| number >= plans) {
            gateway.plans.feed(false);
            break;
        }
        if let Err(refusal) = open(&gateway, &pull, number).await {
            gateway.plans.stop(refusal.to_string());
            break;
        }
        filling.spawn(fill(gateway.clone(), pull.clone(), number));
        while filling.try_join_next().is_some() {}
    }
    while filling.join_next().await.is_some() {}
}

async fn open(gateway: &Gateway, pull: &Pull, number: u64) -> Result<(), Refusal> {
    let plan = pull.plan(number)?;
    gateway.keep(Record::PlanOpened { plan: number, requests: plan.requests().to_vec() }).await?;
    Ok(gateway.plans.open_plan(&plan)?)
}

/// Has a plan's answers drawn, in dispatch order as there is room, and waits for their rewards.
async fn fill(gateway: Arc<Gateway>, pull: Arc<Pull>, plan: u64) {
    let mut drawing = JoinSet::new();
    for request in gateway.plans.unanswered(plan) {
        // The semaphore is never closed.
        let Ok(permit) = gateway.in_flight.clone().acquire_owned().await else { return };
        drawing.spawn(answer(gateway.clone(), pull.pause, request, permit));
    }
    if let Err(refusal) = gateway.sealed(plan).await {
        return gateway.plans.stop(refusal.to_string());
    }
    let limit = gateway.options.judging.limit;
    if tokio::time::timeout(limit, gateway.plans.judged(plan)).await.is_ok() {
        return;
    }
    for rollout in gateway.plans.unjudged(plan) {
        let reason = format!("no reward within {} seconds of the last answer of its plan", limit.as_secs_f64());
        let outcome = Outcome::Failed { reason, counts_as: gateway.options.judging.counts_as };
        if let Err(refusal) = gateway.note_reward(rollout, outcome).await {
            // A reward that comes in this very moment is as good.
            tracing::warn!(%rollout, %refusal, "a reward that was waited for in vain");
        }
    }
}

/// Draws an answer to its end. One that breaks off goes on from the tokens it has; too often ends its plan.
async fn answer(gateway: Arc<Gateway>, mut pause: Duration, request: Request, permit: OwnedSemaphorePermit) {
    let (id, _permit) = (request.id, permit);
    loop {
        let taken = match gateway.plans.take(id, &request.prompt, request.params.clone()) {
            Ok(taken) => taken,
            Err(error) => return tracing::warn!(rollout = %id, %error, "an answer is not drawn from here"),
        };
        match drawn(draw::start(gateway.clone(), Order::planned(taken))).await {
            Ok(()) => return,
            Err(error @ DrawError::Capture(_)) => return gateway.plans.stop(error.to_string()),
            Err(DrawError::Engine { .. }) => {
                if gateway.plans.broke(id).is_err() {
                    return;
                }
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        }
    }
}

async fn drawn(mut answer: draw::Answer) -> Result<(), DrawError> {
    while let Some(piece) = answer.recv().await {
        piece?;
    }
    Ok(())
}
