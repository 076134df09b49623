//! vLLM's replies, whole or in pieces. `token_ids`, `logprobs` and `sampling_mask` of a piece are deltas; the version spans
//! stand in the last piece alone and cover the whole output.

use super::{Form, Route};
use crate::{
    json::{self, Number},
    row::{NEVER, Place, Row, log_prob, token_id},
    wire::{Asked, Chunk, End, VersionSpan, WireError},
};
use lockstep_core::{Support, TokenId, support::Sampled};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Advice for a support of which only a part came.
const MORE_LOG_PROBS: &str =
    "start vLLM with --return-sampling-mask, or ask for more log-probs (--log-probs here, --max-logprobs there)";

#[derive(Deserialize)]
struct Reply {
    choices: Option<Vec<Choice>>,
    error: Option<serde_json::Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Choice {
    finish_reason: Option<String>,
    token_ids: Option<Vec<Number>>,
    sampling_mask: Option<Vec<Vec<Number>>>,
    weight_versions: Option<Vec<VersionSpan>>,
    logprobs: Option<LogProbs>,
}

/// Both shapes: `content` on the generate route, the three parallel lists on the OpenAI route.
#[derive(Deserialize, Default)]
#[serde(default)]
struct LogProbs {
    content: Option<Vec<Entry>>,
    tokens: Option<Vec<String>>,
    token_logprobs: Option<Vec<Number>>,
    top_logprobs: Option<Vec<Option<BTreeMap<String, Number>>>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    token_id: Option<Number>,
    token: Option<String>,
    logprob: Number,
    top_logprobs: Vec<Top>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Top {
    token_id: Option<Number>,
    token: Option<String>,
    logprob: Number,
}

/// A row of either shape: its id, its log-prob, and the list beside it.
struct Line {
    id: Number,
    log_q: Number,
    top: Vec<(Number, Number)>,
}

/// Reads the pieces of one reply in order.
#[derive(Debug, Clone)]
pub struct Parser {
    asked: Asked,
    route: Route,
    form: Form,
    seen: usize,
}

impl Parser {
    /// A parser for the reply to a request that was sent this way.
    pub fn new(asked: Asked, route: Route, form: Form) -> Self {
        Self { asked, route, form, seen: 0 }
    }

    /// Reads a piece of a stream, or a whole reply.
    ///
    /// # Errors
    /// Whatever is missing, contradicts itself or is no probability, with position and value.
    pub fn parse(&mut self, bytes: &[u8]) -> Result<Chunk, WireError> {
        let reply: Reply = json::read(bytes)?;
        if let Some(error) = reply.error {
            return Err(WireError::Engine(json::shortened(&error.to_string())));
        }
        let advice = "this is no reply of vLLM";
        let choices = reply.choices.ok_or(WireError::Missing { field: "choices", advice })?;
        let Some(mut choice) = choices.into_iter().next() else {
            // The last piece of a stream may carry usage alone.
            return Ok(Chunk::default());
        };
        let rows = self.rows(&mut choice)?;
        self.seen += rows.len();
        Ok(Chunk { rows, versions: choice.weight_versions, end: end(choice.finish_reason)? })
    }

    fn rows(&self, choice: &mut Choice) -> Result<Vec<Support>, WireError> {
        let advice = "ask for token ids (return_token_ids); ids are never made from text";
        let ended = choice.finish_reason.is_some();
        let ids = match choice.token_ids.take() {
            Some(ids) => ids,
            None if ended && self.seen > 0 && choice.logprobs.is_none() => vec![],
            None => return Err(WireError::Missing { field: "choices[0].token_ids", advice }),
        };
        let first = self.asked.resumed + self.seen;
        let lines = self.lines(choice.logprobs.take(), ids.is_empty())?;
        equal_lengths(first, "log-prob rows", lines.len(), ids.len())?;
        let masks = self.masks(choice.sampling_mask.take(), ids.is_empty())?;
        if let Some(masks) = &masks {
            equal_lengths(first, "sampling masks", masks.len(), ids.len())?;
        }
        let mut rows = Vec::with_capacity(ids.len());
        for (at, (id, line)) in ids.iter().zip(lines).enumerate() {
            let mask = masks.as_ref().map(|masks| masks[at].as_slice());
            rows.push(self.row(first + at, (id, line), mask)?);
        }
        Ok(rows)
    }

    fn lines(&self, log_probs: Option<LogProbs>, none: bool) -> Result<Vec<Line>, WireError> {
        let advice = "the server must be asked for log-probs";
        match (log_probs, self.route) {
            (None, _) if none => Ok(vec![]),
            (None, _) => Err(WireError::Missing { field: "choices[0].logprobs", advice }),
            (Some(log_probs), Route::Generate) => {
                let content = log_probs.content.ok_or(WireError::Missing { field: "logprobs.content", advice })?;
                Ok(content.into_iter().map(Line::of_entry).collect())
            }
            (Some(log_probs), Route::Completions) => open_ai_lines(log_probs),
        }
    }

