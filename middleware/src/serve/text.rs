//! What the text routes need of a model: the seam between the gateway and tokenizer, chat template, sessions and parsers.

use super::refusal::Refusal;
use crate::session::SessionRecord;
use lockstep_core::{FinishReason, TokenId};
use serde_json::{Map, Value};

/// Ids to text, as they arrive.
pub trait Decode: Send {
    /// The text that is complete with this id; empty while a character is still open.
    ///
    /// # Errors
    /// A tokenizer that fails.
    fn push(&mut self, id: TokenId) -> Result<String, Refusal>;

    /// What was still open at the end.
    ///
    /// # Errors
    /// A tokenizer that fails.
    fn finish(&mut self) -> Result<String, Refusal>;
}

/// A chat request, as far as the model's template has a say in it.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// The messages, in OpenAI's form.
    pub messages: Vec<Value>,
    /// The tools, in OpenAI's form.
    pub tools: Vec<Value>,
    /// Variables of the template (`enable_thinking` and the like).
    pub variables: Option<Map<String, Value>>,
    /// The session it continues, where the client names one.
    pub session: Option<String>,
}

/// A piece of an answer, as the client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text that is neither reasoning nor a tool call.
    Content(String),
    /// What the model thinks first.
    Reasoning(String),
    /// A tool call, whole.
    Call {
        /// The tool.
        name: String,
        /// Its arguments, as JSON in a text.
        arguments: String,
    },
}

/// Takes an answer's text apart, as it arrives.
pub trait Parse: Send {
    /// The pieces that are complete with this text.
    fn push(&mut self, text: &str) -> Vec<Piece>;

    /// What was still open at the end.
    fn finish(&mut self) -> Vec<Piece>;
}

/// A turn of a conversation that is about to be answered.
pub trait Talk: Send + Sync {
    /// The whole prompt: the ids that were there, then those of what is new.
    fn prompt(&self) -> &[TokenId];

    /// A parser for one answer.
    fn parser(&self) -> Box<dyn Parse>;

    /// Takes an answer into the conversation, as the client got it. Gives what the ledger keeps.
    ///
    /// # Errors
    /// A conversation that went on meanwhile.
    fn commit(&self, sampled: Vec<TokenId>, finish: FinishReason, shown: Value) -> Result<SessionRecord, Refusal>;
}

/// Tokenizer, chat template, sessions and parsers of a model.
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

    /// The next turn of a conversation.
    ///
    /// # Errors
    /// Messages the template refuses, a conversation that cannot be continued.
    fn turn(&self, conversation: &Conversation) -> Result<Box<dyn Talk>, Refusal>;
}
