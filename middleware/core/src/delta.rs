//! Tokens as they arrive from the engine: the unit the ledger stores.

use crate::{
    behavior::BehaviorDistribution,
    profile::SamplerProfile,
    token::{RolloutId, TokenId},
    version::Stamp,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Why an answer ended. New reasons come at the end: the ledger knows them by their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinishReason {
    /// This stop id was sampled.
    Stop(TokenId),
    /// The token limit was reached; the answer stays in its batch.
    Length,
    /// Its text had a stop text; the tokens that spell it stay, and the last of them is no stop id.
    StopText,
}

/// How the KV cache behind a run of tokens came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum KvHistory {
    /// Built by the weights that drew the tokens.
    Fresh,
    /// Rebuilt by them after an update.
    Recomputed,
    /// Built by older weights: the tokens have neither version's distribution.
    Stale,
    /// Not known.
    Ambiguous,
}

/// Tokens, their supports, and the weights behind them.
#[derive(Debug, Clone, PartialEq)]
pub struct Delta {
    /// The rollout they belong to.
    pub rollout: RolloutId,
    /// Index of the first of them among the rollout's sampled tokens.
    pub start: u32,
    /// The tokens and their supports.
    pub behavior: BehaviorDistribution,
    /// The weights that drew them.
    pub stamp: Stamp,
    /// The cache they were drawn on.
    pub kv: KvHistory,
    /// The engine that drew them.
    pub profile: Arc<SamplerProfile>,
    /// Set on the last delta of an answer.
    pub finish: Option<FinishReason>,
}
