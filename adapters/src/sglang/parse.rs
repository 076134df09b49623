//! SGLang's replies, whole or in pieces. A piece repeats everything before it, or with `--incremental-streaming-output`
//! only `output_ids` of the new tokens: `completion_tokens` says which.

use super::Form;
use crate::{
    json::{self, Number},
    row::{Place, Row, log_prob, token_id},
    wire::{Asked, Chunk, End, VersionSpan, WireError},
};
use lockstep_core::{Support, TokenId, support::Sampled};
use serde::Deserialize;

#[derive(Deserialize)]
struct Reply {
    output_ids: Option<Vec<Number>>,
    meta_info: Option<Meta>,
    error: Option<serde_json::Value>,
}

/// `[log-prob, id, text]`.
type Triple = (Number, Number, serde::de::IgnoredAny);

#[derive(Deserialize, Default)]
#[serde(default)]
struct Meta {
    finish_reason: Option<Finish>,
    completion_tokens: Option<usize>,
    weight_version: Option<String>,
    weight_versions: Option<Vec<VersionSpan>>,
    output_token_logprobs: Option<Vec<Triple>>,
    output_top_logprobs: Option<Vec<Option<Vec<Triple>>>>,
    output_token_sampling_mask: Option<Vec<Vec<Number>>>,
    output_token_sampling_logprobs: Option<Vec<SupportLogProbs>>,
}

/// The log-probs of one mask, or the drawn token's alone.
#[derive(Deserialize)]
#[serde(untagged)]
enum SupportLogProbs {
    All(Vec<Number>),
    Selected(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
struct Finish {
    r#type: String,
    #[serde(default)]
    message: Option<String>,
}

/// Reads the pieces of one reply in order.
#[derive(Debug, Clone)]
pub struct Parser {
    asked: Asked,
    form: Form,
    seen: usize,
}

impl Parser {
    /// A parser for the reply to a request that asked for this form.
    pub fn new(asked: Asked, form: Form) -> Self {
        Self { asked, form, seen: 0 }
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
        let missing = |field| WireError::Missing { field, advice: "this is no reply of SGLang's /generate" };
        let mut meta = reply.meta_info.ok_or(missing("meta_info"))?;
        let end = end(meta.finish_reason.take())?;
        let ids = match reply.output_ids {
            Some(ids) => ids,
            None if matches!(end, Some(End::Aborted(_))) => vec![],
            None => return Err(missing("output_ids")),
        };
        let total = meta.completion_tokens.ok_or(missing("meta_info.completion_tokens"))?;
        let rows = self.rows(&ids, total, &mut meta)?;
        self.seen += rows.len();
        let versions = versions(&mut meta, end.is_some(), self.seen);
        Ok(Chunk { rows, versions, end })
    }

    fn rows(&self, ids: &[Number], total: usize, meta: &mut Meta) -> Result<Vec<Support>, WireError> {
        let start = total.checked_sub(ids.len()).ok_or(WireError::TooMany { found: ids.len(), asked: total })?;
        let skip = self.seen.checked_sub(start).ok_or(WireError::Gap { expected: self.seen, found: start })?;
        let new = ids.get(skip..).ok_or(WireError::Gap { expected: self.seen, found: total })?;
        if new.is_empty() {
            return Ok(vec![]);
        }
        let span = Span { first: self.asked.resumed + self.seen, new: new.len(), total, listed: ids.len() };
        let own = span.last("output_token_logprobs", meta.output_token_logprobs.as_deref())?;
        let detail = self.detail(&span, meta)?;
        let mut rows = Vec::with_capacity(new.len());
        for (at, (id, own)) in new.iter().zip(own).enumerate() {
            let place = |what| Place { position: span.first + at, what };
            let token = token_id(id, place("output id"))?;
            let row = token_id(&own.1, place("log-prob row's id"))?;
            if row != token {
                return Err(WireError::OtherToken { position: span.first + at, token, row });
            }
            rows.push(self.row(span.first + at, (token, &own.0), detail.at(at))?);
        }
        Ok(rows)
    }

    fn detail<'a>(&self, span: &Span, meta: &'a Meta) -> Result<Detail<'a>, WireError> {
        match self.form {
            Form::Mask => Ok(Detail::Mask(
                span.last("output_token_sampling_mask", meta.output_token_sampling_mask.as_deref())?,
                span.last("output_token_sampling_logprobs", meta.output_token_sampling_logprobs.as_deref())?,
            )),
            Form::Tempered => Ok(Detail::Top(span.last("output_top_logprobs", meta.output_top_logprobs.as_deref())?)),
        }
    }

