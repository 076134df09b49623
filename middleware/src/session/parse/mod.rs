//! What a client is shown of an answer's text: reasoning, text, tool calls. The ids stay what they are.

mod reasoning;
mod tags;
mod tools;

use super::{ChatModel, SessionError};
use lockstep_core::TokenId;
use reasoning::Reasoning;
use serde_json::{Value as Json, json};
use tools::ToolCalls;

/// Parsers of tool calls, by name.
pub const TOOL_PARSERS: [&str; 2] = ["hermes", "qwen3"];
/// Parsers of reasoning, by name.
pub const REASONING_PARSERS: [&str; 1] = ["qwen3"];

/// Which parsers an answer goes through; `None` leaves the text as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Parsers {
    tools: bool,
    reasoning: bool,
}

/// A piece of an answer, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// More of `reasoning_content`.
    Reasoning(String),
    /// More of `content`.
    Text(String),
    /// A whole tool call: its number from 0, its name, its arguments as they were sampled.
    Call {
        /// Its number.
        index: usize,
        /// The tool.
        name: String,
        /// JSON, letter by letter as it was sampled.
        arguments: String,
    },
}

/// Something in an answer's text that is not what it should be. The text is shown as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseFinding {
    /// The tags are there, the call is not.
    #[error("a tool call is shown as text: {reason}")]
    MalformedCall {
        /// Why.
        reason: String,
    },
    /// The answer ended within a call.
    #[error("the answer ends within a tool call, which is shown as text")]
    UnfinishedCall,
    /// The answer ended within its reasoning.
    #[error("the answer ends within its reasoning")]
    UnfinishedReasoning,
}

impl Parsers {
    /// The parsers of these names.
    ///
    /// # Errors
    /// A name nobody has, with those there are.
    pub fn named(tools: Option<&str>, reasoning: Option<&str>) -> Result<Self, SessionError> {
        let known = |kind, names: &[&str], name: Option<&str>| match name {
            Some(name) if !names.contains(&name) => {
                Err(SessionError::UnknownParser { kind, name: name.to_owned(), known: names.join(", ") })
            }
            name => Ok(name.is_some()),
        };
        Ok(Self {
            tools: known("tool call", &TOOL_PARSERS, tools)?,
            reasoning: known("reasoning", &REASONING_PARSERS, reasoning)?,
        })
    }

    /// A parser for the answer to this prompt, whose end says whether the answer starts within its reasoning.
    pub fn start(&self, model: &ChatModel, prompt: &[TokenId]) -> Parser {
        let within = self.reasoning && opens_reasoning(model, prompt);
        Parser {
            reasoning: self.reasoning.then(|| Reasoning::new(within)),
            tools: self.tools.then(ToolCalls::default),
            findings: Vec::new(),
        }
    }
}

/// Whether the prompt ends with `<think>` and white space.
fn opens_reasoning(model: &ChatModel, prompt: &[TokenId]) -> bool {
    let tail = &prompt[prompt.len().saturating_sub(8)..];
    let text = model.decode(tail, super::Show::ALL).unwrap_or_default();
    text.trim_end().ends_with(reasoning::OPEN)
}

/// An answer's text as it arrives.
#[derive(Debug, Clone)]
pub struct Parser {
    reasoning: Option<Reasoning>,
    tools: Option<ToolCalls>,
    findings: Vec<ParseFinding>,
}

impl Parser {
    /// What can be shown with this text. What may turn out to be a tag is held back.
    pub fn push(&mut self, text: &str) -> Vec<Shown> {
        let pieces = match &mut self.reasoning {
            Some(reasoning) => reasoning.push(text),
            None => vec![Shown::Text(text.to_owned())],
        };
        self.calls(pieces)
    }

    /// What is left when no text follows, and what was wrong with the answer.
    pub fn finish(mut self) -> (Vec<Shown>, Vec<ParseFinding>) {
        let left = self.reasoning.as_mut().map(|reasoning| reasoning.finish(&mut self.findings));
        let mut shown = self.calls(left.unwrap_or_default());
        if let Some(tools) = &mut self.tools {
            shown.extend(tools.finish(&mut self.findings));
        }
        (shown, self.findings)
    }

    fn calls(&mut self, pieces: Vec<Shown>) -> Vec<Shown> {
        let Some(tools) = &mut self.tools else {
            return pieces.into_iter().filter(|piece| !is_empty(piece)).collect();
        };
        let mut shown = Vec::new();
        for piece in pieces {
            match piece {
                Shown::Text(text) => shown.extend(tools.push(&text, &mut self.findings)),
                other => shown.push(other),
            }
        }
        shown.retain(|piece| !is_empty(piece));
        shown
    }
}

fn is_empty(piece: &Shown) -> bool {
    matches!(piece, Shown::Text(text) | Shown::Reasoning(text) if text.is_empty())
}

/// The assistant's message of these pieces; `call_id` names the tool calls, by their number.
///
/// `content` is null where there are calls and no text, as OpenAI has it.
pub fn message(pieces: &[Shown], call_id: impl Fn(usize) -> String) -> Json {
    let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for piece in pieces {
        match piece {
            Shown::Text(more) => text.push_str(more),
            Shown::Reasoning(more) => reasoning.push_str(more),
            Shown::Call { index, name, arguments } => calls.push(json!({
                "id": call_id(*index),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            })),
        }
    }
    let content = if text.is_empty() && !calls.is_empty() { Json::Null } else { Json::String(text) };
    let mut message = json!({"role": "assistant", "content": content});
    if !reasoning.is_empty() {
        message["reasoning_content"] = Json::String(reasoning);
    }
    if !calls.is_empty() {
        message["tool_calls"] = Json::Array(calls);
    }
    message
}
