//! Every dialect, whole and as a stream.

use super::{counting, gateway, send};
use crate::serve::tests::engine::{Act, Fake};
use serde_json::json;
use std::sync::Arc;

#[tokio::test]
async fn vllm_generate_gives_ids_log_probs_masks_and_versions() {
    let body = r#"{"token_ids":[1,2,3],"sampling_params":{"max_tokens":2,"temperature":0.7,"top_p":0.8,"logprobs":1}}"#;
    let said = send(&counting(), "/inference/v1/generate", &[], body).await.ok();
    let choice = &said["choices"][0];
    assert_eq!(choice["token_ids"], json!([10, 11]));
    assert_eq!(choice["sampling_mask"], json!([[10, 11], [11, 12]]));
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["weight_versions"], json!([{"version": "step-0", "start": 0, "end": 2}]));
    let first = &choice["logprobs"]["content"][0];
    assert_eq!((first["token_id"].as_u64(), first["rank"].as_u64()), (Some(10), Some(1)));
    assert!((first["logprob"].as_f64().unwrap() - 0.5f64.ln()).abs() < 1e-6);
    assert_eq!(first["top_logprobs"].as_array().unwrap().len(), 1);
    assert_eq!(said["usage"]["total_tokens"], 5);
    assert_eq!(said.get("prompt_token_ids"), None);
    assert_eq!((choice.get("behavior"), choice.get("rollout_id")), (None, None));
}

#[tokio::test]
async fn our_fields_are_there_when_asked_for() {
    let asked =
        r#""return_token_ids":true,"return_behavior":true,"return_weight_versions":true,"return_rollout_id":true"#;
    let body = format!(r#"{{"token_ids":[1],"sampling_params":{{"max_tokens":2}},{asked}}}"#);
    let said = send(&counting(), "/inference/v1/generate", &[], &body).await.ok();
    let choice = &said["choices"][0];
    assert_eq!(said["prompt_token_ids"], json!([1]));
    assert_eq!(choice["rollout_id"], "p1099511627776.r0");
    assert_eq!(choice["behavior"]["tokens"], "CgAAAAsAAAA=");
    assert_eq!(choice["behavior"]["offsets"], "AAAAAAIAAAAEAAAA");
    assert_eq!(choice["weight_versions"][0]["kv"], "fresh");
    assert_eq!(choice["weight_versions"][0]["evidence"], "label");
}

#[tokio::test]
async fn vllm_generate_streams_deltas_and_versions_with_the_last() {
    let gateway = Arc::new(gateway(vec![Fake::new(|_, _| vec![Act::Draw(2, 1), Act::Draw(1, 2)])]));
    let body = r#"{"token_ids":[1],"stream":true,"sampling_params":{"max_tokens":3}}"#;
    let (events, done) = send(&gateway, "/inference/v1/generate", &[], body).await.events();
    assert!(done);
    let ids: Vec<_> = events.iter().map(|event| event["choices"][0]["token_ids"].clone()).collect();
    assert_eq!(ids, [json!([10, 11]), json!([12])]);
    assert_eq!(events[0]["choices"][0].get("weight_versions"), None);
    let spans = json!([{"version": "step-1", "start": 0, "end": 2}, {"version": "step-2", "start": 2, "end": 3}]);
    assert_eq!(events[1]["choices"][0]["weight_versions"], spans);
    assert_eq!(events[1]["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn sglang_generate_gives_its_own_shape() {
    let body = r#"{"input_ids":[1,2],"return_logprob":true,"return_sampling_mask":true,"sampling_logprobs_mode":"support",
        "sampling_params":{"max_new_tokens":2,"top_k":8,"stop_token_ids":[11]}}"#;
    let said = send(&counting(), "/generate", &[], body).await.ok();
    assert_eq!(said["output_ids"], json!([10, 11]));
    let meta = &said["meta_info"];
    assert_eq!(meta["finish_reason"], json!({"type": "stop", "matched": 11}));
    assert_eq!((meta["prompt_tokens"].as_u64(), meta["completion_tokens"].as_u64()), (Some(2), Some(2)));
    assert_eq!(meta["output_token_logprobs"][1][1], 11);
    assert_eq!(meta["output_token_sampling_mask"], json!([[10, 11], [11, 12]]));
    assert_eq!(meta["output_token_sampling_logprobs"][0].as_array().unwrap().len(), 2);
    assert_eq!(meta["weight_version"], "step-0");
    assert_eq!(said["text"], json!(null));
}

#[tokio::test]
async fn sglang_events_carry_everything_so_far_and_n_answers_are_a_list() {
    let body = r#"{"input_ids":[1],"stream":true,"sampling_params":{"max_new_tokens":2}}"#;
    let (events, done) = send(&counting(), "/generate", &[], body).await.events();
    assert!(done);
    assert_eq!(events[0]["output_ids"], json!([10]));
    assert_eq!(events[0]["meta_info"]["finish_reason"], json!(null));
    assert_eq!(events[1]["output_ids"], json!([10, 11]));
    assert_eq!(events[1]["meta_info"]["finish_reason"]["type"], "length");
    let body = r#"{"input_ids":[1],"sampling_params":{"max_new_tokens":1,"n":3}}"#;
    let said = send(&counting(), "/generate", &[], body).await.ok();
    assert_eq!(said.as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn completions_answer_every_prompt_n_times() {
    let body =
        r#"{"model":"m","prompt":[[1,2],[3]],"n":2,"max_tokens":1,"return_token_ids":true,"return_rollout_id":true}"#;
    let said = send(&counting(), "/v1/completions", &[], body).await.ok();
    let choices = said["choices"].as_array().unwrap();
    let names: Vec<_> = choices.iter().map(|choice| choice["rollout_id"].as_str().unwrap()).collect();
    assert_eq!(names, ["p1099511627776.r0", "p1099511627776.r1", "p1099511627776.r2", "p1099511627776.r3"]);
    assert_eq!(choices[3]["prompt_token_ids"], json!([3]));
    assert_eq!(said["usage"], json!({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}));
}

#[tokio::test]
async fn completions_stream_and_end_with_usage_when_asked() {
    let body = r#"{"prompt":[1],"n":2,"max_tokens":2,"stream":true,"stream_options":{"include_usage":true},
        "return_token_ids":true,"logprobs":1}"#;
    let (events, done) = send(&counting(), "/v1/completions", &[], body).await.events();
    assert!(done);
    assert_eq!(events.len(), 5);
    let first = events.iter().find(|event| event["choices"][0]["index"] == 1).unwrap();
    assert_eq!(first["choices"][0]["prompt_token_ids"], json!([1]));
    assert_eq!(first["choices"][0]["logprobs"]["tokens"], json!(["token_id:10"]));
    assert_eq!(events[4]["usage"]["completion_tokens"], 4);
    assert_eq!(events[4]["choices"], json!([]));
}

#[tokio::test]
async fn a_sent_seed_counts_up_and_an_unsent_one_differs_by_rollout() {
    let engine = Fake::counting();
    let gateway = Arc::new(gateway(vec![engine.clone()]));
    let body = |seed: &str| format!(r#"{{"prompt":[1],"n":2,"max_tokens":1,"return_token_ids":true{seed}}}"#);
    send(&gateway, "/v1/completions", &[], &body(r#","seed":7"#)).await.ok();
    send(&gateway, "/v1/completions", &[], &body("")).await.ok();
    let mut seeds: Vec<u64> = engine.asked().iter().map(|asked| asked.request.params.seed()).collect();
    seeds[..2].sort_unstable();
    assert_eq!(seeds[..2], [7, 8]);
    assert_ne!(seeds[2], seeds[3]);
}
