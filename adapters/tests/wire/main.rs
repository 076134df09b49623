//! Replies of engines, as bytes: real ones (captured from vLLM 0.32.0 on a CPU and llama.cpp) and ones made from the released
//! schema (files named `synthetic_..`), each beside the ways in which it can be broken.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

mod broken;
mod encoding;
mod replies;
mod round_trip;
mod vectors;
mod versions;
