//! Weight updates, pauses and their like, in vLLM's and SGLang's dialects: passed on to every replica, so that the gateway knows
//! each update and what it did to the KV cache. The version of a token is never read here; it comes with the token.

use super::{Gateway, pool::Replica, refusal::Refusal, updates::CacheEffect};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{OriginalUri, State},
    http::{HeaderMap, Method, Request, StatusCode, Uri, header},
    response::Response,
    routing::any,
};
use futures_util::future::join_all;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;
use std::{sync::Arc, time::Duration};

/// Speaks HTTP to the engines' own routes.
pub(super) type Client = legacy::Client<HttpConnector, Full<Bytes>>;

/// Largest answer of an engine's control plane, in bytes.
const MAX_ANSWER: usize = 64 << 20;
/// How long an engine may take to say that it is healthy.
const HEALTH: Duration = Duration::from_secs(2);
/// Bodies above this are weights, and are not read for options.
const MAX_OPTIONS: usize = 1 << 20;

pub(super) fn client() -> Client {
    legacy::Client::builder(TokioExecutor::new()).build_http()
}

/// What a route does to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// vLLM: `?mode=abort|wait|keep&clear_cache=..`.
    PauseVllm,
    /// SGLang: `{"mode": "abort"|"retract"|"in_place"}`.
    PauseSglang,
    Resume,
    /// New weights; the prefix cache stays.
    UpdateVllm,
    /// New weights; `flush_cache`, on by default.
    UpdateSglang,
    /// Another label for the same weights.
    Label,
    /// The new weights get their label.
    Publish,
    /// The prefix cache is emptied.
    Flush,
    /// All replicas must say the same.
    Read,
    /// Neither weights nor cache.
    Other,
    /// One replica alone: it gives the engine its place in a group of processes.
    Rank,
}

impl Meaning {
    fn changes_versions(self) -> bool {
        matches!(self, Self::UpdateVllm | Self::UpdateSglang | Self::Label | Self::Publish)
    }
}

const ROUTES: &[(&str, Meaning)] = &[
    ("/pause", Meaning::PauseVllm),
    ("/areal_pause_generation", Meaning::PauseVllm),
    ("/pause_generation", Meaning::PauseSglang),
    ("/resume", Meaning::Resume),
    ("/areal_continue_generation", Meaning::Resume),
    ("/continue_generation", Meaning::Resume),
    ("/update_weights", Meaning::UpdateVllm),
    ("/areal_update_weights", Meaning::UpdateVllm),
    ("/areal_update_weights_xccl", Meaning::UpdateVllm),
    ("/update_weights_from_disk", Meaning::UpdateSglang),
    ("/update_weights_from_tensor", Meaning::UpdateSglang),
    ("/update_weights_from_distributed", Meaning::UpdateSglang),
    ("/update_weights_from_ipc", Meaning::UpdateSglang),
    ("/update_weight_version", Meaning::Label),
    ("/start_weight_update", Meaning::Other),
    ("/finish_weight_update", Meaning::Publish),
    ("/begin_weight_update", Meaning::Other),
    ("/end_weight_update", Meaning::Publish),
    ("/shutdown_weight_transfer_engine", Meaning::Other),
    ("/destroy_weights_update_group", Meaning::Other),
    ("/abort_requests", Meaning::Other),
    ("/abort_request", Meaning::Other),
    ("/sleep", Meaning::Other),
    ("/wake_up", Meaning::Other),
    ("/release_memory_occupation", Meaning::Other),
    ("/resume_memory_occupation", Meaning::Other),
    ("/reset_prefix_cache", Meaning::Flush),
    ("/flush_cache", Meaning::Flush),
    ("/is_paused", Meaning::Read),
    ("/is_sleeping", Meaning::Read),
    ("/weight_info", Meaning::Read),
    ("/model_info", Meaning::Read),
    ("/get_model_info", Meaning::Read),
    ("/get_weight_version", Meaning::Read),
    ("/weight_checker", Meaning::Read),
    ("/weights_checker", Meaning::Read),
    ("/get_weights_by_name", Meaning::Read),
    ("/init_weight_transfer_engine", Meaning::Rank),
    ("/init_weights_update_group", Meaning::Rank),
    ("/areal_init_weights_update_group", Meaning::Rank),
    ("/init_broadcaster", Meaning::Rank),
    ("/get_world_size", Meaning::Rank),
    ("/server_info", Meaning::Rank),
    ("/get_server_info", Meaning::Rank),
];

