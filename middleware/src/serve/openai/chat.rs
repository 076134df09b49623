//! `/v1/chat/completions`: messages in, a message out; between them only ids.

use super::{HARMLESS, NEUTRAL, Shown, completions::StreamOptions};
use crate::{
    ledger::Record,
    serve::{
        Gateway,
        ask::{Ask, Drawn, Extra, Names, Sampling},
        fields::{Fields, Neutral, Policy},
        ids::{self, SESSION_HEADER},
        refusal::Refusal,
        reply::{self, Telling, Usage},
        text::{Conversation, Parse, Piece, Talk, Text},
        told::{self, ExtraFields, Told, VersionSpan},
    },
};
use axum::{body::Body, extract::State, http::HeaderMap, response::Response};
use futures_util::future::try_join_all;
use lockstep_core::{Delta, FinishReason, RolloutId, TokenId, rollout::Request};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

const BODY: Policy = Policy {
    dialect: "/v1/chat/completions",
    read: &[
        "messages",
        "tools",
        "tool_choice",
        "chat_template_kwargs",
        "model",
        "stream",
        "stream_options",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "max_tokens",
        "max_completion_tokens",
        "seed",
        "n",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "include_stop_str_in_output",
        "logprobs",
        "top_logprobs",
        "return_token_ids",
        "return_behavior",
        "return_weight_versions",
        "return_rollout_id",
    ],
    harmless: HARMLESS,
    neutral: NEUTRAL,
};

/// Fields of this route alone that would change the answer.
pub(super) const CHAT_NEUTRAL: &[(&str, Neutral)] = &[
    ("parallel_tool_calls", Neutral::Json("true")),
    ("add_generation_prompt", Neutral::Json("true")),
    ("continue_final_message", Neutral::False),
    ("chat_template", Neutral::Null),
    ("documents", Neutral::Null),
    ("reasoning_effort", Neutral::Null),
    ("functions", Neutral::Null),
    ("function_call", Neutral::Null),
    ("modalities", Neutral::Json(r#"["text"]"#)),
    ("audio", Neutral::Null),
    ("prediction", Neutral::Null),
    ("verbosity", Neutral::Null),
    ("web_search_options", Neutral::Null),
    ("mm_processor_kwargs", Neutral::Null),
];

const NAMES: Names = Names { limit: &["max_tokens", "max_completion_tokens"], default_limit: None, seed: "seed" };

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
}

#[derive(Serialize)]
struct Choice {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Value>,
    logprobs: Option<LogProbs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<TokenId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<TokenId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight_versions: Option<Vec<VersionSpan>>,
    #[serde(flatten)]
    extra: ExtraFields,
}

#[derive(Serialize)]
struct LogProbs {
    content: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<Entry>>,
}

#[derive(Clone)]
struct Show {
    extra: Extra,
    log_probs: Option<usize>,
    stops: Vec<String>,
}

/// An answer in the making: its ids become text, its text becomes pieces.
struct Speaker {
    shown: Shown,
    parser: Box<dyn Parse>,
}

/// A message in the making, in OpenAI's form.
struct Message {
    rollout: RolloutId,
    content: String,
    reasoning: String,
    calls: Vec<Value>,
}

impl Speaker {
    fn new(text: &dyn Text, turn: &dyn Talk, stops: Vec<String>) -> Self {
        Self { shown: Shown::new(text, stops), parser: turn.parser() }
    }

    fn push(&mut self, ids: &[TokenId], last: bool) -> Result<Vec<Piece>, Refusal> {
        let text = self.shown.push(ids, last)?;
        let mut pieces = self.parser.push(&text);
        if last {
            pieces.extend(self.parser.finish());
        }
        Ok(pieces)
    }
}

impl Message {
    fn new(rollout: RolloutId) -> Self {
        Self { rollout, content: String::new(), reasoning: String::new(), calls: Vec::new() }
    }

    /// Adds a piece, and gives it as OpenAI's streams carry it.
    fn add(&mut self, piece: Piece) -> Value {
        match piece {
            Piece::Content(text) => {
                self.content.push_str(&text);
                json!({"content": text})
            }
            Piece::Reasoning(text) => {
                self.reasoning.push_str(&text);
                json!({"reasoning_content": text})
            }
            Piece::Call { name, arguments } => {
                let index = self.calls.len();
                let id = format!("call-{}-{index}", self.rollout);
                let function = json!({"name": name, "arguments": arguments});
                self.calls.push(json!({"id": id, "type": "function", "function": function}));
                json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
            }
        }
    }

    fn whole(&self) -> Value {
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        let silent = self.content.is_empty() && !self.calls.is_empty();
        message.insert("content".into(), if silent { Value::Null } else { self.content.clone().into() });
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".into(), self.reasoning.clone().into());
        }
        if !self.calls.is_empty() {
            message.insert("tool_calls".into(), self.calls.clone().into());
        }
        Value::Object(message)
    }

    fn finish(&self, finish: FinishReason) -> &'static str {
        match finish {
            FinishReason::Stop(_) | FinishReason::StopText if !self.calls.is_empty() => "tool_calls",
            _ => told::finish_word(finish),
        }
    }
}

