//! `/v1/completions`: a prompt of ids or text, and its continuation.

use super::{HARMLESS, NEUTRAL, Shown, cut, plain};
use crate::serve::{
    Gateway,
    ask::{Ask, Drawn, Extra, Names, Sampling},
    fields::{Fields, Policy},
    refusal::Refusal,
    reply::{self, Telling, Usage},
    told::{self, ExtraFields, Head, Told, VersionSpan},
};
use axum::{body::Body, extract::State, http::HeaderMap, response::Response};
use futures_util::future::try_join_all;
use lockstep_core::{Delta, FinishReason, TokenId, rollout::Request};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

const BODY: Policy = Policy {
    dialect: "/v1/completions",
    read: &[
        "prompt",
        "model",
        "stream",
        "stream_options",
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
        "return_tokens_as_token_ids",
        "return_token_ids",
        "return_behavior",
        "return_weight_versions",
        "return_rollout_id",
    ],
    harmless: HARMLESS,
    neutral: NEUTRAL,
};

const NAMES: Names = Names { limit: &["max_tokens"], default_limit: Some(16), seed: "seed" };

enum Prompt {
    Ids(Vec<TokenId>),
    Text(String),
    ManyIds(Vec<Vec<TokenId>>),
    Texts(Vec<String>),
}

impl Prompt {
    /// By trial, the most frequent first: each is read in place, and a long list is never kept as a tree.
    fn read(raw: &RawValue) -> Result<Self, Refusal> {
        let text = raw.get();
        serde_json::from_str(text)
            .map(Self::Ids)
            .or_else(|_| serde_json::from_str(text).map(Self::Text))
            .or_else(|_| serde_json::from_str(text).map(Self::ManyIds))
            .or_else(|_| serde_json::from_str(text).map(Self::Texts))
            .map_err(|_| wrong_prompt())
    }
}

/// What a stream ends with.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct StreamOptions {
    pub(super) include_usage: bool,
    pub(super) continuous_usage_stats: bool,
}

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: usize,
    text: Option<String>,
    logprobs: Option<LogProbs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<TokenId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Cow<'a, [TokenId]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight_versions: Option<Vec<VersionSpan>>,
    #[serde(flatten)]
    extra: ExtraFields,
}

#[derive(Serialize)]
struct LogProbs {
    text_offset: Vec<usize>,
    token_logprobs: Vec<f32>,
    tokens: Vec<Named>,
    top_logprobs: Option<Vec<BTreeMap<String, f32>>>,
}

/// A token as it is named: by its text, or as `token_id:123`.
enum Named {
    Text(String),
    Id(TokenId),
}

impl Named {
    fn characters(&self) -> usize {
        match self {
            Self::Text(text) => text.chars().count(),
            Self::Id(id) => "token_id:".len() + 1 + id.0.checked_ilog10().unwrap_or(0) as usize,
        }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Id(id) => write!(f, "token_id:{id}"),
        }
    }
}

impl Serialize for Named {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Id(_) => serializer.collect_str(self),
        }
    }
}

#[derive(Clone)]
struct Show {
    extra: Extra,
    log_probs: Option<usize>,
    as_ids: bool,
    stops: Vec<String>,
    keep_stop: bool,
}

pub(in crate::serve) async fn completions(
    State(gateway): State<Arc<Gateway>>,
    request: axum::extract::Request,
) -> Response {
    gateway.counts.request();
    let (parts, body) = request.into_parts();
    let outcome = answer(&gateway, &parts.headers, body).await;
    outcome.unwrap_or_else(|refusal| gateway.refuse(refusal))
}