pub(super) fn routes() -> Router<Arc<Gateway>> {
    ROUTES.iter().fold(Router::new(), |router, &(path, meaning)| {
        let handler =
            move |State(gateway): State<Arc<Gateway>>, OriginalUri(uri): OriginalUri, method, headers, body| {
                let asked = Asked { meaning, method, uri, headers };
                async move { asked.pass(&gateway, body).await.unwrap_or_else(|refusal| gateway.refuse(refusal)) }
            };
        router.route(path, any(handler))
    })
}

/// Whether an engine says that it is healthy.
pub(super) async fn is_healthy(gateway: &Gateway, replica: &Replica) -> bool {
    let asked = Asked {
        meaning: Meaning::Read,
        method: Method::GET,
        uri: Uri::from_static("/health"),
        headers: HeaderMap::new(),
    };
    let said = tokio::time::timeout(HEALTH, asked.one(gateway, replica, Bytes::new())).await;
    matches!(said, Ok(Ok(said)) if said.status.is_success())
}

struct Asked {
    meaning: Meaning,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

struct Said {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Asked {
    async fn pass(&self, gateway: &Gateway, body: Body) -> Result<Response, Refusal> {
        let replicas = gateway.pool.replicas();
        let path = self.uri.path();
        if self.meaning == Meaning::Rank && replicas.len() > 1 {
            let count = replicas.len();
            let message =
                format!("{path} gives an engine its place in a process group, and {count} replicas cannot share one");
            return Err(Refusal::conflict(format!("{message}; put a gateway before each, or update from disk")));
        }
        let body = Gateway::body_up_to(gateway.options.update_body, body).await?;
        let body = if self.meaning == Meaning::Label { keep_requests(body)? } else { body };
        let options = if body.len() <= MAX_OPTIONS { serde_json::from_slice(&body).ok() } else { None };
        let options = options.unwrap_or(Value::Null);
        if matches!(self.meaning, Meaning::PauseVllm | Meaning::PauseSglang) {
            gateway.pool.pause(true);
        }
        let watched = self.meaning.changes_versions().then(|| replicas.iter().filter_map(|replica| replica.watched()));
        let watched: Vec<_> = watched.into_iter().flatten().collect();
        watched.iter().for_each(|watched| watched.update_begins());
        let said = join_all(replicas.iter().map(|replica| self.one(gateway, replica, body.clone()))).await;
        for ended in join_all(watched.iter().map(|watched| watched.update_ended())).await {
            if let Err(error) = ended {
                tracing::warn!(%error, "the label after a weight update is not known");
            }
        }
        let answer = self.merge(replicas, said);
        let done = answer.as_ref().is_ok_and(|response| response.status().is_success());
        if done {
            self.note(gateway, &options);
        } else if matches!(self.meaning, Meaning::PauseVllm | Meaning::PauseSglang) {
            gateway.pool.pause(false);
        }
        answer
    }

    async fn one(&self, gateway: &Gateway, replica: &Replica, body: Bytes) -> Result<Said, String> {
        let url = replica.url().ok_or("it has no control plane over HTTP")?;
        let base = url.to_string();
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request =
            Request::builder().method(self.method.clone()).uri(format!("{}{path}", base.trim_end_matches('/')));
        for name in [header::CONTENT_TYPE, header::AUTHORIZATION] {
            if let Some(value) = self.headers.get(&name) {
                request = request.header(name, value);
            }
        }
        let request = request.body(Full::new(body)).map_err(|error| error.to_string())?;
        let response =
            gateway.client.request(request).await.map_err(|error| format!("it cannot be reached: {error}"))?;
        let (parts, body) = response.into_parts();
        let body =
            Limited::new(body, MAX_ANSWER).collect().await.map_err(|error| format!("its answer broke off: {error}"))?;
        Ok(Said { status: parts.status, headers: parts.headers, body: body.to_bytes() })
    }

