//! What a pair takes of a card's memory, from its shape alone: to be known before anything is loaded.

use crate::{Config, Numerics, head};
use lockstep_kernels::q8::{BLOCK, BLOCK_BYTES};
use std::collections::BTreeMap;

/// What is held at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Sequences sampled together.
    pub sequences: usize,
    /// Longest of them, in tokens.
    pub longest: usize,
    /// Tokens of one forward and backward.
    pub tokens_per_pass: usize,
    /// Longest training sequence, in tokens.
    pub longest_trained: usize,
    /// Older versions of the weights that are still needed.
    pub snapshots: usize,
    /// Bytes of logits held at a time.
    pub logits_bytes: usize,
}

/// Bytes by what they are for.
pub type Bytes = BTreeMap<&'static str, u64>;

/// Numbers of a model: of the matrices that are kept smaller, and of the rest.
fn split(config: &Config, smaller: impl Fn(&str) -> bool) -> (u64, u64) {
    let size = |shape: &Vec<usize>| shape.iter().product::<usize>() as u64;
    let tensors = config.tensors();
    let (small, full): (Vec<_>, Vec<_>) = tensors.iter().partition(|(name, shape)| shape.len() > 1 && smaller(name));
    let sum = |part: Vec<(&String, &Vec<usize>)>| part.into_iter().map(|(_, shape)| size(shape)).sum();
    (sum(small), sum(full))
}

/// In bf16 where a card samples, and in f32: the head, or the embedding that is one, and norms.
fn in_bf16(config: &Config) -> (u64, u64) {
    split(config, |name| name != head::head_name(config.tied))
}

/// The sampler's weights: matrices in bf16, or those of the layers in Q8_0; what else there is in f32.
fn weights(config: &Config, numerics: Numerics) -> u64 {
    if numerics == Numerics::Q8 {
        let (layers, full) = split(config, |name| name.starts_with("model.layers."));
        return layers / BLOCK as u64 * BLOCK_BYTES as u64 + 4 * full;
    }
    let (half, full) = in_bf16(config);
    2 * half + 4 * full
}

/// The sampler: its weights, the cache in bf16 with its spare slots, one step's logits.
pub fn sampler(config: &Config, load: &Load, numerics: Numerics) -> Bytes {
    let slots = (load.longest + 1).next_multiple_of(crate::cache::STEP) * load.sequences;
    let cache = 2 * 2 * (config.layers * config.kv_heads * config.head_dim * slots) as u64;
    let logits = 4 * (load.sequences * config.vocab) as u64;
    BTreeMap::from([("weights", weights(config, numerics)), ("cache", cache), ("logits", logits)])
}

/// The trainer: f32 master weights, gradient and two moments, older versions, and one pass: the bf16 copies of its matrices,
/// the activations that a backward needs, the chunk of logits under two sets of weights, the head's gradients.
pub fn trainer(config: &Config, load: &Load) -> Bytes {
    let (half, full) = in_bf16(config);
    let all = half + full;
    let head = 4 * (config.vocab * config.hidden) as u64;
    BTreeMap::from([
        ("master weights", 4 * all),
        ("gradient", 2 * 4 * all),
        ("moments", 8 * all),
        ("snapshots", 4 * all * load.snapshots as u64),
        ("bf16 weights", 2 * half),
        ("activations", activations(config, load)),
        ("logits", 2 * load.logits_bytes as u64),
        ("head gradient", 2 * head),
    ])
}

/// Every intermediate of candle's own operations stays until the backward is over, in bf16 or f32 as `plain` has them.
fn activations(config: &Config, load: &Load) -> u64 {
    let (n, h) = (load.tokens_per_pass, config.hidden);
    let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    // A norm leaves four f32 and a bf16 of its size; a rotation about six f32 and a bf16.
    let norms = 2 * 18 * h + 18 * (q + kv);
    let turns = 26 * (q + kv);
    let products = 2 * (3 * (q + 2 * kv) + 3 * h);
    let gate = 2 * 4 * config.inter;
    let scores = config.heads * load.longest_trained * (2 + 6 * 4 + 2);
    (config.layers * n * (norms + turns + products + gate + scores)) as u64
}

/// All parts together.
pub fn total(bytes: &Bytes) -> u64 {
    bytes.values().sum()
}
