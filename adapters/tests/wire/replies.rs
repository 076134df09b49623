//! The files, and what is asked of the parsers that read them.

use lockstep_adapters::{Asked, Chunk, WireError, llama_cpp, sglang, vllm};
use lockstep_core::{
    RolloutId, SamplingParams, Support, TokenId,
    ports::SampleRequest,
    rollout::Request,
    sampling::{Limits, Truncation},
};
use serde_json::{Value, json};

pub(crate) const VOCABULARY: u32 = 151_936;

/// The reply in a file.
pub(crate) fn reply(name: &str) -> Value {
    let path = format!("{}/tests/data/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str::<Value>(&text).unwrap()["response"].clone()
}

pub(crate) fn bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

pub(crate) const NUCLEUS: Truncation = Truncation { top_k: 0, top_p: 0.8, min_p: 0.0 };
pub(crate) const TOP_8: Truncation = Truncation { top_k: 8, top_p: 0.9, min_p: 0.0 };

pub(crate) fn request(truncation: Truncation, tokens: u32) -> SampleRequest {
    let limits = Limits { stop: vec![TokenId(3)], max_new_tokens: tokens };
    let params = SamplingParams::new(0.7, truncation, limits, 7).unwrap();
    let prompt = [9707, 11, 358, 1079].map(TokenId).to_vec();
    SampleRequest {
        request: Request { id: RolloutId { plan: 0, index: 0 }, group: 0, prompt, params },
        resumed: vec![],
    }
}

pub(crate) fn asked(truncation: Truncation, head: usize) -> Asked {
    Asked::new(&request(truncation, 64), VOCABULARY, head)
}

pub(crate) fn vllm(form: vllm::Form, truncation: Truncation, value: &Value) -> Result<Chunk, WireError> {
    vllm::Parser::new(asked(truncation, 64), vllm::Route::Generate, form).parse(&bytes(value))
}

pub(crate) fn completions(value: &Value) -> Result<Chunk, WireError> {
    let route = vllm::Route::Completions;
    vllm::Parser::new(asked(NUCLEUS, 64), route, vllm::Form::Processed).parse(&bytes(value))
}

pub(crate) fn masked(value: &Value) -> Result<Chunk, WireError> {
    vllm::Parser::new(asked(TOP_8, 3), vllm::Route::Generate, vllm::Form::Mask).parse(&bytes(value))
}

pub(crate) fn sglang(value: &Value) -> Result<Chunk, WireError> {
    sglang::Parser::new(asked(TOP_8, 64), sglang::Form::Mask).parse(&bytes(value))
}

pub(crate) const LEG: llama_cpp::Leg = llama_cpp::Leg { tokens: 4, most_kept: 40, head: 64, attempt: 0 };

pub(crate) fn llama(value: &Value) -> Result<llama_cpp::Drawn, WireError> {
    llama_cpp::Parser::new(&request(NUCLEUS, 64), &LEG, VOCABULARY).parse(&bytes(value))
}

/// A captured reply of llama.cpp as it would have been to our own request, which never forbids the end of text.
pub(crate) fn ours(mut reply: Value) -> Value {
    reply["generation_settings"]["ignore_eos"] = json!(false);
    reply["generation_settings"]["logit_bias"] = json!([]);
    reply
}

pub(crate) fn ids(rows: &[Support]) -> Vec<u32> {
    rows.iter().map(|row| row.sampled().token.0).collect()
}

pub(crate) fn sizes(rows: &[Support]) -> Vec<usize> {
    rows.iter().map(|row| row.ids().len()).collect()
}
