//! What every encoder needs: the tokens to go on from, the tokens left, a seed. Knows no dialect.

use lockstep_core::{TokenId, ports::SampleRequest};
use serde::{Serialize, Serializer};

/// A request that an engine cannot serve truthfully.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EncodeError {
    /// The engine would draw greedily, or at another temperature.
    #[error("temperature {asked} is below {least}, where {engine} draws differently than it is asked")]
    Temperature {
        /// The engine.
        engine: &'static str,
        /// What was asked.
        asked: f64,
        /// Smallest it honours.
        least: f64,
    },
    /// A mask without a bound.
    #[error(
        "top_k is off, but {engine} reports the kept ids only under a finite top_k; \
         ask for top_k 1..={most}, or pass --cap-top-k K to have it capped, and recorded"
    )]
    TopKOff {
        /// The engine.
        engine: &'static str,
        /// Largest it takes.
        most: u32,
    },
    /// A mask beyond its bound.
    #[error("top_k {asked} is above {most}, the most ids {engine} reports a position")]
    TopKBeyond {
        /// The engine.
        engine: &'static str,
        /// What was asked.
        asked: u32,
        /// Largest it takes.
        most: u32,
    },
    /// Nothing may be drawn.
    #[error("rollout has {resumed} of {limit} tokens: nothing is left to draw")]
    NothingLeft {
        /// Tokens there are.
        resumed: usize,
        /// Tokens asked for.
        limit: u32,
    },
    /// Nothing to go on from.
    #[error("prompt is empty")]
    NoPrompt,
}

/// The prompt's ids and those drawn already, as one list: an interrupted answer goes on from what it has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ids<'a>(&'a [TokenId], &'a [TokenId]);

impl Serialize for Ids<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().chain(self.1))
    }
}

/// The ids to go on from.
///
/// # Errors
/// [`EncodeError::NoPrompt`].
pub(crate) fn prompt(request: &SampleRequest) -> Result<Ids<'_>, EncodeError> {
    if request.request.prompt.is_empty() {
        return Err(EncodeError::NoPrompt);
    }
    Ok(Ids(&request.request.prompt, &request.resumed))
}

/// Tokens that may still be drawn.
///
/// # Errors
/// [`EncodeError::NothingLeft`].
pub(crate) fn tokens_left(request: &SampleRequest) -> Result<usize, EncodeError> {
    let (limit, resumed) = (request.request.params.limits().max_new_tokens, request.resumed.len());
    match (limit as usize).checked_sub(resumed) {
        None | Some(0) => Err(EncodeError::NothingLeft { resumed, limit }),
        Some(left) => Ok(left),
    }
}

/// The seed of what is drawn from here on: the request's own at its first token, another one after every resumption, so
/// that the draws after an interruption do not repeat those before it. Below 2^63.
pub(crate) fn seed(request: &SampleRequest) -> u64 {
    let (seed, drawn) = (request.request.params.seed(), request.resumed.len() as u64);
    if drawn == 0 { seed & i64::MAX as u64 } else { mix(seed ^ mix(drawn)) & i64::MAX as u64 }
}

/// SplitMix64's finaliser.
pub(crate) fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The top_k to send where the engine needs a finite one: what was asked, or the cap.
///
/// # Errors
/// An open top_k without a cap, one above `most`.
pub(crate) fn finite_top_k(asked: u32, cap: Option<u32>, bound: (&'static str, u32)) -> Result<u32, EncodeError> {
    let (engine, most) = bound;
    let top_k = if asked == 0 { cap.ok_or(EncodeError::TopKOff { engine, most })? } else { asked };
    if top_k > most { Err(EncodeError::TopKBeyond { engine, asked: top_k, most }) } else { Ok(top_k) }
}

/// Refuses a temperature that the engine would replace.
///
/// # Errors
/// [`EncodeError::Temperature`].
pub(crate) fn temperature(request: &SampleRequest, engine: &'static str, least: f64) -> Result<f64, EncodeError> {
    let asked = request.request.params.temperature();
    if asked < least { Err(EncodeError::Temperature { engine, asked, least }) } else { Ok(asked) }
}