    fn masks(&self, masks: Option<Vec<Vec<Number>>>, none: bool) -> Result<Option<Vec<Vec<Number>>>, WireError> {
        let advice = "start vLLM with --return-sampling-mask --logprobs-mode processed_logprobs";
        match (self.form, masks) {
            (Form::Mask, None) if none => Ok(None),
            (Form::Mask, None) => Err(WireError::Missing { field: "choices[0].sampling_mask", advice }),
            (Form::Mask, masks) => Ok(masks),
            _ => Ok(None),
        }
    }

    fn row(&self, position: usize, drawn: (&Number, Line), mask: Option<&[Number]>) -> Result<Support, WireError> {
        let (id, line) = drawn;
        let place = |what| Place { position, what };
        let token = token_id(id, place("token id"))?;
        let row = token_id(&line.id, place("log-prob row's id"))?;
        if row != token {
            return Err(WireError::OtherToken { position, token, row });
        }
        let sampled = Sampled { token, log_q: log_prob(&line.log_q, token, place("log-prob"))? };
        let mut entries = Vec::with_capacity(line.top.len());
        let mut beyond = false;
        for (id, value) in &line.top {
            let id = token_id(id, place("id of a top log-prob"))?;
            match value {
                Number::Is(value) if *value == NEVER && self.form != Form::Raw && id != token => beyond = true,
                value => entries.push((id, log_prob(value, id, place("top log-prob"))?)),
            }
        }
        let row = Row { position, sampled, entries };
        match (self.form, mask) {
            (Form::Mask, Some(mask)) => {
                let ids: Result<Vec<TokenId>, _> =
                    mask.iter().map(|id| token_id(id, place("id of the mask"))).collect();
                row.masked(&self.asked, &ids?)
            }
            (Form::Processed, _) if !self.asked.truncation.is_none() => {
                row.complete(beyond, MORE_LOG_PROBS)?.exact(&self.asked)
            }
            _ => row.untruncated(&self.asked),
        }
    }
}

impl Line {
    fn of_entry(entry: Entry) -> Self {
        let top = entry.top_logprobs.into_iter().map(|top| (id_of(top.token_id, top.token.as_deref()), top.logprob));
        Self { id: id_of(entry.token_id, entry.token.as_deref()), log_q: entry.logprob, top: top.collect() }
    }
}

/// The id of a row: a number, or the text `token_id:123`. Any other text is no id.
fn id_of(id: Option<Number>, token: Option<&str>) -> Number {
    match (id, token) {
        (Some(id), _) => id,
        (None, Some(token)) => named_id(token),
        (None, None) => Number::default(),
    }
}

fn named_id(token: &str) -> Number {
    let id = token.strip_prefix("token_id:").and_then(|id| id.parse::<u32>().ok());
    id.map_or_else(|| Number::Other(format!("the text {:?}", json::shortened(token))), |id| Number::Is(f64::from(id)))
}

fn open_ai_lines(log_probs: LogProbs) -> Result<Vec<Line>, WireError> {
    let advice = "ask for log-probs under ids (return_tokens_as_token_ids)";
    let missing = |field| WireError::Missing { field, advice };
    let tokens = log_probs.tokens.ok_or(missing("logprobs.tokens"))?;
    let own = log_probs.token_logprobs.ok_or(missing("logprobs.token_logprobs"))?;
    let top = log_probs.top_logprobs.ok_or(missing("logprobs.top_logprobs"))?;
    equal_lengths(0, "token_logprobs", own.len(), tokens.len())?;
    equal_lengths(0, "top_logprobs", top.len(), tokens.len())?;
    let rows = tokens.into_iter().zip(own).zip(top);
    Ok(rows.map(|((token, log_q), top)| line(&token, log_q, top.unwrap_or_default())).collect())
}

fn line(token: &str, log_q: Number, top: BTreeMap<String, Number>) -> Line {
    let top = top.into_iter().map(|(token, value)| (named_id(&token), value)).collect();
    Line { id: named_id(token), log_q, top }
}

fn equal_lengths(position: usize, what: &'static str, found: usize, tokens: usize) -> Result<(), WireError> {
    if found == tokens { Ok(()) } else { Err(WireError::Lengths { position, what, found, tokens }) }
}

fn end(reason: Option<String>) -> Result<Option<End>, WireError> {
    match reason.as_deref() {
        None => Ok(None),
        Some("stop") => Ok(Some(End::Stop)),
        Some("length") => Ok(Some(End::Length)),
        Some("abort") => Ok(Some(End::Aborted("vLLM aborted the request".into()))),
        Some(other) => Err(WireError::Finish(format!("{other:?}"))),
    }
}
