//! SGLang's `/generate`, on token ids. TRL's `trl vllm-serve` has a route of the same name and another meaning; it is refused
//! with the way that works.

use super::{
    Gateway,
    ask::{Ask, Drawn, Extra, Names, Sampling},
    fields::{Fields, Neutral, Policy},
    refusal::Refusal,
    reply::{self, Telling},
    told::{self, ExtraFields, Told, VersionSpan},
};
use axum::{body::Body, extract::State, http::HeaderMap, response::Response};
use futures_util::future::try_join_all;
use lockstep_core::{Delta, FinishReason, TokenId};
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

const BODY: Policy = Policy {
    dialect: "SGLang's generate",
    read: &[
        "input_ids",
        "text",
        "sampling_params",
        "return_logprob",
        "top_logprobs_num",
        "return_sampling_mask",
        "sampling_logprobs_mode",
        "stream",
        "return_token_ids",
        "return_behavior",
        "return_weight_versions",
        "return_rollout_id",
        "prompts",
        "model",
    ],
    harmless: &[
        "rid",
        "logprob_start_len",
        "return_text_in_logprobs",
        "log_metrics",
        "priority",
        "stream_options",
        "background",
        "routing_key",
    ],
    neutral: &[
        ("image_data", Neutral::Null),
        ("video_data", Neutral::Null),
        ("audio_data", Neutral::Null),
        ("input_embeds", Neutral::Null),
        ("lora_path", Neutral::Null),
        ("session_params", Neutral::Null),
        ("custom_logit_processor", Neutral::Null),
        ("token_ids_logprob", Neutral::Null),
        ("return_hidden_states", Neutral::False),
        ("return_routed_experts", Neutral::False),
        ("extra_key", Neutral::Null),
    ],
};

