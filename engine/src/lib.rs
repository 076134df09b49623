//! Qwen3 on candle: one set of weights under a sampler that reports the distribution every token was drawn from, and under
//! a forward pass that is differentiable end to end. On the CPU in f32, on a card in bf16 with f32 master weights and head. Knows nothing of the wire.
//!
//! ```text
//! config -> weights -> model -> generate -> sampler ----.
//!                        |----- cache                   worker -> the ports
//!                        '----- head -> optimiser -> trainer -'
//! ```

pub mod cache;
pub mod config;
#[cfg(feature = "cuda")]
mod cuda;
pub mod device;
mod error;
mod found;
mod fused;
pub mod generate;
pub mod head;
mod matrix;
pub mod memory;
pub mod model;
pub mod numerics;
pub mod optimiser;
mod plain;
pub mod sampler;
pub mod supervised;
pub mod tokenizer;
mod train_error;
pub mod trainer;
pub mod weights;
pub mod worker;

pub use cache::Cache;
pub use config::Config;
pub use device::Compute;
pub use error::{Error, Result};
pub use lockstep_kernels::adamw::AdamW;
pub use model::{Pass, Qwen3};
pub use numerics::Numerics;
pub use optimiser::Optimiser;
pub use sampler::{Qwen3Sampler, SamplerPort};
pub use tokenizer::Tokenizer;
pub use train_error::{Place, TrainError, TrainResult};
pub use trainer::{Qwen3Trainer, TrainerPort};
pub use weights::Weights;
pub use worker::Worker;
