//! A whole reply of `llama-server`: its ids, a row of probabilities for each that has one, and the settings it used.

use super::encode::{Leg, n_probs, sampling};
use crate::{
    json::{self, Number},
    row::{Place, Row, token_id},
    wire::{Asked, End, WireError},
};
use lockstep_core::{Support, TokenId, ports::SampleRequest, support::Sampled, support::SupportError};
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Deserialize)]
struct Reply {
    tokens: Option<Vec<Number>>,
    model: Option<String>,
    stop_type: Option<String>,
    generation_settings: Option<Map<String, Value>>,
    completion_probabilities: Option<Vec<Probabilities>>,
    error: Option<Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Probabilities {
    id: Number,
    prob: Option<Number>,
    top_probs: Option<Vec<Top>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Top {
    id: Number,
    prob: Number,
}

/// What a leg drew.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// Every id, in order, up to the first stop id.
    pub tokens: Vec<TokenId>,
    /// The support of each; `None` where the server left it out, because the token ends inside a UTF-8 character.
    pub rows: Vec<Option<Support>>,
    /// Why it ended.
    pub end: End,
    /// The model's name or path.
    pub model: Option<String>,
}

/// Reads the reply to one leg.
#[derive(Debug, Clone)]
pub struct Parser {
    asked: Asked,
    settings: Map<String, Value>,
    n_probs: usize,
}

impl Parser {
    /// A parser for the reply to this leg.
    pub fn new(request: &SampleRequest, leg: &Leg, vocabulary: u32) -> Self {
        let asked = Asked::new(request, vocabulary, leg.head as usize);
        Self { asked, settings: settings(request, leg), n_probs: n_probs(request, leg) as usize }
    }

    /// Reads the reply.
    ///
    /// # Errors
    /// Settings other than asked, and whatever is missing, contradicts itself or is no probability.
    pub fn parse(&self, bytes: &[u8]) -> Result<Drawn, WireError> {
        let reply = self.reply(bytes)?;
        let first = self.asked.resumed;
        let ids = reply.tokens.as_deref().ok_or(missing("tokens"))?;
        let id = |(at, id)| token_id(id, Place { position: first + at, what: "token id" });
        let mut tokens: Vec<TokenId> = ids.iter().enumerate().map(id).collect::<Result<_, _>>()?;
        let rows = reply.completion_probabilities.as_deref().unwrap_or_default();
        let owners = owners(&tokens, rows, first)?;
        let mut supports = vec![None; tokens.len()];
        for (row, owner) in rows.iter().zip(owners) {
            let Some(at) = owner else { continue };
            supports[at] = Some(self.support(row, tokens[at], first + at)?);
        }
        let mut end = end(reply.stop_type.as_deref())?;
        if let Some(at) = tokens.iter().position(|token| self.asked.stop.contains(token)) {
            // The server knows no stop ids: what it drew after one belongs to no answer.
            tokens.truncate(at + 1);
            supports.truncate(at + 1);
            end = End::Stop;
        }
        if tokens.len() > self.asked.remaining {
            return Err(WireError::TooMany { found: tokens.len(), asked: self.asked.remaining });
        }
        Ok(Drawn { tokens, rows: supports, end, model: reply.model })
    }

    /// The support of `token` as a second draw at its position reports it; `None` where that has no row either.
    ///
    /// # Errors
    /// As [`Parser::parse`]; also when the token is not among the reported ids.
    pub fn support_elsewhere(&self, bytes: &[u8], token: TokenId) -> Result<Option<Support>, WireError> {
        let reply = self.reply(bytes)?;
        let row = reply.completion_probabilities.as_deref().unwrap_or_default().first();
        row.map(|row| self.of_entry(row, token, self.asked.resumed)).transpose()
    }

    fn reply(&self, bytes: &[u8]) -> Result<Reply, WireError> {
        let reply: Reply = json::read(bytes)?;
        if let Some(error) = &reply.error {
            return Err(WireError::Engine(json::shortened(&error.to_string())));
        }
        let echoed = reply.generation_settings.as_ref().ok_or(missing("generation_settings"))?;
        check_settings(&self.settings, echoed)?;
        Ok(reply)
    }

    fn support(&self, row: &Probabilities, token: TokenId, position: usize) -> Result<Support, WireError> {
        let own = row.prob.as_ref().ok_or(missing("completion_probabilities[].prob"))?;
        let log_q = log_of(own, token, position)?;
        self.row(row, Sampled { token, log_q }, position)
    }

    fn of_entry(&self, row: &Probabilities, token: TokenId, position: usize) -> Result<Support, WireError> {
        let entries = self.entries(row, position)?;
        let own = entries.iter().find(|(id, _)| *id == token).map(|(_, log_q)| *log_q);
        let outside = SupportError::SampledOutside { token, kept: entries.len() }.at(position);
        self.row(row, Sampled { token, log_q: own.ok_or(outside)? }, position)
    }