const SAMPLING: Policy = Policy {
    dialect: "SGLang's sampling_params",
    read: &[
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "max_new_tokens",
        "sampling_seed",
        "n",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "include_stop_str_in_output",
    ],
    harmless: &["skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "stream_interval"],
    neutral: &[
        ("frequency_penalty", Neutral::Number(0.0)),
        ("presence_penalty", Neutral::Number(0.0)),
        ("repetition_penalty", Neutral::Number(1.0)),
        ("min_new_tokens", Neutral::Number(0.0)),
        ("logit_bias", Neutral::Empty),
        ("json_schema", Neutral::Null),
        ("regex", Neutral::Null),
        ("ebnf", Neutral::Null),
        ("structural_tag", Neutral::Null),
        ("stop_regex", Neutral::Null),
        ("custom_params", Neutral::Empty),
    ],
};

const NAMES: Names = Names { limit: &["max_new_tokens"], default_limit: Some(128), seed: "sampling_seed" };

#[derive(Serialize)]
struct Answer {
    text: Option<String>,
    output_ids: Vec<TokenId>,
    meta_info: Meta,
    #[serde(flatten)]
    extra: ExtraFields,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<TokenId>>,
}

/// A log-prob, its token, and the token's text, which is never sent.
type Row = (f32, TokenId, Option<()>);

#[derive(Serialize)]
struct Meta {
    id: String,
    finish_reason: Option<Value>,
    prompt_tokens: usize,
    completion_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight_version: Option<String>,
    weight_versions: Vec<VersionSpan>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_token_logprobs: Option<Vec<Row>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_top_logprobs: Option<Vec<Vec<Row>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_token_sampling_mask: Option<Vec<Vec<TokenId>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_token_sampling_logprobs: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_token_sampling_mask_length: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Show {
    extra: Extra,
    log_probs: bool,
    top: usize,
    mask: Option<Mask>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mask {
    Selected,
    Support,
}

pub(super) async fn generate(State(gateway): State<Arc<Gateway>>, headers: HeaderMap, body: Body) -> Response {
    gateway.counts.request();
    let outcome = answer(&gateway, &headers, body).await;
    outcome.unwrap_or_else(|refusal| gateway.refuse(refusal))
}

fn trl_refusal() -> Refusal {
    Refusal::field(
        "prompts",
        "this is the request of `trl vllm-serve`, whose /generate/ has the name but not the meaning of SGLang's; TRL reaches \
         this gateway through rollout_func, or asynchronously through /v1/completions",
    )
}

/// TRL's own route.
pub(super) async fn trl(State(gateway): State<Arc<Gateway>>) -> Response {
    gateway.counts.request();
    gateway.refuse(trl_refusal())
}

async fn answer(gateway: &Arc<Gateway>, headers: &HeaderMap, body: Body) -> Result<Response, Refusal> {
    let body = gateway.body(body).await?;
    let mut fields = Fields::parse(&body, &BODY)?;
    if fields.raw("prompts").is_some() {
        return Err(trl_refusal());
    }
    let prompt = match (fields.take::<Vec<TokenId>>("input_ids")?, fields.take::<String>("text")?) {
        (Some(ids), None) => ids,
        (None, Some(text)) => gateway.text()?.encode(&text)?,
        (Some(_), Some(_)) => {
            return Err(Refusal::request("both input_ids and text are sent; one of them is the prompt"));
        }
        (None, None) => return Err(Refusal::field("input_ids", "field input_ids is missing")),
    };
    gateway.check_model(fields.take("model")?)?;
    let stream = fields.flag("stream")?;
    let show = Show {
        extra: Extra::read(&mut fields)?,
        log_probs: fields.flag("return_logprob")?,
        top: fields.take("top_logprobs_num")?.unwrap_or(0),
        mask: mask_mode(&mut fields)?,
    };
    let raw = fields.raw("sampling_params");
    fields.finish()?;
    let empty = serde_json::value::to_raw_value(&serde_json::Map::new());
    let empty = empty.map_err(|error| Refusal::internal(error.to_string()))?;
    let mut inner = Fields::nested(raw.unwrap_or(&empty), "sampling_params", &SAMPLING)?;
    let sampling = Sampling::read(&mut inner, &NAMES, gateway)?;
    inner.finish()?;
    let one = sampling.answers == 1;
    let drawn = Ask::new(vec![prompt], sampling, headers, gateway)?.draw(gateway).await?;
    if stream {
        let telling = Stream::new(gateway, &drawn, show);
        return Ok(reply::events(gateway.clone(), drawn, telling));
    }
    let told = try_join_all(drawn.into_iter().map(Told::wait)).await?;
    let answers = told.iter().map(|told| whole(gateway, told, show)).collect::<Result<Vec<_>, _>>()?;
    match answers.as_slice() {
        [answer] if one => reply::json(answer),
        answers => reply::json(&answers),
    }
}

fn mask_mode(fields: &mut Fields<'_>) -> Result<Option<Mask>, Refusal> {
    let asked = fields.flag("return_sampling_mask")?;
    let mode = match fields.take::<String>("sampling_logprobs_mode")?.as_deref() {
        None | Some("selected") => Mask::Selected,
        Some("support") => Mask::Support,
        Some(other) => {
            let message = format!("sampling_logprobs_mode {other:?} is neither \"selected\" nor \"support\"");
            return Err(Refusal::field("sampling_logprobs_mode", message));
        }
    };
    Ok(asked.then_some(mode))
}

fn finish(told: &Told) -> Value {
    match told.finish {
        FinishReason::Length => serde_json::json!({"type": "length", "length": told.len()}),
        FinishReason::Stop(id) => serde_json::json!({"type": "stop", "matched": id.0}),
        FinishReason::StopText => serde_json::json!({"type": "stop", "matched": null}),
    }
}

fn whole(gateway: &Gateway, told: &Told, show: Show) -> Result<Answer, Refusal> {
    let mut meta = Meta {
        finish_reason: Some(finish(told)),
        ..meta(&told.request.id.to_string(), told.request.prompt.len(), &told.deltas, show)
    };
    meta.weight_versions = told.versions(show.extra.weight_versions);
    let tokens = told.tokens();
    let text = gateway.text.as_ref().map(|text| super::openai::plain(&**text, &tokens)).transpose()?;
    Ok(Answer {
        text,
        output_ids: tokens,
        meta_info: meta,
        extra: told.extra(&show.extra),
        prompt_token_ids: show.extra.token_ids.then(|| told.request.prompt.clone()),
    })
}

fn meta(id: &str, prompt_tokens: usize, deltas: &[Arc<Delta>], show: Show) -> Meta {
    let tokens = || deltas.iter().flat_map(|delta| delta.behavior.tokens().iter().copied());
    let log_q = || deltas.iter().flat_map(|delta| told::log_q(&delta.behavior));
    let heads = |most| deltas.iter().flat_map(move |delta| told::heads(&delta.behavior, most));
    let rows = |head: Vec<(TokenId, f32)>| head.into_iter().map(|(id, log_q)| (log_q, id, None)).collect();
    let supports = || heads(usize::MAX);
    let ids = |head: Vec<(TokenId, f32)>| head.into_iter().map(|(id, _)| id).collect();
    let values = |head: Vec<(TokenId, f32)>| head.into_iter().map(|(_, log_q)| log_q).collect::<Vec<f32>>();
    let completion_tokens = tokens().count();
    let sampling_log_probs = show.mask.map(|mask| match mask {
        Mask::Selected => Value::from(log_q().collect::<Vec<f32>>()),
        Mask::Support => Value::from(supports().map(values).map(Value::from).collect::<Vec<Value>>()),
    });
    Meta {
        id: id.to_owned(),
        finish_reason: None,
        prompt_tokens,
        completion_tokens,
        weight_version: deltas.last().and_then(|delta| told::label(&delta.stamp)),
        weight_versions: told::versions(deltas, 0, show.extra.weight_versions),
        output_token_logprobs: show.log_probs.then(|| log_q().zip(tokens()).map(|(q, id)| (q, id, None)).collect()),
        output_top_logprobs: (show.log_probs && show.top > 0).then(|| heads(show.top).map(rows).collect()),
        output_token_sampling_mask: show.mask.map(|_| supports().map(ids).collect()),
        output_token_sampling_logprobs: sampling_log_probs,
        output_token_sampling_mask_length: show.mask.map(|_| completion_tokens),
    }
}

/// SGLang's events carry everything so far.
struct Stream {
    gateway: Arc<Gateway>,
    answers: Vec<Told>,
    show: Show,
}

impl Stream {
    fn new(gateway: &Arc<Gateway>, drawn: &[Drawn], show: Show) -> Self {
        let answers = drawn.iter().map(|drawn| {
            let (index, request) = (drawn.index, drawn.request.clone());
            Told { index, request, deltas: Vec::new(), finish: FinishReason::Length }
        });
        Self { gateway: gateway.clone(), answers: answers.collect(), show }
    }
}

impl Telling for Stream {
    fn piece(&mut self, index: usize, delta: &Arc<Delta>) -> Result<Vec<u8>, Refusal> {
        let told = &mut self.answers[index];
        told.deltas.push(delta.clone());
        told.finish = delta.finish.unwrap_or(told.finish);
        let mut answer = whole(&self.gateway, told, self.show)?;
        if delta.finish.is_none() {
            answer.meta_info.finish_reason = None;
        }
        let mut value = serde_json::to_value(&answer).map_err(|error| Refusal::internal(error.to_string()))?;
        if let Some(object) = value.as_object_mut().filter(|_| self.answers.len() > 1) {
            object.insert("index".to_owned(), index.into());
        }
        reply::event(&value)
    }
}
