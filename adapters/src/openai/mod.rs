//! A server that speaks OpenAI's `/v1/completions` and no token ids: texts in, texts out.
//!
//! It cannot be trained with: without ids nobody knows what was sampled. This is a target for the conformance suite
//! alone, which asks what its log-probs mean. Every text of a token gets a number here; numbers are joined as texts.

mod parse;
mod sampler;
mod texts;

pub use parse::parse;
pub use sampler::OpenAiSampler;
pub use texts::Texts;

/// Log-probs asked for at each position.
pub const HEAD: u32 = 20;

/// Ids there are: far more than a server will name.
pub const VOCABULARY: u32 = 1 << 17;
