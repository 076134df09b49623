//! What the template writes after an answer: the end of its turn, the messages that follow, the start of the next answer.
//!
//! The answer's own text is never rendered: a marker stands in its place, and what comes after the marker is taken.

use super::{
    Ask, ChatModel, Conversation, SessionError,
    model::{Rendered, Written},
};
use lockstep_core::TokenId;
use serde_json::{Value as Json, json};

/// What stands for the answer. No template changes letters and digits.
const MARKER: &str = "LockstepAnswer";

/// Text and ids after the answer of message `answer`, with what its turn's end owes at the front.
///
/// # Errors
/// A template that refuses, or that shows the answer never or more than once.
pub(super) fn after(
    model: &ChatModel,
    conversation: Conversation<'_>,
    answer: usize,
) -> Result<Rendered, SessionError> {
    let marker = free_marker(conversation.messages);
    let calls =
        conversation.messages[answer].get("tool_calls").filter(|calls| calls.as_array().is_some_and(|c| !c.is_empty()));
    if let Some(calls) = calls {
        let message = json!({"role": "assistant", "content": marker, "tool_calls": calls});
        let with_calls = Marked { model, conversation, answer, marker: &marker, message };
        if let Ok(rendered) = with_calls.after_calls() {
            return Ok(rendered);
        }
    }
    let message = json!({"role": "assistant", "content": marker});
    let (written, from) = Marked { model, conversation, answer, marker: &marker, message }
        .written(conversation.messages.len(), Ask::Answer)?;
    written.from(model, from)
}

struct Marked<'a> {
    model: &'a ChatModel,
    conversation: Conversation<'a>,
    answer: usize,
    marker: &'a str,
    message: Json,
}

impl Marked<'_> {
    /// The first `until` messages with the marker in the answer's place, and the byte after the marker.
    fn written(&self, until: usize, ask: Ask) -> Result<(Written, usize), SessionError> {
        let mut messages = self.conversation.messages[..until].to_vec();
        messages[self.answer] = self.message.clone();
        let written = self.model.written(Conversation { messages: &messages, ..self.conversation }, ask)?;
        let times = written.text.matches(self.marker).count();
        match written.text.find(self.marker) {
            Some(at) if times == 1 => Ok((written, at + self.marker.len())),
            _ => Err(SessionError::AnswerNotShown { at: self.answer, times }),
        }
    }

    /// Behind the marker come the tool calls, which were sampled; behind them the end of the turn, which is owed. The
    /// history without the new messages ends where the turn does.
    fn after_calls(&self) -> Result<Rendered, SessionError> {
        let (history, history_from) = self.written(self.answer + 1, Ask::Nothing)?;
        let (whole, from) = self.written(self.conversation.messages.len(), Ask::Answer)?;
        let history = &history.text[history_from..];
        let not_shown = || SessionError::AnswerNotShown { at: self.answer, times: 0 };
        if !whole.text[from..].starts_with(history) || !history.ends_with(self.model.turn_end()) {
            return Err(not_shown());
        }
        whole.from(self.model, from + history.len() - self.model.turn_end().len())
    }
}

/// A marker that is in none of the messages.
fn free_marker(messages: &[Json]) -> String {
    let texts: Vec<String> = messages.iter().map(Json::to_string).collect();
    let mut marker = MARKER.to_owned();
    while texts.iter().any(|text| text.contains(&marker)) {
        marker.push('X');
    }
    marker
}

/// What the template writes after an answer when nothing follows it.
pub(super) fn turn_end(model: &ChatModel) -> Result<String, SessionError> {
    let messages = [json!({"role": "user", "content": "Hi"}), json!({"role": "assistant", "content": "Hi"})];
    let conversation = Conversation::new(&messages, &[]);
    let message = json!({"role": "assistant", "content": MARKER});
    let marked = Marked { model, conversation, answer: 1, marker: MARKER, message };
    let (written, from) = marked.written(2, Ask::Nothing)?;
    Ok(written.text[from..].to_owned())
}

/// How many of the suffix's first ids an answer brought along: its stop token, where it is the template's, and what of the
/// turn's end it wrote after it. With it, the special token an answer ended with where that is another one.
pub(super) fn owed(
    model: &ChatModel,
    ids: &[TokenId],
    suffix: &[TokenId],
) -> Result<(usize, Option<TokenId>), SessionError> {
    let (Some(&last), Some(&first)) = (ids.last(), suffix.first()) else { return Ok((0, None)) };
    if !model.is_special(first) {
        return Ok((0, None));
    }
    let longest = model.encode(model.turn_end())?.len().max(1).min(suffix.len());
    let there = (1..=longest).rev().find(|&length| ids.ends_with(&suffix[..length]));
    let other = Some(last).filter(|last| there.is_none() && model.is_special(*last));
    Ok((there.unwrap_or(0), other))
}
