//! What a vLLM does, seen from outside.

use super::{Findings, Known, Probed, capped, one_token, pieces, request, text, vocabulary};
use crate::{
    answer::Versions,
    http::{Http, NOTHING, Reply},
    link::Dialect,
    options::Options,
    vllm::{self, Form, Route},
};
use hyper::{Method, StatusCode};
use lockstep_core::{
    ports::{PortError, PortResult, SampleRequest},
    profile::{FilterName, LogProbMeaning, TieRule},
    sampling::Truncation,
};
use serde_json::{Value, json};

/// Cut hard, so that a processed list of more entries must show where it ends.
const CUT: Truncation = Truncation { top_k: 2, top_p: 1.0, min_p: 0.0 };

/// vLLM's own default of `--max-logprobs`.
const DEFAULT_LOG_PROBS: u32 = 20;

pub(super) async fn probe(http: &Http, options: &Options) -> PortResult<Probed> {
    let mut findings = Findings::default();
    let version = http.get("/version").await.ok().and_then(|version| text(&version, "/version"));
    let models = http.get("/v1/models").await?;
    let mut dialect = vllm::Dialect {
        route: Route::Generate,
        form: Form::Processed,
        head: options.log_probs,
        cap_top_k: options.cap_top_k,
        model: text(&models, "/data/0/id"),
        salt: None,
    };
    let asked = request(CUT, 2)?;
    let pieces = tried(http, &mut dialect, &asked, &mut findings).await?;
    dialect.form = form(&pieces, &mut findings);
    if dialect.route == Route::Completions && dialect.form == Form::Mask {
        dialect.form = Form::Processed;
    }
    defaults(http, &dialect, &asked, &mut findings).await?;
    let label = label(&pieces);
    findings.label(label.as_deref(), LABEL);
    let control = http.ask(Method::GET, "/weight_info", NOTHING).await?.status.is_success();
    if !control {
        findings.note("its weights cannot be updated from here", "set VLLM_SERVER_DEV_MODE=1 for it");
    }
    let vocabulary = sized(http, options, &dialect).await?;
    dialect.salt = None;
    let log_probs = if dialect.form == Form::Raw { LogProbMeaning::Raw } else { LogProbMeaning::Drawn };
    let cap = options.cap_top_k.filter(|_| dialect.form == Form::Mask);
    let known = Known {
        engine: "vLLM",
        version: capped(version.unwrap_or_else(|| "not reported".into()), cap),
        filters: [FilterName::Temperature, FilterName::MinP, FilterName::TopK, FilterName::TopP],
        ties: TieRule::KeepAll,
        log_probs,
    };
    let versions = Versions::Spans { proxied: options.updates_proxied };
    let (dialect, profile, findings) = (Dialect::Vllm(dialect), known.profile(), findings.0);
    Ok(Probed { dialect, profile, vocabulary, versions, label, control, findings })
}

const LABEL: &str = "set VLLM_SERVER_DEV_MODE=1 for it, and POST /update_weight_version {\"new_version\": \"e0.s0\"} to it; \
                     0.32 and later label every reply";

/// Tries the route and the number of log-probs until the server answers.
async fn tried(
    http: &Http,
    dialect: &mut vllm::Dialect,
    asked: &SampleRequest,
    findings: &mut Findings,
) -> PortResult<Vec<Value>> {
    let mut heads = vec![dialect.head, DEFAULT_LOG_PROBS.min(dialect.head), 5.min(dialect.head)];
    heads.dedup();
    let mut refusal = String::new();
    for route in [Route::Generate, Route::Completions] {
        for &head in &heads {
            (dialect.route, dialect.head) = (route, head);
            let reply = sent(http, dialect, asked).await?;
            match reply.status {
                status if status.is_success() => {
                    less_than_asked(heads[0], head, findings);
                    return Ok(pieces(&reply.body));
                }
                StatusCode::FORBIDDEN | StatusCode::NOT_FOUND if route == Route::Generate => {
                    let what = format!("its token route answers {}: {}", reply.status, reply.sentence());
                    findings.untruthful(what, "pass --enable-scale-out to vllm serve");
                    break;
                }
                _ => refusal = format!("{}: {}", reply.status, reply.sentence()),
            }
        }
    }
    Err(PortError::Refused(format!("vLLM at {} refuses a plain request: {refusal}", http.base())))
}

