//! Plans and rewards over HTTP, for trainers that keep their own loop.

use super::{
    Gateway, ids,
    refusal::Refusal,
    reply,
    told::{self, VersionSpan},
};
use crate::{
    dispatch::{self, Progress, Sealed},
    ledger::TrainedOn,
};
use axum::{
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderValue, header},
    response::Response,
};
use futures_util::stream;
use lockstep_core::{Rollout, TokenId, reward::Outcome};
use serde::{Deserialize, Serialize};
use std::{convert::Infallible, sync::Arc};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Open {
    groups: u32,
    answers: u32,
    /// The number it must get.
    plan: Option<u64>,
}

#[derive(Serialize)]
struct Opened {
    plan: u64,
    rollouts: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reward {
    reward: Option<f64>,
    failed: Option<String>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_line: Option<usize>,
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::request(format!("the body: {error}")))
}

fn number(plan: &str) -> Result<u64, Refusal> {
    plan.parse().map_err(|_| Refusal::request(format!("{plan:?} is no number of a plan")))
}

pub(super) async fn open(State(gateway): State<Arc<Gateway>>, body: Body) -> Response {
    let opened = async {
        let body = gateway.body(body).await?;
        let Open { groups, answers, plan } = read(&body)?;
        let dispatch::Opened { plan, rollouts, .. } = gateway.open_plan((groups, answers), plan).await?;
        reply::json(&Opened { plan, rollouts: rollouts.iter().map(ToString::to_string).collect() })
    };
    opened.await.unwrap_or_else(|refusal| gateway.refuse(refusal))
}

pub(super) async fn reward(State(gateway): State<Arc<Gateway>>, Path(id): Path<String>, body: Body) -> Response {
    let noted = async {
        let rollout = ids::rollout(&id)?;
        let body = gateway.body(body).await?;
        match read::<Reward>(&body)? {
            Reward { reward: Some(reward), failed: None } => {
                gateway.note_reward(rollout, Outcome::Reward(reward)).await?;
                reply::json(&serde_json::json!({"rollout_id": id, "reward": reward}))
            }
            Reward { reward: None, failed: Some(reason) } => {
                let left = gateway.note_failure(rollout, &reason).await?;
                reply::json(&serde_json::json!({"rollout_id": id, "attempts_left": left}))
            }
            _ => Err(Refusal::field("reward", "the body has not exactly one of reward and failed")),
        }
    };
    noted.await.unwrap_or_else(|refusal| gateway.refuse(refusal))
}

/// One line a rollout, so that a large batch is never one piece of JSON.
pub(super) async fn seal(State(gateway): State<Arc<Gateway>>, Path(plan): Path<String>) -> Response {
    let sealed = async { gateway.sealed(number(&plan)?).await };
    match sealed.await {
        Ok(sealed) => lines(gateway, sealed),
        Err(refusal) => gateway.refuse(refusal),
    }
}

fn lines(gateway: Arc<Gateway>, sealed: Sealed) -> Response {
    let rollouts = sealed.batch.rollouts().len();
    let body = Body::from_stream(stream::iter((0..rollouts).map(move |at| {
        let (rollout, reward) = (&sealed.batch.rollouts()[at], sealed.rewards[at]);
        let mut line = serde_json::to_vec(&line(&gateway, rollout, reward)).unwrap_or_default();
        line.push(b'\n');
        Ok::<_, Infallible>(Bytes::from(line))
    })));
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    response
}

fn line<'a>(gateway: &Gateway, rollout: &'a Rollout, reward: Option<f64>) -> Line<'a> {
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
        text: text(gateway, rollout),
        prompt_line: gateway.pull.as_ref().map(|pull| pull.line(rollout.id().plan, rollout.group())),
    }
}

/// The answer as text, for whoever judges it.
fn text(gateway: &Gateway, rollout: &Rollout) -> Option<String> {
    let mut decoder = gateway.text().ok()?.decoder();
    let mut text = String::new();
    for id in rollout.sampled() {
        text += &decoder.push(id).ok()?;
    }
    text += &decoder.finish().ok()?;
    Some(text)
}

/// The open plans, so that a trainer that was ended finds its own again.
pub(super) async fn list(State(gateway): State<Arc<Gateway>>) -> Response {
    let plans = gateway.plans.open_plans();
    let plans = plans.into_iter().map(|Progress { plan, rollouts, arrived, judged }| {
        serde_json::json!({"plan": plan, "rollouts": rollouts, "arrived": arrived, "judged": judged})
    });
    let listed = reply::json(&serde_json::json!({"plans": plans.collect::<Vec<_>>()}));
    listed.unwrap_or_else(|refusal| gateway.refuse(refusal))
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
