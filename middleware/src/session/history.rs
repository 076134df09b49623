//! Whether a history that a client sends back is the one it was shown.
//!
//! Only marks are kept of messages: clients drop `reasoning_content`, trim white space and write JSON their own way, none
//! of which says that the conversation is another one.

use super::{SessionError, messages};
use serde_json::{Map, Value as Json, json};

/// 128 bits of blake3.
pub(super) type Digest = [u8; 16];

/// What is remembered of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    answer: bool,
    /// The same for two messages that mean the same.
    meaning: Digest,
    /// The same for two messages that are written alike.
    writing: Digest,
    reasoning: Option<Digest>,
    calls: Option<Digest>,
}

/// A difference between what was shown and what came back that changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Benign {
    /// `reasoning_content` did not come back.
    ReasoningDropped,
    /// White space around the text, the spaces or the order of keys of a tool call's arguments, null for an empty text.
    Rewritten,
}

/// How a message that came back stands to the one that was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Likeness {
    Same,
    Benign(Benign),
    Other,
}

impl Mark {
    /// The mark of a message.
    pub(super) fn of(at: usize, message: &Json) -> Result<Self, SessionError> {
        let wrong = |what: String| SessionError::Message { at, what };
        let fields = message.as_object().ok_or_else(|| wrong("it is not an object".into()))?;
        let role = fields.get("role").and_then(Json::as_str).ok_or_else(|| wrong("it has no role".into()))?;
        let answer = role == "assistant";
        let text = messages::content(fields).map_err(wrong)?;
        let calls = calls(fields);
        let reasoning = fields.get("reasoning_content").and_then(Json::as_str).filter(|_| answer);
        let told = if answer { text.trim() } else { &text };
        let names: Vec<Json> = calls.iter().map(|call| json!([call.name, sorted(&call.arguments)])).collect();
        let written: Vec<Json> = calls.iter().map(|call| json!([call.name, call.arguments])).collect();
        let ids: Vec<&Json> = calls.iter().map(|call| &call.id).collect();
        Ok(Self {
            answer,
            meaning: digest(&json!([role, told, names])),
            writing: digest(&json!([role, text, written])),
            reasoning: reasoning.map(|text| digest(&json!(text.trim()))),
            calls: (!ids.is_empty()).then(|| digest(&json!(ids))),
        })
    }

    /// Whether it is an answer.
    pub(super) fn is_answer(&self) -> bool {
        self.answer
    }

    /// How `sent` stands to this mark of what was shown.
    pub(super) fn likeness(&self, sent: &Self) -> Likeness {
        if self.meaning != sent.meaning {
            return Likeness::Other;
        }
        match (self.reasoning, sent.reasoning) {
            (shown, came) if shown == came && self.writing == sent.writing => Likeness::Same,
            (shown, came) if shown == came => Likeness::Benign(Benign::Rewritten),
            (Some(_), None) => Likeness::Benign(Benign::ReasoningDropped),
            _ => Likeness::Other,
        }
    }

    /// Whether the ids of the tool calls, which are ours and random, are the same.
    pub(super) fn same_calls(&self, sent: &Self) -> bool {
        self.calls == sent.calls
    }
}

/// The marks of messages.
pub(super) fn marks(messages: &[Json]) -> Result<Vec<Mark>, SessionError> {
    messages.iter().enumerate().map(|(at, message)| Mark::of(at, message)).collect()
}

/// The mark of the tools.
pub(super) fn tools(tools: &[Json]) -> Digest {
    digest(&Json::Array(tools.iter().map(sorted).collect()))
}

/// Marks of all histories that start these messages: the n-th is that of the first n messages.
pub(super) fn prefixes(tools: Digest, marks: &[Mark]) -> Vec<Digest> {
    let mut last = tools;
    let next = |mark: &Mark| {
        last = short(&[last, mark.meaning].concat());
        last
    };
    std::iter::once(tools).chain(marks.iter().map(next)).collect()
}

struct Call {
    id: Json,
    name: Json,
    arguments: Json,
}

