//! What the engine is: recorded once per segment, never used to rebuild a support the engine can report.

use serde::{Deserialize, Serialize};

/// One filter of a sampler's chain, in the order the engine applies them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FilterName {
    /// Division of the logits.
    Temperature,
    /// The k most probable.
    TopK,
    /// The nucleus.
    TopP,
    /// The share of the largest.
    MinP,
}

/// How an engine breaks ties at the k-th logit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TieRule {
    /// Exactly k tokens; the lower id wins.
    LowerId,
    /// Every token tied with the k-th is kept.
    KeepAll,
    /// Exactly k tokens; which of equals is unspecified.
    Unspecified,
}

/// What an engine's log-probs mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogProbMeaning {
    /// log q: after temperature and truncation, renormalised.
    Drawn,
    /// After temperature, over the whole vocabulary.
    Tempered,
    /// At temperature 1, over the whole vocabulary.
    Raw,
}

/// Number formats, in the engine's own words (`f32`, `bf16`, `q8_0`, ..).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dtypes {
    /// Of the weights.
    pub weights: String,
    /// Of the activations.
    pub activations: String,
    /// Of the KV cache.
    pub kv_cache: String,
    /// Of the head's output, the logits.
    pub head: String,
}

/// What the engine is and how it samples.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerProfile {
    /// Name of the engine.
    pub engine: String,
    /// Its version.
    pub version: String,
    /// Its filters, in order.
    pub filters: Vec<FilterName>,
    /// How it breaks ties.
    pub ties: TieRule,
    /// What its log-probs mean.
    pub log_probs: LogProbMeaning,
    /// Its number formats.
    pub dtypes: Dtypes,
}
