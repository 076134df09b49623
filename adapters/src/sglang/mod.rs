//! SGLang's `/generate` with `return_sampling_mask`.
//!
//! Written after SGLang 0.5.23. Knows no socket.

mod encode;
mod parse;

pub use encode::{LEAST_TEMPERATURE, MOST_KEPT, encode};
pub use parse::Parser;

/// The route of a request.
pub const PATH: &str = "/generate";

/// What a reply reports of each position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The kept ids with their log-probs.
    Mask,
    /// log softmax at the temperature, over the whole vocabulary: q itself where nothing is truncated.
    Tempered,
}

/// How one SGLang server is spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dialect {
    /// Whether the server reports kept ids; without them a truncated q can only be observed.
    pub masks: bool,
    /// Log-probs asked for at each position of an untruncated q.
    pub head: u32,
    /// Sent as top_k where none is asked.
    pub cap_top_k: Option<u32>,
}

impl Dialect {
    /// What the reply to a request with these filters reports.
    pub fn form(&self, truncation: &lockstep_core::sampling::Truncation) -> Form {
        if self.masks && !truncation.is_none() { Form::Mask } else { Form::Tempered }
    }
}