pub(in crate::serve) async fn chat(State(gateway): State<Arc<Gateway>>, headers: HeaderMap, body: Body) -> Response {
    gateway.counts.request();
    let outcome = answer(&gateway, &headers, body).await;
    outcome.unwrap_or_else(|refusal| gateway.refuse(refusal))
}

async fn answer(gateway: &Arc<Gateway>, headers: &HeaderMap, body: Body) -> Result<Response, Refusal> {
    let body = gateway.body(body).await?;
    let mut fields = Fields::parse(&body, &BODY)?;
    let conversation = conversation(&mut fields, headers)?;
    gateway.check_model(fields.take("model")?)?;
    let stream = fields.flag("stream")?;
    let stream_options = fields.take::<StreamOptions>("stream_options")?.unwrap_or_default();
    let extra = Extra::read(&mut fields)?;
    let log_probs = fields.flag("logprobs")?;
    let top = fields.take::<u16>("top_logprobs")?.map_or(0, usize::from);
    let sampling = Sampling::read(&mut fields, &NAMES, gateway)?;
    fields.finish_with(CHAT_NEUTRAL)?;
    if conversation.session.is_some() && sampling.answers > 1 {
        let message = format!("a session has one answer a turn, but n is {}", sampling.answers);
        return Err(Refusal::field("n", message));
    }
    let text = gateway.text()?.clone();
    let turn: Arc<dyn Talk> = text.turn(&conversation)?.into();
    let stops = if sampling.keep_stop_text { Vec::new() } else { sampling.stop_texts.clone() };
    let show = Show { extra, log_probs: log_probs.then_some(top), stops };
    let drawn = Ask::new(vec![turn.prompt().to_vec()], sampling, headers, gateway)?.draw(gateway).await?;
    if stream {
        let telling = Stream::new(gateway, &drawn, (text, turn), (show, stream_options));
        return Ok(reply::events(gateway.clone(), drawn, telling));
    }
    let told = try_join_all(drawn.into_iter().map(Told::wait)).await?;
    whole(gateway, &told, &*turn, &show).await
}

