//! vLLM's `/inference/v1/generate`: token ids in, token ids out.

use super::{
    Gateway,
    ask::{Ask, Drawn, Extra, Names, Sampling},
    fields::{Fields, Neutral, Policy},
    refusal::Refusal,
    reply::{self, Telling, Usage},
    told::{self, ExtraFields, Head, Told, VersionSpan},
};
use axum::{body::Body, extract::State, http::HeaderMap, response::Response};
use futures_util::future::try_join_all;
use lockstep_core::{Delta, TokenId, rollout::Request};
use serde::Serialize;
use std::sync::Arc;

const BODY: Policy = Policy {
    dialect: "vLLM's generate",
    read: &[
        "token_ids",
        "sampling_params",
        "model",
        "stream",
        "return_token_ids",
        "return_behavior",
        "return_weight_versions",
        "return_rollout_id",
    ],
    harmless: &["request_id", "priority", "stream_options"],
    neutral: &[
        ("output_mode", Neutral::Text("tokens")),
        ("cache_salt", Neutral::Null),
        ("kv_transfer_params", Neutral::Null),
        ("features", Neutral::Null),
        ("mm_processor_kwargs", Neutral::Null),
    ],
};

pub(super) const SAMPLING: Policy = Policy {
    dialect: "vLLM's sampling_params",
    read: &[
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "max_tokens",
        "seed",
        "n",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "include_stop_str_in_output",
        "logprobs",
    ],
    harmless: &["detokenize", "skip_special_tokens", "spaces_between_special_tokens", "output_kind", "skip_clone"],
    neutral: &[
        ("presence_penalty", Neutral::Number(0.0)),
        ("frequency_penalty", Neutral::Number(0.0)),
        ("repetition_penalty", Neutral::Number(1.0)),
        ("length_penalty", Neutral::Number(1.0)),
        ("min_tokens", Neutral::Number(0.0)),
        ("best_of", Neutral::Number(1.0)),
        ("logit_bias", Neutral::Empty),
        ("allowed_token_ids", Neutral::Null),
        ("bad_words", Neutral::Empty),
        ("logits_processors", Neutral::Empty),
        ("structured_outputs", Neutral::Null),
        ("guided_decoding", Neutral::Null),
        ("truncate_prompt_tokens", Neutral::Null),
        ("prompt_logprobs", Neutral::Null),
        ("logprob_token_ids", Neutral::Null),
        ("flat_logprobs", Neutral::False),
        ("thinking_token_budget", Neutral::Null),
        ("repetition_detection", Neutral::Null),
        ("skip_reading_prefix_cache", Neutral::False),
        ("extra_args", Neutral::Empty),
    ],
};

const NAMES: Names = Names { limit: &["max_tokens"], default_limit: Some(16), seed: "seed" };

#[derive(Serialize)]
struct Answers<'a> {
    request_id: &'a str,
    model: &'a str,
    created: u64,
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
    output_mode: &'static str,
    choices: Vec<Choice>,
}

#[derive(Serialize)]
struct Choice {
    index: usize,
    finish_reason: Option<&'static str>,
    stop_reason: Option<TokenId>,
    token_ids: Vec<TokenId>,
    sampling_mask: Option<Vec<Vec<TokenId>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight_versions: Option<Vec<VersionSpan>>,
    logprobs: Option<LogProbs>,
    #[serde(flatten)]
    extra: ExtraFields,
}

#[derive(Serialize)]
struct LogProbs {
    content: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    token_id: TokenId,
    logprob: f32,
    rank: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<Entry>>,
}

#[derive(Clone, Copy)]
struct Show {
    extra: Extra,
    log_probs: Option<usize>,
    mask: bool,
}

pub(super) async fn generate(State(gateway): State<Arc<Gateway>>, headers: HeaderMap, body: Body) -> Response {
    gateway.counts.request();
    let outcome = answer(&gateway, &headers, body).await;
    outcome.unwrap_or_else(|refusal| gateway.refuse(refusal))
}

async fn answer(gateway: &Arc<Gateway>, headers: &HeaderMap, body: Body) -> Result<Response, Refusal> {
    let body = gateway.body(body).await?;
    let mut fields = Fields::parse(&body, &BODY)?;
    let prompt = fields.take::<Vec<TokenId>>("token_ids")?;
    let prompt = prompt.ok_or_else(|| Refusal::field("token_ids", "field token_ids is missing"))?;
    gateway.check_model(fields.take("model")?)?;
    let stream = fields.flag("stream")?;
    let extra = Extra::read(&mut fields)?;
    let raw = fields.raw("sampling_params");
    fields.finish()?;
    let empty = serde_json::value::to_raw_value(&serde_json::Map::new());
    let empty = empty.map_err(|error| Refusal::internal(error.to_string()))?;
    let mut inner = Fields::nested(raw.unwrap_or(&empty), "sampling_params", &SAMPLING)?;
    let log_probs = inner.take::<u16>("logprobs")?.map(usize::from);
    let sampling = Sampling::read(&mut inner, &NAMES, gateway)?;
    inner.finish()?;
    let show = Show { extra, log_probs, mask: !sampling.truncation().is_none() };
    let drawn = Ask::new(vec![prompt], sampling, headers, gateway)?.draw(gateway).await?;
    if stream {
        let telling = Stream::new(gateway, &drawn, show);
        return Ok(reply::events(gateway.clone(), drawn, telling));
    }
    let told = try_join_all(drawn.into_iter().map(Told::wait)).await?;
    whole(gateway, &told, show)
}