/// Name and arguments; arguments that are no JSON are their text.
fn calls(message: &Map<String, Json>) -> Vec<Call> {
    let call = |call: &Json| {
        let function = call.get("function").unwrap_or(call);
        let arguments = function.get("arguments").cloned().unwrap_or(Json::Null);
        let parsed = arguments.as_str().and_then(|text| serde_json::from_str(text).ok());
        Call { id: call["id"].clone(), name: function["name"].clone(), arguments: parsed.unwrap_or(arguments) }
    };
    message.get("tool_calls").and_then(Json::as_array).into_iter().flatten().map(call).collect()
}

/// Keys in order, at every depth.
fn sorted(value: &Json) -> Json {
    match value {
        Json::Array(items) => items.iter().map(sorted).collect(),
        Json::Object(fields) => {
            let mut fields: Vec<(&String, Json)> = fields.iter().map(|(key, value)| (key, sorted(value))).collect();
            fields.sort_by_key(|(key, _)| *key);
            Json::Object(fields.into_iter().map(|(key, value)| (key.clone(), value)).collect())
        }
        other => other.clone(),
    }
}

fn digest(value: &Json) -> Digest {
    short(value.to_string().as_bytes())
}

pub(super) fn short(bytes: &[u8]) -> Digest {
    let mut digest = [0; 16];
    digest.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn likeness(shown: Json, sent: Json) -> Likeness {
        Mark::of(0, &shown).unwrap().likeness(&Mark::of(0, &sent).unwrap())
    }

    fn calling(arguments: &str) -> Json {
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]})
    }

    #[test]
    fn what_changes_nothing_is_benign() {
        let answer = |text: &str| json!({"role": "assistant", "content": text});
        assert_eq!(likeness(answer("hi"), answer("hi")), Likeness::Same);
        assert_eq!(likeness(answer("\n\nhi"), answer("hi")), Likeness::Benign(Benign::Rewritten));
        let spaced = likeness(calling(r#"{"b": 1, "a": {"d": 2, "c": 3}}"#), calling(r#"{"a":{"c":3,"d":2},"b":1}"#));
        assert_eq!(spaced, Likeness::Benign(Benign::Rewritten));
        let thinking = json!({"role": "assistant", "content": "hi", "reasoning_content": "hm"});
        assert_eq!(likeness(thinking.clone(), answer("hi")), Likeness::Benign(Benign::ReasoningDropped));
        assert_eq!(likeness(thinking.clone(), thinking), Likeness::Same);
        let unknown = json!({"role": "assistant", "content": "hi", "refusal": null, "audio": null});
        assert_eq!(likeness(answer("hi"), unknown), Likeness::Same);
        let parts = json!({"role": "assistant", "content": [{"type": "text", "text": "hi"}]});
        assert_eq!(likeness(answer("hi"), parts), Likeness::Same);
    }

    #[test]
    fn what_changes_something_is_not() {
        let answer = |text: &str| json!({"role": "assistant", "content": text});
        assert_eq!(likeness(answer("hi"), answer("ho")), Likeness::Other);
        assert_eq!(likeness(answer("hi"), json!({"role": "user", "content": "hi"})), Likeness::Other);
        assert_eq!(likeness(calling(r#"{"a":1}"#), calling(r#"{"a":2}"#)), Likeness::Other);
        assert_eq!(likeness(calling(r#"{"a":[1,2]}"#), calling(r#"{"a":[2,1]}"#)), Likeness::Other);
        assert_eq!(likeness(calling("not json"), calling("not  json")), Likeness::Other);
        let thinking = |text: &str| json!({"role": "assistant", "content": "hi", "reasoning_content": text});
        assert_eq!(likeness(thinking("hm"), thinking("ha")), Likeness::Other);
        let user = |text: &str| json!({"role": "user", "content": text});
        assert_eq!(
            likeness(user("hi"), user("hi ")),
            Likeness::Other,
            "a client's own text has no white space to spare"
        );
    }
}
