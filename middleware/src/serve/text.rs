//! What the text routes need of a model: the seam between the gateway and tokenizer, chat template and parsers.

use super::refusal::Refusal;
use lockstep_core::TokenId;
use serde_json::Value;

/// Ids to text, as they arrive.
pub trait Decode: Send {
    /// The text that is complete with this id; empty while a character is still open.
    fn push(&mut self, id: TokenId) -> String;

    /// What was still open at the end.
    fn finish(&mut self) -> String;
}

/// A chat request, as far as the model's template has a say in it.
#[derive(Debug, Clone)]
pub struct Turn {
    /// The messages, in OpenAI's form.
    pub messages: Vec<Value>,
    /// The tools, in OpenAI's form.
    pub tools: Vec<Value>,
    /// Variables of the template (`enable_thinking` and the like).
    pub template: serde_json::Map<String, Value>,
    /// The conversation this continues.
    pub session: Option<String>,
}

/// A turn as ids, and the conversation it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompted {
    /// The whole prompt.
    pub ids: Vec<TokenId>,
    /// The conversation, to be told what was sampled.
    pub session: Option<String>,
}

/// An answer as a chat message.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Message {
    /// The text that is not a tool call and not reasoning; `None` when there is none beside tool calls.
    pub content: Option<String>,
    /// What the model thought first.
    pub reasoning: Option<String>,
    /// Tool calls in OpenAI's form.
    pub tool_calls: Vec<Value>,
}

/// Tokenizer, chat template and parsers of a model.
pub trait Text: Send + Sync {
    /// Ids that end an answer.
    fn stop_ids(&self) -> Vec<TokenId>;

    /// A plain text as ids.
    ///
    /// # Errors
    /// A text the tokenizer refuses.
    fn encode(&self, text: &str) -> Result<Vec<TokenId>, Refusal>;

    /// A decoder for one answer.
    fn decoder(&self) -> Box<dyn Decode>;

    /// One token as text, for showing.
    fn shown(&self, id: TokenId) -> String;

    /// The prompt of a chat turn.
    ///
    /// # Errors
    /// Messages the template refuses, a conversation that cannot be continued.
    fn prompt(&self, turn: &Turn) -> Result<Prompted, Refusal>;

    /// Takes note of what was sampled, so that the next turn continues from exactly these ids.
    ///
    /// # Errors
    /// A conversation that went on meanwhile.
    fn sampled(&self, turn: &Turn, prompted: &Prompted, ids: &[TokenId]) -> Result<(), Refusal>;

    /// The message in an answer's ids.
    ///
    /// # Errors
    /// An answer the parser cannot read.
    fn message(&self, turn: &Turn, ids: &[TokenId]) -> Result<Message, Refusal>;
}
