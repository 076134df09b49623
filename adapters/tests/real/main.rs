//! Real engines: they are believed, their draws follow their reports, and a lie would be seen.
//!
//! `make real` starts a `llama-server` and names it in `LOCKSTEP_LLAMA_URL`, `make real-vllm` a vLLM in
//! `LOCKSTEP_VLLM_URL`; a test without its engine says so and does nothing.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

mod draws;
mod llama;
mod vllm;