fn conversation(fields: &mut Fields<'_>, headers: &HeaderMap) -> Result<Conversation, Refusal> {
    let messages = fields.take::<Vec<Value>>("messages")?;
    let messages = messages.filter(|messages| !messages.is_empty());
    let messages = messages.ok_or_else(|| Refusal::field("messages", "field messages is missing or empty"))?;
    let tools = fields.take::<Vec<Value>>("tools")?.unwrap_or_default();
    let tools = match fields.take::<Value>("tool_choice")? {
        None => tools,
        Some(Value::String(choice)) if choice == "auto" => tools,
        Some(Value::String(choice)) if choice == "none" => Vec::new(),
        Some(choice) => {
            let message =
                format!("tool_choice {choice} would force the answer by a grammar; only auto and none are accepted");
            return Err(Refusal::field("tool_choice", message));
        }
    };
    let variables = fields.take("chat_template_kwargs")?;
    let session = ids::header(headers, SESSION_HEADER)?.map(str::to_owned);
    Ok(Conversation { messages, tools, variables, session })
}

fn name(request: Option<&Request>) -> String {
    request.map_or_else(String::new, |request| format!("chatcmpl-{}", request.id))
}

async fn whole(gateway: &Gateway, told: &[Told], turn: &dyn Talk, show: &Show) -> Result<Response, Refusal> {
    let text = gateway.text()?;
    let mut choices = Vec::with_capacity(told.len());
    for told in told {
        let tokens = told.tokens();
        let mut message = Message::new(told.request.id);
        for piece in Speaker::new(&**text, turn, show.stops.clone()).push(&tokens, true)? {
            message.add(piece);
        }
        let shown = message.whole();
        let record = turn.commit(tokens.clone(), told.finish, shown.clone())?;
        let kept = gateway.capture.record_durably(Record::Session(record)).await;
        kept.map_err(|error| Refusal::internal(error.to_string()))?;
        choices.push(Choice {
            index: told.index,
            message: Some(shown),
            delta: None,
            logprobs: show.log_probs.map(|most| log_probs(&**text, &told.deltas, most)),
            finish_reason: Some(message.finish(told.finish)),
            stop_reason: told.stop_id(),
            token_ids: show.extra.token_ids.then_some(tokens),
            weight_versions: show.extra.weight_versions.then(|| told.versions(true)),
            extra: told.extra(&show.extra),
        });
    }
    let first = told.first().map(|told| &told.request);
    let prompt = turn.prompt();
    reply::json(&Completion {
        id: &name(first),
        object: "chat.completion",
        created: reply::created(),
        model: &gateway.options.model,
        choices,
        usage: Some(Usage::new(prompt.len(), told.iter().map(Told::len).sum())),
        prompt_token_ids: show.extra.token_ids.then_some(prompt),
    })
}

fn log_probs(text: &dyn Text, deltas: &[Arc<Delta>], most: usize) -> LogProbs {
    let entry = |id: TokenId, logprob: f32| {
        let token = text.shown(id);
        Entry { bytes: token.clone().into_bytes(), token, logprob, top_logprobs: None }
    };
    let rows = deltas.iter().flat_map(|delta| {
        let behavior = &delta.behavior;
        let heads = told::heads(behavior, most);
        behavior.tokens().iter().copied().zip(told::log_q(behavior)).zip(heads)
    });
    let content = rows.map(|((id, log_q), head)| {
        let top = head.into_iter().map(|(id, log_q)| entry(id, log_q)).collect();
        Entry { top_logprobs: Some(top), ..entry(id, log_q) }
    });
    LogProbs { content: content.collect() }
}

struct Stream {
    gateway: Arc<Gateway>,
    id: String,
    created: u64,
    text: Arc<dyn Text>,
    turn: Arc<dyn Talk>,
    answers: Vec<Answering>,
    show: Show,
    options: StreamOptions,
    /// The record of the answer that ended last.
    kept: Option<Record>,
}

struct Answering {
    request: Request,
    speaker: Speaker,
    message: Message,
    deltas: Vec<Arc<Delta>>,
    sampled: Vec<TokenId>,
}

