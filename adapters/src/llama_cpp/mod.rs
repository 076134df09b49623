//! llama.cpp's `llama-server`, by `/completion` with `post_sampling_probs`.
//!
//! Written after the tree in llama-cpp-python 0.3.36. A stream of this server leaves out the tokens that end inside a
//! UTF-8 character, so an answer is drawn in *legs*: short whole replies, each of which lists every id. Knows no socket.

mod encode;
mod parse;

pub use encode::{Leg, SAMPLERS, encode, n_probs};
pub use parse::{Drawn, Parser};

/// The route of a request.
pub const PATH: &str = "/completion";
