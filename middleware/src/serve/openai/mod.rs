//! OpenAI's routes, with vLLM's additions.

mod chat;
mod completions;

pub(super) use chat::chat;
pub(super) use completions::completions;

use super::{Gateway, fields::Neutral, refusal::Refusal, reply, stop, text::Text};
use axum::{extract::State, response::Response};
use lockstep_core::TokenId;
use serde::Serialize;
use std::sync::Arc;

/// Fields of both routes that change neither the distribution nor the answer.
const HARMLESS: &[&str] = &[
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "priority",
    "request_id",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "detokenize",
];

/// Fields of both routes that would change the distribution or the answer.
const NEUTRAL: &[(&str, Neutral)] = &[
    ("presence_penalty", Neutral::Number(0.0)),
    ("frequency_penalty", Neutral::Number(0.0)),
    ("repetition_penalty", Neutral::Number(1.0)),
    ("length_penalty", Neutral::Number(1.0)),
    ("min_tokens", Neutral::Number(0.0)),
    ("logit_bias", Neutral::Empty),
    ("allowed_token_ids", Neutral::Null),
    ("bad_words", Neutral::Empty),
    ("logits_processors", Neutral::Empty),
    ("structured_outputs", Neutral::Null),
    ("guided_json", Neutral::Null),
    ("guided_regex", Neutral::Null),
    ("guided_choice", Neutral::Null),
    ("guided_grammar", Neutral::Null),
    ("response_format", Neutral::Json(r#"{"type":"text"}"#)),
    ("use_beam_search", Neutral::False),
    ("truncate_prompt_tokens", Neutral::Null),
    ("prompt_logprobs", Neutral::Null),
    ("cache_salt", Neutral::Null),
    ("kv_transfer_params", Neutral::Null),
    ("vllm_xargs", Neutral::Null),
    ("echo", Neutral::False),
    ("suffix", Neutral::Empty),
    ("best_of", Neutral::Number(1.0)),
    ("add_special_tokens", Neutral::Null),
];

#[derive(Serialize)]
struct Models<'a> {
    object: &'static str,
    data: [Model<'a>; 1],
}

#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
}

pub(super) async fn models(State(gateway): State<Arc<Gateway>>) -> Result<Response, Refusal> {
    let id = &*gateway.options.model;
    let model = Model { id, object: "model", created: reply::created(), owned_by: crate::serve::OWNER };
    reply::json(&Models { object: "list", data: [model] })
}

/// The text of some ids.
pub(super) fn plain(text: &dyn Text, ids: &[TokenId]) -> Result<String, Refusal> {
    let mut decoder = text.decoder();
    let mut whole = ids.iter().map(|&id| decoder.push(id)).collect::<Result<String, _>>()?;
    whole.push_str(&decoder.finish()?);
    Ok(whole)
}

/// A text up to where a stop text begins, or with it.
fn cut(whole: &mut String, stops: &[String], keep: bool) {
    if let Some((at, stop)) = stop::find(whole, stops) {
        whole.truncate(if keep { at + stop.len() } else { at });
    }
}

/// The text of a stream, from which a stop text that is not to be shown is held back.
struct Shown {
    decoder: Box<dyn super::text::Decode>,
    stops: Vec<String>,
    waiting: String,
    stopped: bool,
}

impl Shown {
    fn new(text: &dyn Text, stops: Vec<String>) -> Self {
        Self { decoder: text.decoder(), stops, waiting: String::new(), stopped: false }
    }

    /// What can be shown with these ids; with `last`, everything.
    fn push(&mut self, ids: &[TokenId], last: bool) -> Result<String, Refusal> {
        for &id in ids {
            self.waiting.push_str(&self.decoder.push(id)?);
        }
        if last {
            self.waiting.push_str(&self.decoder.finish()?);
        }
        if let Some((at, _)) = stop::find(&self.waiting, &self.stops) {
            self.waiting.truncate(at);
            self.stopped = true;
        }
        let held = if last || self.stopped { 0 } else { stop::held_back(&self.waiting, &self.stops) };
        let rest = self.waiting.split_off(self.waiting.len() - held);
        Ok(std::mem::replace(&mut self.waiting, rest))
    }
}
