//! What an SGLang does, seen from outside.

use super::{Findings, Known, Probed, capped, one_token, pieces, request, text, vocabulary};
use crate::{
    answer::Versions,
    http::{Http, NOTHING, Reply},
    link::Dialect,
    options::Options,
    sglang,
};
use hyper::Method;
use lockstep_core::{
    ports::{PortError, PortResult, SampleRequest},
    profile::{FilterName, LogProbMeaning, TieRule},
    sampling::Truncation,
};
use serde_json::Value;

const CUT: Truncation = Truncation { top_k: 2, top_p: 1.0, min_p: 0.0 };

pub(super) async fn probe(http: &Http, options: &Options) -> PortResult<Probed> {
    let mut findings = Findings::default();
    let info = http.get("/model_info").await?;
    let server = http.ask(Method::GET, "/server_info", NOTHING).await?.json();
    let mut dialect = sglang::Dialect { masks: true, head: options.log_probs, cap_top_k: options.cap_top_k };
    let asked = request(CUT, 2)?;
    let mut reply = sent(http, &dialect, &asked).await?;
    let masked = reply.status.is_success() && pieces(&reply.body).iter().any(has_mask);
    if !masked {
        let said = if reply.status.is_success() { "no mask in the reply".to_owned() } else { reply.sentence() };
        let remedy = "use SGLang 0.5.23 or later, without a custom logit processor or speculative decoding";
        findings.untruthful(format!("it does not report the kept ids ({said})"), remedy);
        dialect.masks = false;
        reply = sent(http, &dialect, &asked).await?;
    }
    if !reply.status.is_success() {
        let why = format!("SGLang at {} refuses a plain request: {}", http.base(), reply.sentence());
        return Err(PortError::Refused(why));
    }
    let pieces = pieces(&reply.body);
    if repeats(&pieces) {
        let what = "every piece of a stream repeats all before it";
        findings.note(what, "pass --incremental-streaming-output to sglang.launch_server");
    }
    let label = pieces.last().and_then(label);
    findings.label(label.as_deref(), "pass --weight-version e0.s0 to sglang.launch_server");
    let control = info.get("weight_version").is_some();
    let body = encoded(&dialect, &request(CUT, 1)?)?;
    let body = |id| (sglang::PATH, one_token(body.clone(), "input_ids", "max_new_tokens", id));
    let vocabulary = vocabulary(http, options, body).await?;
    let known = Known {
        engine: "SGLang",
        version: capped(text(&server, "/version").unwrap_or_else(|| "not reported".into()), options.cap_top_k),
        filters: [FilterName::Temperature, FilterName::TopK, FilterName::TopP, FilterName::MinP],
        ties: TieRule::Unspecified,
        log_probs: if dialect.masks { LogProbMeaning::Drawn } else { LogProbMeaning::Tempered },
    };
    let versions = Versions::Spans { proxied: options.updates_proxied };
    let (dialect, profile, findings) = (Dialect::Sglang(dialect), known.profile(), findings.0);
    Ok(Probed { dialect, profile, vocabulary, versions, label, control, findings })
}

fn encoded(dialect: &sglang::Dialect, asked: &SampleRequest) -> PortResult<Value> {
    sglang::encode(asked, dialect, "lockstep-probe").map_err(|error| PortError::Refused(error.to_string()))
}

async fn sent(http: &Http, dialect: &sglang::Dialect, asked: &SampleRequest) -> PortResult<Reply> {
    http.ask(Method::POST, sglang::PATH, Some(&encoded(dialect, asked)?)).await
}

fn has_mask(piece: &Value) -> bool {
    piece.pointer("/meta_info/output_token_sampling_mask").is_some_and(Value::is_array)
}

/// True when a later piece lists ids of an earlier one.
fn repeats(pieces: &[Value]) -> bool {
    let length = |piece: &Value| piece.get("output_ids").and_then(Value::as_array).map_or(0, Vec::len);
    pieces.windows(2).any(|pair| length(&pair[1]) > length(&pair[0]) && length(&pair[0]) > 0)
}

fn label(piece: &Value) -> Option<String> {
    let spans = piece.pointer("/meta_info/weight_versions").and_then(Value::as_array);
    let last = spans.and_then(|spans| spans.last()?.get("version")?.as_str());
    last.map(str::to_owned).or_else(|| text(piece, "/meta_info/weight_version"))
}