    fn row(&self, position: usize, drawn: (TokenId, &Number), detail: DetailRow<'_>) -> Result<Support, WireError> {
        let (token, own) = drawn;
        match detail {
            DetailRow::Mask(mask, log_probs) => {
                kept(position, mask, log_probs)?.drawn(position, token)?.exact(&self.asked)
            }
            DetailRow::Top(top) => {
                let log_q = log_prob(own, token, Place { position, what: "log-prob" })?;
                let mut entries = Vec::new();
                for (value, id, _) in top {
                    let id = token_id(id, Place { position, what: "id of a top log-prob" })?;
                    entries.push((id, log_prob(value, id, Place { position, what: "top log-prob" })?));
                }
                Row { position, sampled: Sampled { token, log_q }, entries }.untruncated(&self.asked)
            }
        }
    }
}

/// The new tokens of a piece among all that its lists may cover.
struct Span {
    first: usize,
    new: usize,
    total: usize,
    listed: usize,
}

impl Span {
    /// The rows of the new tokens: a list covers the tokens of the piece, or all tokens so far.
    fn last<'a, T>(&self, what: &'static str, list: Option<&'a [T]>) -> Result<&'a [T], WireError> {
        let advice = "this SGLang does not report it; 0.5.23 does when it is asked";
        let list = list.ok_or(WireError::Missing { field: what, advice })?;
        if list.len() != self.listed && list.len() != self.total {
            return Err(WireError::Lengths { position: self.first, what, found: list.len(), tokens: self.listed });
        }
        Ok(&list[list.len() - self.new..])
    }
}

enum Detail<'a> {
    Mask(&'a [Vec<Number>], &'a [SupportLogProbs]),
    Top(&'a [Option<Vec<Triple>>]),
}

enum DetailRow<'a> {
    Mask(&'a [Number], &'a SupportLogProbs),
    Top(&'a [Triple]),
}

impl<'a> Detail<'a> {
    fn at(&self, at: usize) -> DetailRow<'a> {
        match self {
            Self::Mask(masks, log_probs) => DetailRow::Mask(&masks[at], &log_probs[at]),
            Self::Top(top) => DetailRow::Top(top[at].as_deref().unwrap_or_default()),
        }
    }
}

/// The kept ids of one position with their log-probs.
struct Kept(Vec<(TokenId, f64)>);

impl Kept {
    fn drawn(self, position: usize, token: TokenId) -> Result<Row, WireError> {
        let own = self.0.iter().find(|(id, _)| *id == token).map(|(_, log_q)| *log_q);
        let kept = self.0.len();
        let outside = lockstep_core::support::SupportError::SampledOutside { token, kept };
        let log_q = own.ok_or(WireError::from(outside.at(position)))?;
        Ok(Row { position, sampled: Sampled { token, log_q }, entries: self.0 })
    }
}

fn kept(position: usize, mask: &[Number], log_probs: &SupportLogProbs) -> Result<Kept, WireError> {
    let SupportLogProbs::All(log_probs) = log_probs else {
        let advice = "send sampling_logprobs_mode \"support\"; one value a token is not the support";
        return Err(WireError::Missing { field: "log-probs of the kept ids", advice });
    };
    if log_probs.len() != mask.len() {
        let error = lockstep_core::support::SupportError::Lengths { ids: mask.len(), log_probs: log_probs.len() };
        return Err(error.at(position).into());
    }
    let mut entries = Vec::with_capacity(mask.len());
    for (id, value) in mask.iter().zip(log_probs) {
        let id = token_id(id, Place { position, what: "id of the mask" })?;
        entries.push((id, log_prob(value, id, Place { position, what: "sampling log-prob" })?));
    }
    Ok(Kept(entries))
}

/// The spans, or one span of the label that stands alone. A piece in the middle says nothing of the tokens to come.
fn versions(meta: &mut Meta, ended: bool, tokens: usize) -> Option<Vec<VersionSpan>> {
    let one = |version| vec![VersionSpan { version, start: 0, end: tokens }];
    let spans = meta.weight_versions.take().or_else(|| meta.weight_version.take().map(one));
    spans.filter(|_| ended)
}

fn end(finish: Option<Finish>) -> Result<Option<End>, WireError> {
    let Some(finish) = finish else { return Ok(None) };
    match finish.r#type.as_str() {
        "stop" => Ok(Some(End::Stop)),
        "length" => Ok(Some(End::Length)),
        "abort" => {
            let message = finish.message.map_or_else(String::new, |message| format!(": {}", json::shortened(&message)));
            Ok(Some(End::Aborted(format!("SGLang aborted the request{message}"))))
        }
        other => Err(WireError::Finish(format!("{other:?}"))),
    }
}
