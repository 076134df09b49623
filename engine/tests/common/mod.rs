//! Small models for the tests, where `LOCKSTEP_DEVICE` says: `cpu`, with the fused operations; `plain`, the CPU with candle's
//! own; `cuda` or `cuda:N`, a card with candle's own, in f32. One body of tests, every device.

#![allow(dead_code, reason = "every test binary compiles this file and uses a part of it")]

use candle_core::{DType, Device, Tensor};
use lockstep_engine::{Compute, Config, Qwen3, Weights};

/// Two layers, grouped heads, logits of a few units.
pub(crate) fn config(tied: bool) -> Config {
    Config {
        vocab: 40,
        hidden: 32,
        inter: 64,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        max_positions: 64,
        rope_theta: 1e6,
        rms_eps: 1e-6,
        tied,
        eos: vec![3],
    }
}

fn device_name() -> String {
    std::env::var("LOCKSTEP_DEVICE").unwrap_or_else(|_| "cpu".into())
}

thread_local! {
    /// Opened once a test: each opening of a card is another device.
    static DEVICE: Device = match &device_name()[..] {
        "plain" => Device::Cpu,
        name => name.parse::<Compute>().unwrap().open().unwrap(),
    };
}

/// Where the tests compute.
pub(crate) fn device() -> Device {
    DEVICE.with(Device::clone)
}

/// `true` where the operations are candle's own: an order of additions is theirs, and not that of the fused ones.
pub(crate) fn is_plain() -> bool {
    device_name() != "cpu"
}

/// A model as the tests compute with it.
pub(crate) fn here(model: &Qwen3) -> Qwen3 {
    let model = if device().is_cpu() { model.clone() } else { model.to_device(&device()).unwrap() };
    if is_plain() { model.with_plain_operations(DType::F32) } else { model }
}

pub(crate) fn on_cpu(tied: bool, seed: u64) -> Qwen3 {
    let config = config(tied);
    let weights = Weights::random(&config, seed, 0.3).unwrap();
    Qwen3::new(config, weights).unwrap()
}

pub(crate) fn model(tied: bool, seed: u64) -> Qwen3 {
    here(&on_cpu(tied, seed))
}

/// Deterministic ids below `vocab`.
pub(crate) fn ids(n: usize, seed: u64, vocab: usize) -> Vec<u32> {
    let draw = |i| (lockstep_kernels::philox::uniform(seed, 0, i as u64) * vocab as f64) as u32;
    (0..n).map(draw).collect()
}

pub(crate) fn floats(x: &Tensor) -> Vec<f32> {
    x.flatten_all().unwrap().to_vec1().unwrap()
}

pub(crate) fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

pub(crate) fn largest(a: &[f32]) -> f32 {
    a.iter().map(|x| x.abs()).fold(0.0, f32::max)
}