async fn answer(gateway: &Arc<Gateway>, headers: &HeaderMap, body: Body) -> Result<Response, Refusal> {
    let body = gateway.body(body).await?;
    let mut fields = Fields::parse(&body, &BODY)?;
    let prompt = fields.raw("prompt").ok_or_else(|| Refusal::field("prompt", "field prompt is missing"))?;
    let prompts = prompts(Prompt::read(prompt)?, gateway)?;
    gateway.check_model(fields.take("model")?)?;
    let stream = fields.flag("stream")?;
    let stream_options = fields.take::<StreamOptions>("stream_options")?.unwrap_or_default();
    let extra = Extra::read(&mut fields)?;
    let log_probs = fields.take::<u16>("logprobs")?.map(usize::from);
    let as_ids = fields.flag("return_tokens_as_token_ids")?;
    let sampling = Sampling::read(&mut fields, &NAMES, gateway)?;
    fields.finish()?;
    if gateway.text().is_err() && !extra.token_ids {
        let message = "without --model the gateway has no text to answer with; ask for ids with return_token_ids";
        return Err(Refusal::field("return_token_ids", message));
    }
    let (stops, keep_stop) = (sampling.stop_texts.clone(), sampling.keep_stop_text);
    let show = Show { extra, log_probs, as_ids, stops, keep_stop };
    let drawn = Ask::new(prompts, sampling, headers, gateway)?.draw(gateway).await?;
    if stream {
        let telling = Stream::new(gateway, &drawn, show, stream_options);
        return Ok(reply::events(gateway.clone(), drawn, telling));
    }
    let told = try_join_all(drawn.into_iter().map(Told::wait)).await?;
    whole(gateway, &told, &show)
}

fn wrong_prompt() -> Refusal {
    Refusal::field("prompt", "field prompt is neither a text, a list of token ids, nor a list of one of these")
}

fn prompts(prompt: Prompt, gateway: &Gateway) -> Result<Vec<Vec<TokenId>>, Refusal> {
    match prompt {
        Prompt::Ids(ids) => Ok(vec![ids]),
        Prompt::ManyIds(prompts) => Ok(prompts),
        Prompt::Text(text) => Ok(vec![gateway.text()?.encode(&text)?]),
        Prompt::Texts(texts) => {
            let text = gateway.text()?;
            texts.iter().map(|prompt| text.encode(prompt)).collect()
        }
    }
}

fn name(request: Option<&Request>) -> String {
    request.map_or_else(String::new, |request| format!("cmpl-{}", request.id))
}

fn whole(gateway: &Gateway, told: &[Told], show: &Show) -> Result<Response, Refusal> {
    let choices = told.iter().map(|told| {
        let tokens = told.tokens();
        let text = gateway.text.as_ref().map(|text| {
            let mut whole = plain(&**text, &tokens)?;
            cut(&mut whole, &show.stops, show.keep_stop);
            Ok::<_, Refusal>(whole)
        });
        let log_probs = show.log_probs.map(|most| log_probs(gateway, &told.deltas, (most, show.as_ids), 0));
        Ok(Choice {
            index: told.index,
            text: text.transpose()?,
            logprobs: log_probs,
            finish_reason: Some(told::finish_word(told.finish)),
            stop_reason: told.stop_id(),
            token_ids: show.extra.token_ids.then_some(tokens.into()),
            prompt_token_ids: show.extra.token_ids.then_some(&*told.request.prompt),
            weight_versions: show.extra.weight_versions.then(|| told.versions(true)),
            extra: told.extra(&show.extra),
        })
    });
    let usage = usage(told.iter().map(|told| &told.request), told.iter().map(Told::len).sum());
    reply::json(&Completion {
        id: &name(told.first().map(|told| &told.request)),
        object: "text_completion",
        created: reply::created(),
        model: &gateway.options.model,
        choices: choices.collect::<Result<_, Refusal>>()?,
        usage: Some(usage),
    })
}

/// A prompt counts once, however many answers it has.
fn usage<'a>(requests: impl Iterator<Item = &'a Request>, sampled: usize) -> Usage {
    let prompts: BTreeMap<u32, usize> = requests.map(|request| (request.group, request.prompt.len())).collect();
    Usage::new(prompts.values().sum(), sampled)
}

