//! A request in llama.cpp's words. Its chain is put into the order temperature, top_k, top_p, min_p; by default the
//! temperature comes last, and the nucleus is measured at temperature 1.

use crate::ask::{self, EncodeError};
use lockstep_core::ports::SampleRequest;
use serde_json::{Map, Value, json};

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

/// What bears on the draw: asked for by [`encode`], and echoed by the server as it used it.
pub(super) fn sampling(request: &SampleRequest, leg: &Leg) -> Map<String, Value> {
    let params = &request.request.params;
    let truncation = params.truncation();
    let fields: [(&str, Value); 21] = [
        ("temperature", params.temperature().into()),
        ("top_k", truncation.top_k.into()),
        ("top_p", truncation.top_p.into()),
        ("min_p", truncation.min_p.into()),
        ("samplers", json!(SAMPLERS)),
        ("seed", json!(seed(request, leg.attempt))),
        ("n_probs", json!(n_probs(request, leg))),
        ("post_sampling_probs", true.into()),
        ("ignore_eos", false.into()),
        ("logit_bias", json!([])),
        ("min_keep", 0.into()),
        ("typical_p", 1.0.into()),
        ("top_n_sigma", (-1.0).into()),
        ("xtc_probability", 0.0.into()),
        ("dynatemp_range", 0.0.into()),
        ("repeat_penalty", 1.0.into()),
        ("presence_penalty", 0.0.into()),
        ("frequency_penalty", 0.0.into()),
        ("dry_multiplier", 0.0.into()),
        ("mirostat", 0.into()),
        ("grammar", "".into()),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The body of a whole request for one leg.
///
/// # Errors
/// Nothing to go on from, nothing left to draw.
pub fn encode(request: &SampleRequest, leg: &Leg) -> Result<Value, EncodeError> {
    let prompt = ask::prompt(request)?;
    let mut body = sampling(request, leg);
    body.insert("n_predict".into(), json!(ask::tokens_left(request)?.min(leg.tokens)));
    body.insert("prompt".into(), json!(prompt));
    body.insert("return_tokens".into(), true.into());
    body.insert("cache_prompt".into(), true.into());
    body.insert("stream".into(), false.into());
    body.insert("stop".into(), json!([]));
    Ok(body.into())
}

/// 32 bits, not all ones: that value asks for a random seed.
fn seed(request: &SampleRequest, attempt: u64) -> u32 {
    let seed = ask::seed(request);
    let seed = if attempt == 0 { seed } else { ask::mix(seed ^ ask::mix(attempt)) };
    let folded = (seed ^ (seed >> 32)) as u32;
    if folded == u32::MAX { 0 } else { folded }
}
