//! Sessions on Qwen3's own tokenizer and chat template.

mod qwen3;
mod turns;
