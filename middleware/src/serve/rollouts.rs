//! Plans and rewards over HTTP, for trainers that keep their own loop.

use super::{
    Gateway, ids,
    plans::Sealed,
    refusal::Refusal,
    reply,
    told::{self, VersionSpan},
};
use crate::ledger::{Record, TrainedOn};
use axum::{
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderValue, header},
    response::Response,
};
use futures_util::stream;
use lockstep_core::{Rollout, RolloutId, TokenId};
use serde::{Deserialize, Serialize};
use std::{convert::Infallible, sync::Arc};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Open {
    groups: u32,
    answers: u32,
}

#[derive(Serialize)]
struct Opened {
    plan: u64,
    rollouts: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reward {
    reward: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Consumed {
    rollouts: Vec<ConsumedRollout>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConsumedRollout {
    rollout_id: String,
    tokens: u32,
    masked_in: u32,
}

#[derive(Serialize)]
struct Line<'a> {
    rollout_id: String,
    group: u32,
    prompt_token_ids: &'a [TokenId],
    token_ids: Vec<TokenId>,
    finish_reason: &'static str,
    temperature: f64,
    behavior: told::Base64Columns,
    weight_versions: Vec<VersionSpan>,
    reward: Option<f64>,
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::request(format!("the body: {error}")))
}

fn number(plan: &str) -> Result<u64, Refusal> {
    plan.parse().map_err(|_| Refusal::request(format!("{plan:?} is no number of a plan")))
}

impl Gateway {
    /// Opens a plan, durably.
    pub(super) async fn open_plan(&self, groups: u32, answers: u32) -> Result<(u64, Vec<RolloutId>), Refusal> {
        let (plan, rollouts) = self.plans.open(groups, answers)?;
        self.keep(Record::PlanReserved { plan, groups, answers }).await?;
        Ok((plan, rollouts))
    }

    /// Notes a reward, durably.
    pub(super) async fn note_reward(&self, rollout: RolloutId, reward: f64) -> Result<(), Refusal> {
        self.plans.reward(rollout, reward)?;
        self.keep(Record::Reward { rollout, reward }).await
    }

    /// The batch of a plan, as soon as all of it is there.
    pub(super) async fn sealed(&self, plan: u64) -> Result<Sealed, Refusal> {
        let sealed = self.plans.seal_when_complete(plan).await?;
        if sealed.first {
            self.keep(Record::PlanSealed { plan }).await?;
        }
        Ok(sealed)
    }

    /// Holds what was trained on against the plan.
    pub(super) async fn trained(&self, plan: u64, rollouts: Vec<TrainedOn>) -> Result<(), Refusal> {
        self.plans.consumed(plan, &rollouts).inspect_err(|_| self.counts.difference())?;
        self.keep(Record::Trained { plan, rollouts }).await
    }

    async fn keep(&self, record: Record) -> Result<(), Refusal> {
        self.capture.record_durably(record).await.map_err(|error| Refusal::internal(error.to_string()))
    }
}

pub(super) async fn open(State(gateway): State<Arc<Gateway>>, body: Body) -> Response {
    let opened = async {
        let body = gateway.body(body).await?;
        let Open { groups, answers } = read(&body)?;
        let (plan, rollouts) = gateway.open_plan(groups, answers).await?;
        reply::json(&Opened { plan, rollouts: rollouts.iter().map(ToString::to_string).collect() })
    };
    opened.await.unwrap_or_else(|refusal| gateway.refuse(refusal))
}

pub(super) async fn reward(State(gateway): State<Arc<Gateway>>, Path(id): Path<String>, body: Body) -> Response {
    let noted = async {
        let rollout = ids::rollout(&id)?;
        let body = gateway.body(body).await?;
        let Reward { reward } = read(&body)?;
        gateway.note_reward(rollout, reward).await?;
        reply::json(&serde_json::json!({"rollout_id": id, "reward": reward}))
    };
    noted.await.unwrap_or_else(|refusal| gateway.refuse(refusal))
}

/// One line a rollout, so that a large batch is never one piece of JSON.
pub(super) async fn seal(State(gateway): State<Arc<Gateway>>, Path(plan): Path<String>) -> Response {
    let sealed = async { gateway.sealed(number(&plan)?).await };
    match sealed.await {
        Ok(sealed) => lines(sealed),
        Err(refusal) => gateway.refuse(refusal),
    }
}

fn lines(sealed: Sealed) -> Response {
    let rollouts = sealed.batch.rollouts().len();
    let body = Body::from_stream(stream::iter((0..rollouts).map(move |at| {
        let (rollout, reward) = (&sealed.batch.rollouts()[at], sealed.rewards[at]);
        let mut line = serde_json::to_vec(&line(rollout, reward)).unwrap_or_default();
        line.push(b'\n');
        Ok::<_, Infallible>(Bytes::from(line))
    })));
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    response
}

fn line(rollout: &Rollout, reward: Option<f64>) -> Line<'_> {
    let deltas: Vec<_> = crate::wire::batch::split(rollout).map(Arc::new).collect();
    let mut whole = lockstep_core::BehaviorDistribution::default();
    deltas.iter().for_each(|delta| whole.extend(&delta.behavior));
    Line {
        rollout_id: rollout.id().to_string(),
        group: rollout.group(),
        prompt_token_ids: rollout.prompt(),
        token_ids: rollout.sampled().collect(),
        finish_reason: told::finish_word(rollout.finish()),
        temperature: rollout.params().temperature(),
        behavior: told::base64_columns(&whole),
        weight_versions: told::versions(&deltas, 0, true),
        reward,
    }
}

pub(super) async fn consumed(State(gateway): State<Arc<Gateway>>, Path(plan): Path<String>, body: Body) -> Response {
    let noted = async {
        let plan = number(&plan)?;
        let body = gateway.body(body).await?;
        let Consumed { rollouts } = read(&body)?;
        let trained = rollouts.into_iter().map(|ConsumedRollout { rollout_id, tokens, masked_in }| {
            Ok(TrainedOn { rollout: ids::rollout(&rollout_id)?, tokens, masked_in })
        });
        gateway.trained(plan, trained.collect::<Result<_, Refusal>>()?).await?;
        reply::json(&serde_json::json!({"plan": plan}))
    };
    noted.await.unwrap_or_else(|refusal| gateway.refuse(refusal))
}