/// log q of the tokens, and the head of each support when more than 0 entries are asked for.
fn log_probs(gateway: &Gateway, deltas: &[Arc<Delta>], (most, as_ids): (usize, bool), offset: usize) -> LogProbs {
    let shown = |id: TokenId| match &gateway.text {
        Some(text) if !as_ids => Named::Text(text.shown(id)),
        _ => Named::Id(id),
    };
    let tokens: Vec<Named> =
        deltas.iter().flat_map(|delta| delta.behavior.tokens().iter().map(|&id| shown(id))).collect();
    let mut at = offset;
    let text_offset = tokens.iter().map(|token| {
        let here = at;
        at += token.characters();
        here
    });
    let tops =
        |head: Head| head.into_iter().map(|(id, log_q)| (shown(id).to_string(), log_q)).collect::<BTreeMap<_, _>>();
    let heads = || deltas.iter().flat_map(|delta| told::heads(&delta.behavior, most)).map(tops).collect();
    LogProbs {
        text_offset: text_offset.collect(),
        token_logprobs: deltas.iter().flat_map(|delta| told::log_q(&delta.behavior)).collect(),
        top_logprobs: (most > 0).then(heads),
        tokens,
    }
}

struct Stream {
    gateway: Arc<Gateway>,
    id: String,
    created: u64,
    answers: Vec<Piecewise>,
    show: Show,
    options: StreamOptions,
}

struct Piecewise {
    request: Request,
    shown: Option<Shown>,
    sampled: usize,
    characters: usize,
    deltas: Vec<Arc<Delta>>,
}

impl Stream {
    fn new(gateway: &Arc<Gateway>, drawn: &[Drawn], show: Show, options: StreamOptions) -> Self {
        let answers = drawn.iter().map(|drawn| {
            let stops = if show.keep_stop { Vec::new() } else { show.stops.clone() };
            let shown = gateway.text.as_ref().map(|text| Shown::new(&**text, stops));
            Piecewise { request: drawn.request.clone(), shown, sampled: 0, characters: 0, deltas: Vec::new() }
        });
        let id = name(drawn.first().map(|drawn| &drawn.request));
        Self { gateway: gateway.clone(), id, created: reply::created(), answers: answers.collect(), show, options }
    }

    fn chunk(&self, choices: Vec<Choice<'_>>, usage: Option<Usage>) -> Result<Vec<u8>, Refusal> {
        let (id, created, model) = (&*self.id, self.created, &*self.gateway.options.model);
        reply::event(&Completion { id, object: "text_completion", created, model, choices, usage })
    }
}

impl Telling for Stream {
    fn piece(&mut self, index: usize, delta: &Arc<Delta>) -> Result<Vec<u8>, Refusal> {
        let Show { extra, log_probs: most, as_ids, .. } = self.show.clone();
        let answer = &mut self.answers[index];
        let first = answer.sampled == 0;
        let tokens = delta.behavior.tokens();
        answer.sampled += tokens.len();
        if extra.weight_versions {
            answer.deltas.push(delta.clone());
        }
        let text = answer.shown.as_mut().map(|shown| shown.push(tokens, delta.finish.is_some())).transpose()?;
        let log_probs =
            most.map(|most| log_probs(&self.gateway, std::slice::from_ref(delta), (most, as_ids), answer.characters));
        let shown_now = log_probs.iter().flat_map(|shown| &shown.tokens).map(Named::characters);
        answer.characters += shown_now.sum::<usize>();
        let answer = &self.answers[index];
        let last = |finish: FinishReason| (told::finish_word(finish), told::stop_id(finish, &answer.request));
        let ended = delta.finish.map(last);
        let versions = (extra.weight_versions && ended.is_some()).then(|| told::versions(&answer.deltas, 0, true));
        let choice = Choice {
            index,
            text,
            logprobs: log_probs,
            finish_reason: ended.map(|(word, _)| word),
            stop_reason: ended.and_then(|(_, id)| id),
            token_ids: extra.token_ids.then_some(tokens.into()),
            prompt_token_ids: (extra.token_ids && first).then_some(&*answer.request.prompt),
            weight_versions: versions,
            extra: ExtraFields::of_delta(&answer.request, delta, &extra),
        };
        let running = self.options.continuous_usage_stats;
        let usage = running.then(|| Usage::new(answer.request.prompt.len(), answer.sampled));
        self.chunk(vec![choice], usage)
    }

    fn close(&mut self) -> Result<Vec<u8>, Refusal> {
        if !self.options.include_usage {
            return Ok(Vec::new());
        }
        let sampled = self.answers.iter().map(|answer| answer.sampled).sum();
        let usage = usage(self.answers.iter().map(|answer| &answer.request), sampled);
        self.chunk(Vec::new(), Some(usage))
    }
}
