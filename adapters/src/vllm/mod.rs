//! vLLM, 0.28 and later with `--return-sampling-mask`, and builds without it by processed log-probs.
//!
//! Written after vLLM 0.32.0. Knows no socket.

mod encode;
mod parse;

pub use encode::{Body, Completions, Generate, LEAST_TEMPERATURE, MOST_KEPT, encode};
pub use parse::Parser;

/// The route a request takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// `/inference/v1/generate`: tokens in, tokens out.
    Generate,
    /// `/v1/completions`, where the other is closed.
    Completions,
}

impl Route {
    /// The path.
    pub fn path(self) -> &'static str {
        match self {
            Self::Generate => "/inference/v1/generate",
            Self::Completions => "/v1/completions",
        }
    }
}

/// What the server's log-probs are; one flag of the server decides for all its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The kept ids, and processed log-probs of the most probable of them.
    Mask,
    /// Processed log-probs alone: the entries above -9999 are the support when they are all of it.
    Processed,
    /// log softmax of the raw logits: says nothing of what was drawn. Observed only.
    Raw,
}

/// How one vLLM server is spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dialect {
    /// The route.
    pub route: Route,
    /// What its log-probs are.
    pub form: Form,
    /// Log-probs asked for at each position; at most the server's `--max-logprobs`.
    pub head: u32,
    /// Sent as top_k where none is asked.
    pub cap_top_k: Option<u32>,
    /// The served model's name.
    pub model: Option<String>,
    /// Keeps the prefix cache of different weights apart.
    pub salt: Option<String>,
}