fn less_than_asked(asked: u32, given: u32, findings: &mut Findings) {
    if given < asked {
        let what = format!("it reports at most {given} log-probs a position, not {asked}");
        findings.note(what, format!("pass --max-logprobs {asked} to vllm serve"));
    }
}

async fn sent(http: &Http, dialect: &vllm::Dialect, asked: &SampleRequest) -> PortResult<Reply> {
    let body = vllm::encode(asked, dialect).map_err(|error| PortError::Refused(error.to_string()))?;
    http.ask(Method::POST, dialect.route.path(), Some(&body)).await
}

/// What the log-probs are, by what they say of a draw from two ids.
fn form(pieces: &[Value], findings: &mut Findings) -> Form {
    let masks = |piece: &Value| piece.pointer("/choices/0/sampling_mask").is_some_and(Value::is_array);
    let lists: Vec<Vec<f64>> = pieces.iter().flat_map(lists).collect();
    let above = lists.iter().map(|list| list.iter().filter(|value| **value > crate::row::NEVER).count());
    // Ties at the second id are all kept, so one short list is enough.
    let processed = above.min().is_some_and(|least| least <= 2);
    if !processed {
        let remedy = "pass --logprobs-mode processed_logprobs to vllm serve";
        findings.untruthful("its log-probs are raw: they list ids that top_k 2 had cut", remedy);
        return Form::Raw;
    }
    if pieces.iter().any(masks) {
        return Form::Mask;
    }
    let remedy =
        "on CUDA pass --return-sampling-mask to vllm serve; without it a support above --max-logprobs is refused";
    findings.note("it reports no sampling mask", remedy);
    Form::Processed
}

/// The lists of log-probs in a piece of either shape.
fn lists(piece: &Value) -> Vec<Vec<f64>> {
    let values = |list: &Value| -> Vec<f64> {
        match list {
            Value::Array(list) => list.iter().filter_map(|entry| entry.get("logprob")?.as_f64()).collect(),
            Value::Object(list) => list.values().filter_map(Value::as_f64).collect(),
            _ => vec![],
        }
    };
    let log_probs = piece.pointer("/choices/0/logprobs");
    let content = log_probs.and_then(|log_probs| log_probs.get("content")).and_then(Value::as_array);
    let open_ai = log_probs.and_then(|log_probs| log_probs.get("top_logprobs")).and_then(Value::as_array);
    let of_content = content.into_iter().flatten().filter_map(|row| row.get("top_logprobs")).map(values);
    let lists = of_content.chain(open_ai.into_iter().flatten().map(values));
    lists.filter(|list| !list.is_empty()).collect()
}

fn label(pieces: &[Value]) -> Option<String> {
    let spans = pieces.iter().rev().find_map(|piece| piece.pointer("/choices/0/weight_versions")?.as_array());
    spans?.last()?.get("version")?.as_str().map(str::to_owned)
}

/// Whether a request that leaves its fields out is cut: then the model's own defaults reach those who ask past us.
async fn defaults(
    http: &Http,
    dialect: &vllm::Dialect,
    asked: &SampleRequest,
    findings: &mut Findings,
) -> PortResult<()> {
    if dialect.form != Form::Processed || dialect.route != Route::Generate {
        return Ok(());
    }
    let body = json!({
        "token_ids": asked.request.prompt,
        "sampling_params": { "max_tokens": 1, "logprobs": dialect.head },
        "model": dialect.model,
    });
    let reply = http.ask(Method::POST, dialect.route.path(), Some(&body)).await?;
    let lists: Vec<Vec<f64>> = pieces(&reply.body).iter().flat_map(lists).collect();
    if lists.iter().flatten().any(|value| *value <= crate::row::NEVER) {
        let what = "it cuts a request that names no filter, by the model's generation_config.json";
        findings.note(what, "pass --generation-config vllm; requests through Lockstep name every field");
    }
    Ok(())
}

async fn sized(http: &Http, options: &Options, dialect: &vllm::Dialect) -> PortResult<u32> {
    let asked = request(CUT, 1)?;
    let body = vllm::encode(&asked, dialect).map_err(|error| PortError::Refused(error.to_string()))?;
    let body = serde_json::to_value(&body).unwrap_or_default();
    let (place, path) = match dialect.route {
        Route::Generate => ("token_ids", dialect.route.path()),
        Route::Completions => ("prompt", dialect.route.path()),
    };
    vocabulary(http, options, |id| (path, one_token(body.clone(), place, "max_tokens", id))).await
}
