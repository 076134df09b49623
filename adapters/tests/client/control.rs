//! The control plane: what is sent, in which order, and what an answer that is under way makes of an update.

use crate::{faults::request, server::*};
use futures_util::StreamExt;
use lockstep_adapters::{Options, connect};
use lockstep_core::{
    WeightVersion,
    ports::{PortError, PublishedWeights},
};
use serde_json::{Value, json};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

fn weights(step: u64) -> PublishedWeights {
    PublishedWeights { version: WeightVersion { epoch: 0, step }, path: "/weights/next".into(), digest: None }
}

fn options() -> Options {
    Options { vocabulary: Some(1000), ..Options::default() }
}

#[tokio::test]
async fn vllm_is_paused_loaded_labelled_and_resumed() {
    // The reply to the label is the captured one.
    let captured = include_str!("../data/vllm_processed_logprobs_update_weight_version.json");
    let captured: Value = serde_json::from_str(captured).unwrap();
    let updated = Arc::new(AtomicUsize::new(0));
    let seen = updated.clone();
    let server = Server::start(move |call| match call.path.as_str() {
        "/update_weight_version" => {
            seen.fetch_add(1, Ordering::SeqCst);
            Say::Json(200, captured["response"].clone())
        }
        "/weight_info" => {
            let step = 1 + 6 * seen.load(Ordering::SeqCst).min(1);
            Say::Json(200, json!({ "weight_version": format!("e0.s{step}") }))
        }
        _ => vllm(call),
    })
    .await;
    let engine = connect(&server.address, &options()).await.unwrap();
    let control = engine.control().unwrap();
    assert_eq!(control.version().await.unwrap().version(), Some(WeightVersion { epoch: 0, step: 1 }));
    let before = server.paths().len();
    let loaded = control.load_weights(&weights(7)).await.unwrap();
    assert_eq!(loaded.version(), Some(WeightVersion { epoch: 0, step: 7 }));
    let expected = [
        "/pause?mode=keep&clear_cache=true",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/update_weight_version",
        "/weight_info",
        "/resume",
    ];
    assert_eq!(server.paths()[before..], expected);
    assert_eq!(server.bodies("/collective_rpc")[0]["kwargs"]["weights_path"], "/weights/next");
    assert_eq!(server.bodies("/update_weight_version")[0]["new_version"], "e0.s7");
}

#[tokio::test]
async fn a_label_that_did_not_take_fails_the_update_and_leaves_the_engine_paused() {
    let server = Server::start(vllm).await;
    let engine = connect(&server.address, &options()).await.unwrap();
    let control = engine.control().unwrap();
    let failed = control.load_weights(&weights(7)).await.unwrap_err();
    assert!(
        matches!(&failed, PortError::Failed(why) if why.contains("was given weights e0.s7, but declares \"e0.s1\""))
    );
    assert!(!server.paths().contains(&"/resume".to_owned()));
    control.resume().await.unwrap();
    assert_eq!(server.paths().last().unwrap(), "/resume");
}

#[tokio::test]
async fn sglang_keeps_its_requests_and_drops_its_caches() {
    let server = Server::start(|call| match call.path.as_str() {
        "/model_info" => Say::Json(200, json!({ "model_path": "tiny", "weight_version": "e0.s7" })),
        "/generate" => Say::Json(
            200,
            json!({ "output_ids": [10], "meta_info": {
            "completion_tokens": 1, "weight_version": "e0.s7", "finish_reason": { "type": "length" },
            "output_token_logprobs": [[-0.5, 10, null]], "output_token_sampling_mask": [[10]],
            "output_token_sampling_logprobs": [[0.0]] } }),
        ),
        "/props" => Say::Json(404, json!({})),
        _ => Say::Json(200, json!({ "success": true })),
    })
    .await;
    let engine = connect(&server.address, &options()).await.unwrap();
    engine.control().unwrap().load_weights(&weights(7)).await.unwrap();
    assert_eq!(server.bodies("/pause_generation"), [json!({ "mode": "retract" })]);
    let update = server.bodies("/update_weights_from_disk").remove(0);
    let fields =
        ["model_path", "flush_cache", "abort_all_requests", "weight_version"].map(|field| update[field].clone());
    assert_eq!(fields, [json!("/weights/next"), json!(true), json!(false), json!("e0.s7")]);
    assert_eq!(server.bodies("/continue_generation").len(), 1);
}

#[tokio::test]
async fn a_failure_in_the_body_of_a_reply_fails_the_update() {
    let server = Server::start(|call| match call.path.as_str() {
        "/collective_rpc" => Say::Json(200, json!({ "success": false, "message": "no such file" })),
        _ => vllm(call),
    })
    .await;
    let engine = connect(&server.address, &options()).await.unwrap();
    let failed = engine.control().unwrap().load_weights(&weights(7)).await.unwrap_err().to_string();
    assert!(failed.contains("/collective_rpc failed: no such file"), "{failed}");
}

#[tokio::test]
async fn an_answer_after_an_update_carries_the_new_version() {
    let server = Server::start(|call| match (call.path.as_str(), vllm(call)) {
        ("/weight_info", _) => Say::Json(200, json!({ "weight_version": "e0.s7" })),
        (_, Say::Lines(mut lines)) if call.body["sampling_params"]["max_tokens"].as_u64() > Some(2) => {
            lines.last_mut().unwrap()["choices"][0]["weight_versions"][0]["version"] = json!("e0.s7");
            Say::Lines(lines)
        }
        (_, other) => other,
    })
    .await;
    let engine = connect(&server.address, &options()).await.unwrap();
    engine.control().unwrap().load_weights(&weights(7)).await.unwrap();
    let told: Vec<_> = engine.sampler.generate(vec![request(0, 4)]).await.unwrap().collect().await;
    let versions = told.iter().map(|delta| delta.as_ref().unwrap().stamp.version().unwrap().step);
    assert_eq!(versions.collect::<Vec<_>>(), [7, 7, 7, 7]);
}