    fn entries(&self, row: &Probabilities, position: usize) -> Result<Vec<(TokenId, f64)>, WireError> {
        let top = row.top_probs.as_ref().ok_or(missing("completion_probabilities[].top_probs"))?;
        let entry = |top: &Top| {
            let id = token_id(&top.id, Place { position, what: "id of a top probability" })?;
            Ok((id, log_of(&top.prob, id, position)?))
        };
        top.iter().map(entry).collect()
    }

    fn row(&self, row: &Probabilities, sampled: Sampled, position: usize) -> Result<Support, WireError> {
        let entries = self.entries(row, position)?;
        let listed = entries.len();
        let row = Row { position, sampled, entries };
        if self.asked.truncation.is_none() {
            return row.untruncated(&self.asked);
        }
        let advice = "raise the most kept ids a position (--most-kept), or ask for a top_k";
        row.complete(listed < self.n_probs, advice)?.exact(&self.asked)
    }
}

fn missing(field: &'static str) -> WireError {
    WireError::Missing { field, advice: "this is no reply of llama-server's /completion with post_sampling_probs" }
}

/// The log of a probability; 0, above 1 and what is no number are refused.
fn log_of(value: &Number, token: TokenId, position: usize) -> Result<f64, WireError> {
    match *value {
        Number::Is(prob) if prob > 0.0 && prob <= 1.0 => Ok(prob.ln()),
        ref other => Err(WireError::NotALogProb {
            position,
            token,
            what: "probability",
            value: format!("{other}, not a number in (0, 1]"),
        }),
    }
}

/// Which token each row belongs to. Rows of tokens that end inside a UTF-8 character are missing, so the rows are a
/// subsequence of the tokens; where it can be read in two ways the row belongs to none.
///
/// # Errors
/// A row of a token that was not drawn there.
fn owners(tokens: &[TokenId], rows: &[Probabilities], first: usize) -> Result<Vec<Option<usize>>, WireError> {
    let place = Place { position: first, what: "probability row's id" };
    let ids: Vec<TokenId> = rows.iter().map(|row| token_id(&row.id, place)).collect::<Result<_, _>>()?;
    let mut earliest = Vec::with_capacity(ids.len());
    let mut at = 0;
    for &row in &ids {
        let found = tokens[at..].iter().position(|&token| token == row).map(|ahead| at + ahead);
        let position = found.ok_or_else(|| no_owner(tokens, (first, at), row, ids.len()))?;
        earliest.push(position);
        at = position + 1;
    }
    let mut end = tokens.len();
    let mut owners = vec![None; ids.len()];
    for (n, &row) in ids.iter().enumerate().rev() {
        let latest = tokens[..end].iter().rposition(|&token| token == row);
        end = latest.unwrap_or(0);
        owners[n] = latest.filter(|&latest| latest == earliest[n]);
    }
    Ok(owners)
}

fn no_owner(tokens: &[TokenId], at: (usize, usize), row: TokenId, rows: usize) -> WireError {
    let (first, at) = at;
    match tokens.get(at) {
        Some(&token) => WireError::OtherToken { position: first + at, token, row },
        None => WireError::Lengths { position: first, what: "probability rows", found: rows, tokens: tokens.len() },
    }
}

/// What the server must echo.
fn settings(request: &SampleRequest, leg: &Leg) -> Map<String, Value> {
    let limit = request.request.params.limits().max_new_tokens as usize;
    let mut settings = sampling(request, leg);
    settings.insert("n_predict".into(), limit.saturating_sub(request.resumed.len()).min(leg.tokens).into());
    settings.insert("speculative.types".into(), "none".into());
    settings.insert("lora".into(), Value::Array(vec![]));
    settings
}

/// Compares what was asked with what was used; numbers as the server's own 32 bits hold them.
fn check_settings(asked: &Map<String, Value>, used: &Map<String, Value>) -> Result<(), WireError> {
    for (field, asked) in asked {
        let echoed = used.get(field);
        let same = match (asked.as_f64(), echoed.and_then(Value::as_f64)) {
            (Some(asked), Some(used)) => asked as f32 == used as f32,
            _ => echoed == Some(asked),
        };
        if !same {
            let used = echoed.map_or_else(|| "nothing it echoes".to_owned(), |used| json::shortened(&used.to_string()));
            return Err(WireError::Settings { field: field.clone(), asked: asked.to_string(), used });
        }
    }
    Ok(())
}

fn end(stop_type: Option<&str>) -> Result<End, WireError> {
    match stop_type {
        Some("limit") => Ok(End::Length),
        Some("eos") => Ok(End::Stop),
        Some(other) => Err(WireError::Finish(format!("{other:?}"))),
        None => Err(missing("stop_type")),
    }
}
