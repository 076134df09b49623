//! Requests exactly as trainers send them.

use super::{counting, engine::Fake, gateway, send};
use lockstep_core::sampling::Truncation;
use serde_json::json;
use std::sync::Arc;

/// TRL's asynchronous GRPO: neither `top_p` nor `top_k` is sent, and neither may come from the model's defaults.
#[tokio::test]
async fn trl_async_gets_an_untruncated_distribution() {
    let engine = Fake::counting();
    let gateway = Arc::new(gateway(vec![engine.clone()]));
    let body = r#"{"model":"Qwen/Qwen3-0.6B","prompt":[1,2,3],"max_tokens":2,"temperature":0.9,"n":1,
        "return_token_ids":true,"logprobs":0}"#;
    let said = send(&gateway, "/v1/completions", &[], body).await.ok();
    let choice = &said["choices"][0];
    assert_eq!(choice["token_ids"], json!([10, 11]));
    assert_eq!(choice["logprobs"]["token_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(choice["logprobs"]["top_logprobs"], json!(null));
    let asked = &engine.asked()[0].request.params;
    assert_eq!((asked.temperature(), *asked.truncation()), (0.9, Truncation::NONE));
}

#[tokio::test]
async fn slime_payload() {
    let body = r#"{"input_ids":[1,2],"return_logprob":true,"sampling_params":{"temperature":1,"top_p":1.0,"top_k":-1,
        "max_new_tokens":3,"stop":null,"stop_token_ids":null,"skip_special_tokens":false,"no_stop_trim":true,
        "spaces_between_special_tokens":false,"custom_params":null}}"#;
    let said = send(&counting(), "/generate", &[], body).await.ok();
    assert_eq!(said["meta_info"]["finish_reason"]["type"], "length");
    let rows = said["meta_info"]["output_token_logprobs"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row[1].as_u64().unwrap()).collect::<Vec<_>>(), [10, 11, 12]);
}

#[tokio::test]
async fn areal_payload() {
    let body = r#"{"input_ids":[1,2],"return_logprob":true,"stream":false,"sampling_params":{"top_p":0.9,"top_k":100,
        "max_new_tokens":2,"temperature":1.0,"stop_token_ids":[5],"ignore_eos":false,"skip_special_tokens":true,
        "frequency_penalty":0.0}}"#;
    let said = send(&counting(), "/generate", &[], body).await.ok();
    assert_eq!(said["output_ids"], json!([10, 11]));
}

#[tokio::test]
async fn prime_rl_and_vime_payloads() {
    let body = r#"{"model":"m","token_ids":[1,2],"sampling_params":{"temperature":1.0,"top_p":1.0,"top_k":-1,"min_p":0.0,
        "repetition_penalty":1.0,"min_tokens":0,"max_tokens":2,"logprobs":1,"skip_special_tokens":false,"seed":null},
        "return_token_ids":true}"#;
    let said = send(&counting(), "/inference/v1/generate", &[], body).await.ok();
    assert_eq!(said["choices"][0]["token_ids"], json!([10, 11]));
    let body = r#"{"model":"m","token_ids":[1,2],"sampling_params":{"max_tokens":2}}"#;
    let said = send(&counting(), "/inference/v1/generate", &[], body).await.ok();
    assert_eq!(said["choices"][0]["sampling_mask"], json!(null));
}

#[tokio::test]
async fn trls_own_server_is_refused_with_the_way_that_works() {
    let body = r#"{"prompts":["a"],"n":1,"temperature":1.0,"max_tokens":4}"#;
    for path in ["/generate", "/generate/"] {
        let error = send(&counting(), path, &[], body).await.error(400);
        assert!(error.contains("rollout_func"), "{error}");
    }
}
