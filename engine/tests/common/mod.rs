//! Small models for the tests.

#![allow(dead_code, reason = "every test binary compiles this file and uses a part of it")]

use candle_core::Tensor;
use lockstep_engine::{Config, Qwen3, Weights};

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

pub(crate) fn model(tied: bool, seed: u64) -> Qwen3 {
    let config = config(tied);
    let weights = Weights::random(&config, seed, 0.3).unwrap();
    Qwen3::new(config, weights).unwrap()
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
