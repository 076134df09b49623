//! A request in vLLM's words. Every field that bears on the draw is written out: a key that is absent would be filled from
//! the model's `generation_config.json`, and a key that is misspelt is ignored without a word.

use super::{Dialect, Form, Route};
use crate::ask::{self, EncodeError};
use lockstep_core::ports::SampleRequest;
use serde_json::{Value, json};

/// Below it vLLM draws at another temperature than it is asked.
pub const LEAST_TEMPERATURE: f64 = 0.01;

/// Largest top_k that is sent to a server with masks.
pub const MOST_KEPT: u32 = 65_536;

/// The body of a streamed request.
///
/// # Errors
/// What the server would not draw as asked, or not report.
pub fn encode(request: &SampleRequest, dialect: &Dialect) -> Result<Value, EncodeError> {
    let (prompt, sampling) = (ask::prompt(request)?, sampling(request, dialect)?);
    let mut body = match dialect.route {
        Route::Generate => json!({
            "token_ids": prompt,
            "sampling_params": sampling,
            "output_mode": "tokens",
            "stream": true,
        }),
        Route::Completions => {
            let mut body = sampling;
            let own = json!({
                "prompt": prompt,
                "echo": false,
                "stream": true,
                "return_token_ids": true,
                "return_tokens_as_token_ids": true,
                "add_special_tokens": false,
            });
            merge(&mut body, own);
            body
        }
    };
    for (key, value) in [("model", &dialect.model), ("cache_salt", &dialect.salt)] {
        if let Some(value) = value {
            body[key] = json!(value);
        }
    }
    Ok(body)
}

fn sampling(request: &SampleRequest, dialect: &Dialect) -> Result<Value, EncodeError> {
    let params = &request.request.params;
    let truncation = params.truncation();
    let top_k = match dialect.form {
        Form::Mask => i64::from(ask::finite_top_k(truncation.top_k, dialect.cap_top_k, ("vLLM", MOST_KEPT))?),
        _ if truncation.top_k == 0 => -1,
        _ => i64::from(truncation.top_k),
    };
    let mut sampling = json!({
        "n": 1,
        "temperature": ask::temperature(request, "vLLM", LEAST_TEMPERATURE)?,
        "top_p": truncation.top_p,
        "top_k": top_k,
        "min_p": truncation.min_p,
        "seed": ask::seed(request),
        "max_tokens": ask::tokens_left(request)?,
        "min_tokens": 0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logit_bias": null,
        "allowed_token_ids": null,
        "stop": [],
        "stop_token_ids": params.limits().stop,
        "ignore_eos": true,
        "skip_special_tokens": false,
        "logprobs": dialect.head,
        "prompt_logprobs": null,
    });
    if dialect.route == Route::Generate {
        merge(&mut sampling, json!({ "detokenize": false, "bad_words": [] }));
    }
    Ok(sampling)
}

fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}
