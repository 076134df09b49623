//! Adapters that make other engines (vLLM, SGLang, llama.cpp) speak the ports of the core.
//!
//! Each engine has a pure encoder and a pure parser; [`connect`] finds out what stands at an address, whether it tells the
//! truth about what it draws, and gives its ports. Nothing here makes ids from text, or fills in what an engine left out.

mod answer;
mod ask;
mod control;
mod engine;
mod http;
mod json;
mod link;
mod options;
mod probe;
mod row;
mod sampler;

#[cfg(feature = "candle")]
pub mod candle;
pub mod llama_cpp;
pub mod openai;
pub mod sglang;
pub mod vllm;
pub mod wire;

pub use answer::{Answer, Next, Versions, Weights, stamp};
pub use ask::EncodeError;
pub use control::EngineControl;
pub use engine::{AdapterError, Engine, connect};
pub use options::{EngineKind, OnFinding, Options};
pub use probe::{Finding, launch_line};
pub use sampler::EngineSampler;
pub use wire::{Asked, Chunk, End, VersionSpan, WireError};
