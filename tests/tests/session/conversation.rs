//! Messages, answers, and a sampler that draws any ids.

use lockstep::session::{Answer, Conversation, Key, SessionRecord, Sessions, Turn};
use lockstep_core::{FinishReason, TokenId};
use serde_json::{Value, json};

/// `<|im_end|>`.
pub const IM_END: TokenId = TokenId(151_645);

pub fn ids(ids: &[u32]) -> Vec<TokenId> {
    ids.iter().map(|&id| TokenId(id)).collect()
}

pub fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

pub fn said(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

pub fn called(name: &str, arguments: &str) -> Value {
    json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}]})
}

pub fn result(text: &str) -> Value {
    json!({"role": "tool", "tool_call_id": "call_1", "content": text})
}

pub fn answer(sampled: Vec<TokenId>, shown: Value) -> Answer {
    let finish = match sampled.last() {
        Some(&last) if last == IM_END => FinishReason::Stop(last),
        _ => FinishReason::Length,
    };
    Answer { sampled, finish, shown }
}

/// The next turn of a named session.
pub fn turn(sessions: &Sessions, name: &str, messages: &[Value]) -> Turn {
    let turn = sessions.extend(Key::Session(name), Conversation::new(messages, &[]));
    turn.unwrap_or_else(|error| panic!("{error}"))
}

/// The next turn of a named session, answered; the messages with the answer.
pub fn answered(
    sessions: &Sessions,
    name: &str,
    messages: &[Value],
    (sampled, shown): (Vec<TokenId>, Value),
) -> (Turn, Vec<Value>) {
    let turn = turn(sessions, name, messages);
    commit(sessions, &turn, sampled, shown.clone());
    (turn, [messages, &[shown]].concat())
}

pub fn commit(sessions: &Sessions, turn: &Turn, sampled: Vec<TokenId>, shown: Value) -> SessionRecord {
    sessions.commit(turn, &answer(sampled, shown)).unwrap_or_else(|error| panic!("{error}"))
}

/// The ids of a session, in order.
pub fn all(sessions: &Sessions, name: &str) -> Vec<TokenId> {
    let spans = sessions.spans(name).unwrap_or_default();
    spans.iter().flat_map(|span| span.tokens().to_vec()).collect()
}