impl Stream {
    fn new(
        gateway: &Arc<Gateway>,
        drawn: &[Drawn],
        (text, turn): (Arc<dyn Text>, Arc<dyn Talk>),
        (show, options): (Show, StreamOptions),
    ) -> Self {
        let answers = drawn.iter().map(|drawn| {
            let speaker = Speaker::new(&*text, &*turn, show.stops.clone());
            let (request, message, deltas, sampled) =
                (drawn.request.clone(), Message::new(drawn.request.id), Vec::new(), Vec::new());
            Answering { request, speaker, message, deltas, sampled }
        });
        let (answers, id) = (answers.collect(), name(drawn.first().map(|drawn| &drawn.request)));
        Self { gateway: gateway.clone(), id, created: reply::created(), text, turn, answers, show, options, kept: None }
    }

    fn chunk(&self, choices: Vec<Choice>, usage: Option<Usage>, first: bool) -> Result<Vec<u8>, Refusal> {
        let prompt = (first && self.show.extra.token_ids).then(|| self.turn.prompt());
        reply::event(&Completion {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.gateway.options.model,
            choices,
            usage,
            prompt_token_ids: prompt,
        })
    }

    /// Takes a finished answer into its conversation.
    fn commit(&mut self, index: usize, finish: FinishReason) -> Result<(), Refusal> {
        let answer = &self.answers[index];
        let record = self.turn.commit(answer.sampled.clone(), finish, answer.message.whole())?;
        self.kept = Some(Record::Session(record));
        Ok(())
    }
}

impl Telling for Stream {
    fn piece(&mut self, index: usize, delta: &Arc<Delta>) -> Result<Vec<u8>, Refusal> {
        let Show { extra, log_probs: most, .. } = self.show.clone();
        let answer = &mut self.answers[index];
        let first = answer.sampled.is_empty();
        let tokens = delta.behavior.tokens();
        answer.sampled.extend_from_slice(tokens);
        if extra.weight_versions {
            answer.deltas.push(delta.clone());
        }
        let mut shown = Map::new();
        if first {
            shown.insert("role".into(), "assistant".into());
        }
        let pieces = answer.speaker.push(tokens, delta.finish.is_some())?;
        let mut deltas: Vec<Value> = pieces.into_iter().map(|piece| answer.message.add(piece)).collect();
        match deltas.first_mut().and_then(Value::as_object_mut) {
            Some(object) => object.extend(shown),
            None => deltas.push(Value::Object(shown)),
        }
        if let Some(finish) = delta.finish {
            self.commit(index, finish)?;
        }
        let answer = &self.answers[index];
        let log_probs = most.map(|most| log_probs(&*self.text, std::slice::from_ref(delta), most));
        let (mut rest, mut out, last) = (Some(log_probs), Vec::new(), deltas.len() - 1);
        for (at, shown) in deltas.into_iter().enumerate() {
            let ends = delta.finish.filter(|_| at == last);
            let versions = ends.filter(|_| extra.weight_versions).map(|_| told::versions(&answer.deltas, 0, true));
            let carries = at == 0;
            let choice = Choice {
                index,
                message: None,
                delta: Some(shown),
                logprobs: rest.take().flatten(),
                finish_reason: ends.map(|finish| answer.message.finish(finish)),
                stop_reason: ends.and_then(|finish| told::stop_id(finish, &answer.request)),
                token_ids: (extra.token_ids && carries).then(|| tokens.to_vec()),
                weight_versions: versions,
                extra: if carries {
                    ExtraFields::of_delta(&answer.request, delta, &extra)
                } else {
                    ExtraFields::default()
                },
            };
            out.extend(self.chunk(vec![choice], None, first && carries)?);
        }
        Ok(out)
    }

    fn to_keep(&mut self) -> Option<Record> {
        self.kept.take()
    }

    fn close(&mut self) -> Result<Vec<u8>, Refusal> {
        if !self.options.include_usage {
            return Ok(Vec::new());
        }
        let sampled = self.answers.iter().map(|answer| answer.sampled.len()).sum();
        self.chunk(Vec::new(), Some(Usage::new(self.turn.prompt().len(), sampled)), false)
    }
}