fn whole(gateway: &Gateway, told: &[Told], show: Show) -> Result<Response, Refusal> {
    let first = told.first().ok_or_else(|| Refusal::internal("no answer"))?;
    let choices = told.iter().map(|told| Choice {
        index: told.index,
        finish_reason: Some(told::finish_word(told.finish)),
        stop_reason: told.stop_id(),
        token_ids: told.tokens(),
        sampling_mask: show.mask.then(|| told.deltas.iter().flat_map(|delta| mask(delta)).collect()),
        weight_versions: Some(told.versions(show.extra.weight_versions)),
        logprobs: show
            .log_probs
            .map(|most| LogProbs { content: told.deltas.iter().flat_map(|delta| entries(delta, most)).collect() }),
        extra: told.extra(&show.extra),
    });
    let usage = Usage::new(first.request.prompt.len(), told.iter().map(Told::len).sum());
    reply::json(&Answers {
        request_id: &format!("generate-tokens-{}", first.request.id),
        model: &gateway.options.model,
        created: reply::created(),
        usage,
        prompt_token_ids: show.extra.token_ids.then_some(&*first.request.prompt),
        output_mode: "tokens",
        choices: choices.collect(),
    })
}

/// The kept ids of every position, ascending, as vLLM has them.
fn mask(delta: &Delta) -> Vec<Vec<TokenId>> {
    let columns = delta.behavior.columns();
    let rows = columns.tokens.iter().enumerate().map(|(row, &token)| {
        let (from, to) = (columns.offsets[row] as usize, columns.offsets[row + 1] as usize);
        let mut ids = columns.ids[from..to].to_vec();
        if ids.is_empty() {
            ids.push(token);
        }
        ids.sort_unstable();
        ids
    });
    rows.collect()
}

/// The sampled token and, behind it, the head of its support; ranks count from 1.
fn entries(delta: &Delta, most: usize) -> Vec<Entry> {
    let behavior = &delta.behavior;
    let heads = told::heads(behavior, usize::MAX);
    let rows = behavior.tokens().iter().zip(told::log_q(behavior)).zip(heads);
    let entry = |(token, log_q): (TokenId, f32), head: &Head| {
        let rank = head.iter().position(|&(id, _)| id == token).map(|at| at + 1);
        Entry { token_id: token, logprob: log_q, rank, top_logprobs: None }
    };
    let entries = rows.map(|((&token, log_q), head)| {
        let sampled = entry((token, log_q), &head);
        let others = head.iter().take(most).filter(|(id, _)| *id != token).map(|&other| entry(other, &head));
        let top = std::iter::once(entry((token, log_q), &head)).chain(others);
        Entry { top_logprobs: Some(top.collect()), ..sampled }
    });
    entries.collect()
}

struct Stream {
    gateway: Arc<Gateway>,
    requests: Vec<Request>,
    tokens: Vec<Vec<Arc<Delta>>>,
    show: Show,
}

impl Stream {
    fn new(gateway: &Arc<Gateway>, drawn: &[Drawn], show: Show) -> Self {
        let requests: Vec<Request> = drawn.iter().map(|drawn| drawn.request.clone()).collect();
        let tokens = requests.iter().map(|_| Vec::new()).collect();
        Self { gateway: gateway.clone(), requests, tokens, show }
    }
}

impl Telling for Stream {
    fn piece(&mut self, index: usize, delta: &Arc<Delta>) -> Result<Vec<u8>, Refusal> {
        let Self { gateway, requests, tokens, show } = self;
        let request = &requests[index];
        tokens[index].push(delta.clone());
        let versions = delta.finish.map(|_| told::versions(&tokens[index], 0, show.extra.weight_versions));
        let choice = Choice {
            index,
            finish_reason: delta.finish.map(told::finish_word),
            stop_reason: delta.finish.and_then(|finish| told::stop_id(finish, request)),
            token_ids: delta.behavior.tokens().to_vec(),
            sampling_mask: show.mask.then(|| mask(delta)),
            weight_versions: versions,
            logprobs: show.log_probs.map(|most| LogProbs { content: entries(delta, most) }),
            extra: ExtraFields::of_delta(request, delta, &show.extra),
        };
        let sampled = tokens[index].iter().map(|delta| delta.behavior.len()).sum();
        reply::event(&Answers {
            request_id: &format!("generate-tokens-{}", requests[0].id),
            model: &gateway.options.model,
            created: reply::created(),
            usage: Usage::new(request.prompt.len(), sampled),
            prompt_token_ids: None,
            output_mode: "tokens",
            choices: vec![choice],
        })
    }
}
