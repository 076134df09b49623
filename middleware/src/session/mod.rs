//! Chat sessions, token ids in and token ids out.
//!
//! A conversation's prompt is the exact ids of its last turn, then the ids of what is new; answers are never encoded
//! from their text. How a request goes through:
//!
//! ```text
//! ChatModel::load(directory)                     tokenizer, chat template, what the template does to a history
//! Sessions::extend(key, conversation) -> Turn    turn.prompt goes to the engine
//! Decoder::push(id)                              text for the client, as ids arrive
//! Parser::push(text)                             tool calls and reasoning, as text arrives
//! Sessions::commit(&turn, &answer)               -> SessionRecord, which goes to the ledger
//! Sessions::restore(records)                     after a restart
//! ```
//!
//! Knows no engine, no HTTP and no ledger.

mod analysis;
mod decoder;
mod drift;
mod error;
mod finding;
mod history;
mod json;
mod messages;
mod model;
mod parse;
mod record;
mod sessions;
mod shield;
mod start;
mod store;
mod suffix;
mod template;

pub use analysis::TemplateFinding;
pub use decoder::{Decoder, Show, Special, Unknown};
pub use drift::{Drift, DriftKind, drifts};
pub use error::SessionError;
pub use finding::{Change, Finding, Policy};
pub use history::Benign;
pub use model::{ChatModel, ModelFiles, ModelOptions, Rendered};
pub use parse::{ParseFinding, Parser, Parsers, REASONING_PARSERS, Shown, TOOL_PARSERS, message};
pub use record::{SessionRecord, SessionSpan, join};
pub use sessions::{Answer, Key, Sessions, Settings, Turn};
pub use shield::SpecialInText;
pub use store::Limits;
pub use template::{Ask, Clock, Conversation};
