//! A request in vLLM's words. Every field that bears on the draw is written out: a key that is absent would be filled from
//! the model's `generation_config.json`, and a key that is misspelt is ignored without a word.

use super::{Dialect, Form, Route};
use crate::ask::{self, EncodeError, Ids};
use lockstep_core::{TokenId, ports::SampleRequest};
use serde::Serialize;

/// Below it vLLM draws at another temperature than it is asked.
pub const LEAST_TEMPERATURE: f64 = 0.01;

/// Largest top_k that is sent to a server with masks.
pub const MOST_KEPT: u32 = 65_536;

/// The body of a streamed request.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Body<'a> {
    /// Of `/inference/v1/generate`.
    Generate(Generate<'a>),
    /// Of `/v1/completions`.
    Completions(Completions<'a>),
}

/// The body of `/inference/v1/generate`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Generate<'a> {
    token_ids: Ids<'a>,
    sampling_params: Sampling<'a>,
    output_mode: &'static str,
    stream: bool,
    #[serde(flatten)]
    named: Named<'a>,
}

/// The body of `/v1/completions`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Completions<'a> {
    prompt: Ids<'a>,
    #[serde(flatten)]
    sampling: Sampling<'a>,
    echo: bool,
    stream: bool,
    return_token_ids: bool,
    return_tokens_as_token_ids: bool,
    add_special_tokens: bool,
    #[serde(flatten)]
    named: Named<'a>,
}

/// What the server goes by, where it has a name.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Named<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_salt: Option<&'a str>,
}

/// vLLM's `SamplingParams`.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Sampling<'a> {
    n: u32,
    temperature: f64,
    top_p: f64,
    top_k: i64,
    min_p: f64,
    seed: u64,
    max_tokens: usize,
    logprobs: u32,
    stop_token_ids: &'a [TokenId],
    #[serde(flatten)]
    neutral: Neutral,
    #[serde(flatten)]
    text: Option<NoText>,
}

/// Fields at the values that change nothing.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Neutral {
    min_tokens: u32,
    presence_penalty: f64,
    frequency_penalty: f64,
    repetition_penalty: f64,
    logit_bias: (),
    allowed_token_ids: (),
    stop: [&'static str; 0],
    ignore_eos: bool,
    skip_special_tokens: bool,
    prompt_logprobs: (),
}

const NEUTRAL: Neutral = Neutral {
    min_tokens: 0,
    presence_penalty: 0.0,
    frequency_penalty: 0.0,
    repetition_penalty: 1.0,
    logit_bias: (),
    allowed_token_ids: (),
    stop: [],
    ignore_eos: true,
    skip_special_tokens: false,
    prompt_logprobs: (),
};

/// Fields of the token route alone.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct NoText {
    detokenize: bool,
    bad_words: [&'static str; 0],
}

/// The body of a streamed request.
///
/// # Errors
/// What the server would not draw as asked, or not report.
pub fn encode<'a>(request: &'a SampleRequest, dialect: &'a Dialect) -> Result<Body<'a>, EncodeError> {
    let (ids, sampling) = (ask::prompt(request)?, sampling(request, dialect)?);
    let named = Named { model: dialect.model.as_deref(), cache_salt: dialect.salt.as_deref() };
    Ok(match dialect.route {
        Route::Generate => Body::Generate(Generate {
            token_ids: ids,
            sampling_params: sampling,
            output_mode: "tokens",
            stream: true,
            named,
        }),
        Route::Completions => Body::Completions(Completions {
            prompt: ids,
            sampling,
            echo: false,
            stream: true,
            return_token_ids: true,
            return_tokens_as_token_ids: true,
            add_special_tokens: false,
            named,
        }),
    })
}

fn sampling<'a>(request: &'a SampleRequest, dialect: &Dialect) -> Result<Sampling<'a>, EncodeError> {
    let params = &request.request.params;
    let truncation = params.truncation();
    let top_k = match dialect.form {
        Form::Mask => i64::from(ask::finite_top_k(truncation.top_k, dialect.cap_top_k, ("vLLM", MOST_KEPT))?),
        _ if truncation.top_k == 0 => -1,
        _ => i64::from(truncation.top_k),
    };
    let text = NoText { detokenize: false, bad_words: [] };
    Ok(Sampling {
        n: 1,
        temperature: ask::temperature(request, "vLLM", LEAST_TEMPERATURE)?,
        top_p: truncation.top_p,
        top_k,
        min_p: truncation.min_p,
        seed: ask::seed(request),
        max_tokens: ask::tokens_left(request)?,
        logprobs: dialect.head,
        stop_token_ids: &params.limits().stop,
        neutral: NEUTRAL,
        text: (dialect.route == Route::Generate).then_some(text),
    })
}