    /// One answer of all: the first, where all succeeded.
    fn merge(&self, replicas: &[Arc<Replica>], said: Vec<Result<Said, String>>) -> Result<Response, Refusal> {
        let path = self.uri.path();
        let several = replicas.len() > 1;
        let mut first: Option<Said> = None;
        for (replica, said) in replicas.iter().zip(said) {
            let name = replica.name();
            let said = said.map_err(|what| Refusal::unavailable(format!("{path} of engine {name}: {what}")))?;
            if several && !said.status.is_success() {
                let text = String::from_utf8_lossy(&said.body).chars().take(500).collect::<String>();
                return Err(Refusal::engine(format!("{path} of engine {name}: {} {text}", said.status)));
            }
            match &first {
                Some(first) if self.meaning == Meaning::Read && first.body != said.body => {
                    let (ours, theirs) = (String::from_utf8_lossy(&first.body), String::from_utf8_lossy(&said.body));
                    let other = replicas.first().map_or("", |replica| replica.name());
                    let message =
                        format!("the replicas do not agree on {path}: {other} says {ours:.200}, {name} {theirs:.200}");
                    return Err(Refusal::conflict(message));
                }
                Some(_) => {}
                None => first = Some(said),
            }
        }
        let Said { status, headers, body } = first.ok_or_else(|| Refusal::internal("no replica"))?;
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        if let Some(kind) = headers.get(header::CONTENT_TYPE) {
            response.headers_mut().insert(header::CONTENT_TYPE, kind.clone());
        }
        Ok(response)
    }

    /// What a call that succeeded has changed.
    fn note(&self, gateway: &Gateway, options: &Value) {
        let updates = &gateway.updates;
        let flag = |name: &str, default| options.get(name).and_then(Value::as_bool).unwrap_or(default);
        match self.meaning {
            Meaning::PauseVllm => {
                let query = Query(self.uri.query().unwrap_or_default());
                let clear = query.get("clear_cache").is_none_or(|value| value != "false" && value != "0");
                let keeps = query.get("mode").is_some_and(|mode| mode == "keep");
                updates.announce(if keeps && !clear { CacheEffect::Kept } else { CacheEffect::Recomputed });
                if clear {
                    updates.flushed();
                }
            }
            Meaning::PauseSglang => {
                let in_place = options.get("mode").and_then(Value::as_str) == Some("in_place");
                updates.announce(if in_place { CacheEffect::Kept } else { CacheEffect::Recomputed });
            }
            Meaning::Resume => {
                updates.resumed();
                gateway.pool.pause(false);
            }
            Meaning::UpdateVllm => updates.updated(CacheEffect::Unknown, false),
            Meaning::UpdateSglang => updates.updated(CacheEffect::Unknown, flag("flush_cache", true)),
            Meaning::Flush => updates.flushed(),
            Meaning::Label | Meaning::Publish | Meaning::Read | Meaning::Other | Meaning::Rank => {}
        }
    }
}

struct Query<'a>(&'a str);

impl<'a> Query<'a> {
    fn get(&self, name: &str) -> Option<&'a str> {
        self.0.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
    }
}

/// SGLang aborts every running answer on a new label unless told not to.
fn keep_requests(body: Bytes) -> Result<Bytes, Refusal> {
    let mut value: Value = serde_json::from_slice(&body)
        .map_err(|error| Refusal::request(format!("the body is no JSON object: {error}")))?;
    let object = value.as_object_mut().ok_or_else(|| Refusal::request("the body is no JSON object"))?;
    object.entry("abort_all_requests").or_insert(Value::Bool(false));
    Ok(Bytes::from(value.to_string()))
}
