//! Sessions on Qwen3's own tokenizer and chat template.

mod analysis;
mod conversation;
mod decoding;
mod drifting;
mod histories;
mod properties;
mod qwen3;
mod rendering;
mod turns;
