//! What is sent: every field that bears on the draw, nothing that an engine may fill in.

use crate::replies::*;
use lockstep_adapters::{EncodeError, llama_cpp, sglang, vllm};
use lockstep_core::{
    SamplingParams, TokenId,
    ports::SampleRequest,
    sampling::{Limits, Truncation},
};
use serde_json::{Value, json};

fn dialect(form: vllm::Form) -> vllm::Dialect {
    vllm::Dialect { route: vllm::Route::Generate, form, head: 64, cap_top_k: None, model: Some("m".into()), salt: None }
}

fn vllm_body(request: &SampleRequest, dialect: &vllm::Dialect) -> Result<Value, EncodeError> {
    vllm::encode(request, dialect).map(|body| serde_json::to_value(body).unwrap())
}

const SGLANG: sglang::Dialect = sglang::Dialect { masks: true, head: 64, cap_top_k: None };

fn resumed(tokens: u32) -> SampleRequest {
    SampleRequest { resumed: (0..tokens).map(|n| TokenId(100 + n)).collect(), ..request(TOP_8, 64) }
}

/// The fields that a `generation_config.json` or an engine's default would fill in.
fn explicit(sampling: &Value, fields: &[&str]) {
    for field in fields {
        assert!(sampling.get(field).is_some(), "{field} is not sent");
    }
}

#[test]
fn every_sampling_field_is_sent() {
    let shared = ["temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"];
    let vllm = vllm_body(&request(TOP_8, 64), &dialect(vllm::Form::Mask)).unwrap();
    explicit(&vllm["sampling_params"], &shared);
    explicit(
        &vllm["sampling_params"],
        &["repetition_penalty", "min_tokens", "logit_bias", "seed", "stop_token_ids", "n"],
    );
    let route = vllm::Route::Completions;
    let open_ai = vllm_body(&request(TOP_8, 64), &vllm::Dialect { route, ..dialect(vllm::Form::Raw) }).unwrap();
    explicit(&open_ai, &shared);
    explicit(&open_ai, &["repetition_penalty", "return_token_ids", "return_tokens_as_token_ids", "prompt"]);
    let sglang = sglang::encode(&request(TOP_8, 64), &SGLANG, "r").unwrap();
    explicit(&sglang["sampling_params"], &shared);
    explicit(&sglang["sampling_params"], &["repetition_penalty", "min_new_tokens", "stop_token_ids", "ignore_eos"]);
    assert_eq!((&sglang["return_sampling_mask"], &sglang["sampling_logprobs_mode"]), (&json!(true), &json!("support")));
    let llama = llama_cpp::encode(&request(TOP_8, 64), &LEG).unwrap();
    explicit(&llama, &shared);
    explicit(&llama, &["repeat_penalty", "typical_p", "xtc_probability", "dry_multiplier", "mirostat", "samplers"]);
    assert_eq!(llama["n_probs"], json!(9));
}

#[test]
fn a_resumed_answer_goes_on_from_its_tokens_with_fewer_left_and_another_seed() {
    let (fresh, later) = (request(TOP_8, 64), resumed(10));
    let sent = |request: &SampleRequest| {
        let vllm = vllm_body(request, &dialect(vllm::Form::Mask)).unwrap();
        let sglang = sglang::encode(request, &SGLANG, "r").unwrap();
        let llama = llama_cpp::encode(request, &llama_cpp::Leg { tokens: 100, ..LEG }).unwrap();
        [
            [&vllm["token_ids"], &vllm["sampling_params"]["max_tokens"], &vllm["sampling_params"]["seed"]]
                .map(Value::clone),
            [
                &sglang["input_ids"],
                &sglang["sampling_params"]["max_new_tokens"],
                &sglang["sampling_params"]["sampling_seed"],
            ]
            .map(Value::clone),
            [&llama["prompt"], &llama["n_predict"], &llama["seed"]].map(Value::clone),
        ]
    };
    for ([prompt, left, seed], [_, all, first]) in sent(&later).into_iter().zip(sent(&fresh)) {
        assert_eq!(prompt.as_array().unwrap().len(), 14);
        assert_eq!((left, all), (json!(54), json!(64)));
        assert_eq!(first, json!(7));
        assert_ne!(seed, first);
    }
    let full = vllm_body(&resumed(64), &dialect(vllm::Form::Mask));
    assert_eq!(full, Err(EncodeError::NothingLeft { resumed: 64, limit: 64 }));
}

#[test]
fn an_open_top_k_is_refused_where_a_mask_needs_a_finite_one_unless_it_is_capped() {
    let open = request(NUCLEUS, 8);
    let refused = vllm_body(&open, &dialect(vllm::Form::Mask)).unwrap_err().to_string();
    assert!(refused.contains("--cap-top-k"), "{refused}");
    let capped = vllm_body(&open, &vllm::Dialect { cap_top_k: Some(512), ..dialect(vllm::Form::Mask) }).unwrap();
    assert_eq!(capped["sampling_params"]["top_k"], json!(512));
    assert_eq!(vllm_body(&open, &dialect(vllm::Form::Processed)).unwrap()["sampling_params"]["top_k"], json!(-1));
    assert!(sglang::encode(&open, &SGLANG, "r").is_err());
    let wide = request(Truncation { top_k: 5000, top_p: 1.0, min_p: 0.0 }, 8);
    let refused = sglang::encode(&wide, &SGLANG, "r").unwrap_err();
    assert_eq!(refused.to_string(), "top_k 5000 is above 4096, the most ids SGLang reports a position");
    // Where nothing is cut the log-probs at the temperature are q itself, and no mask is asked for.
    let whole = sglang::encode(&request(Truncation::NONE, 8), &SGLANG, "r").unwrap();
    assert_eq!((&whole["sampling_params"]["top_k"], &whole["top_logprobs_num"]), (&json!(-1), &json!(64)));
    assert!(whole.get("return_sampling_mask").is_none());
}

#[test]
fn a_temperature_that_an_engine_would_replace_is_refused() {
    let limits = Limits { stop: vec![], max_new_tokens: 8 };
    let mut cold = request(TOP_8, 8);
    cold.request.params = SamplingParams::new(1e-3, TOP_8, limits, 1).unwrap();
    let refused = vllm_body(&cold, &dialect(vllm::Form::Mask)).unwrap_err().to_string();
    assert!(refused.starts_with("temperature 0.001 is below 0.01"), "{refused}");
    assert!(sglang::encode(&cold, &SGLANG, "r").is_ok());
}
