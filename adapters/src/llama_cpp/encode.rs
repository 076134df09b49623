//! A request in llama.cpp's words. Its chain is put into the order temperature, top_k, top_p, min_p; by default the
//! temperature comes last, and the nucleus is measured at temperature 1.

use crate::ask::{self, EncodeError};
use lockstep_core::{TokenId, ports::SampleRequest};
use serde_json::{Value, json};

/// The chain.
pub const SAMPLERS: [&str; 4] = ["temperature", "top_k", "top_p", "min_p"];

/// One leg of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leg {
    /// Most tokens it draws.
    pub tokens: usize,
    /// Most kept ids that are reported, where no top_k bounds them.
    pub most_kept: u32,
    /// Log-probs reported of an untruncated q.
    pub head: u32,
    /// Tells the draws at one position apart; 0 is the answer itself.
    pub attempt: u64,
}

/// The most ids the reply lists a position: one more than can be kept, so that a full list is known to be cut.
pub fn n_probs(request: &SampleRequest, leg: &Leg) -> u32 {
    let truncation = request.request.params.truncation();
    match truncation.top_k {
        _ if truncation.is_none() => leg.head,
        0 => leg.most_kept,
        top_k => top_k.saturating_add(1),
    }
}

/// The body of a whole request for one leg.
///
/// # Errors
/// Nothing to go on from, nothing left to draw.
pub fn encode(request: &SampleRequest, leg: &Leg) -> Result<Value, EncodeError> {
    let params = &request.request.params;
    let truncation = params.truncation();
    let prompt: Vec<TokenId> = ask::prompt(request)?;
    Ok(json!({
        "prompt": prompt,
        "n_predict": ask::tokens_left(request)?.min(leg.tokens),
        "temperature": params.temperature(),
        "top_k": truncation.top_k,
        "top_p": truncation.top_p,
        "min_p": truncation.min_p,
        "samplers": SAMPLERS,
        "seed": seed(request, leg.attempt),
        "n_probs": n_probs(request, leg),
        "post_sampling_probs": true,
        "return_tokens": true,
        "cache_prompt": true,
        "stream": false,
        "ignore_eos": false,
        "stop": [],
        "logit_bias": [],
        "min_keep": 0,
        "typical_p": 1.0,
        "top_n_sigma": -1.0,
        "xtc_probability": 0.0,
        "dynatemp_range": 0.0,
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "dry_multiplier": 0.0,
        "mirostat": 0,
        "grammar": "",
    }))
}

/// 32 bits, not all ones: that value asks for a random seed.
pub(super) fn seed(request: &SampleRequest, attempt: u64) -> u32 {
    let seed = ask::seed(request);
    let seed = if attempt == 0 { seed } else { ask::mix(seed ^ ask::mix(attempt)) };
    let folded = (seed ^ (seed >> 32)) as u32;
    if folded == u32::MAX { 0 } else { folded }
}
