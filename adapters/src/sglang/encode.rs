//! A request in SGLang's words. Every field that bears on the draw is written out, so that neither
//! `--sampling-defaults model` nor `generation_config.json` has a say.

use super::{Dialect, Form};
use crate::ask::{self, EncodeError};
use lockstep_core::ports::SampleRequest;
use serde_json::{Value, json};

/// Below it SGLang draws greedily.
pub const LEAST_TEMPERATURE: f64 = 1e-6;

/// Default of `--sampling-mask-max-tokens`.
pub const MOST_KEPT: u32 = 4096;

/// The body of a streamed request, under a request id.
///
/// An end-of-text id ends an answer in SGLang even when it is not among the stop ids, unless there are none: the caller
/// goes on from there.
///
/// # Errors
/// What the server would not draw as asked, or not report.
pub fn encode(request: &SampleRequest, dialect: &Dialect, rid: &str) -> Result<Value, EncodeError> {
    let params = &request.request.params;
    let truncation = params.truncation();
    let form = dialect.form(truncation);
    let top_k = match form {
        Form::Mask => i64::from(ask::finite_top_k(truncation.top_k, dialect.cap_top_k, ("SGLang", MOST_KEPT))?),
        Form::Tempered if truncation.top_k == 0 => -1,
        Form::Tempered => i64::from(truncation.top_k),
    };
    let mut body = json!({
        "rid": rid,
        "input_ids": ask::prompt(request)?,
        "sampling_params": {
            "n": 1,
            "temperature": ask::temperature(request, "SGLang", LEAST_TEMPERATURE)?,
            "top_p": truncation.top_p,
            "top_k": top_k,
            "min_p": truncation.min_p,
            "sampling_seed": ask::seed(request),
            "max_new_tokens": ask::tokens_left(request)?,
            "min_new_tokens": 0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "stop": [],
            "stop_token_ids": params.limits().stop,
            "ignore_eos": params.limits().stop.is_empty(),
            "no_stop_trim": true,
            "skip_special_tokens": false,
        },
        "return_logprob": true,
        "logprob_start_len": -1,
        "top_logprobs_num": if form == Form::Mask { 0 } else { dialect.head },
        "stream": true,
    });
    if form == Form::Mask {
        body["return_sampling_mask"] = json!(true);
        body["sampling_logprobs_mode"] = json!("support");
    }
    Ok(body)
}
