//! Engines that are asked what they are: the honest one is taken, each lie is refused with the flag that ends it.

use crate::server::*;
use lockstep_adapters::{AdapterError, EngineKind, OnFinding, Options, connect, launch_line};
use lockstep_core::{WeightVersion, profile::LogProbMeaning};
use serde_json::{Value, json};

async fn refused(options: &Options, answer: impl Fn(&Call) -> Say + Send + Sync + 'static) -> String {
    let server = Server::start(answer).await;
    let error = connect(&server.address, options).await.unwrap_err();
    assert!(matches!(error, AdapterError::Untruthful { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("This line starts one that can be: "), "{text}");
    text
}

/// An honest vLLM, its pieces changed.
fn changed(change: impl Fn(&mut Value) + Send + Sync + 'static) -> impl Fn(&Call) -> Say + Send + Sync + 'static {
    move |call| match vllm(call) {
        Say::Lines(mut lines) => {
            lines.iter_mut().for_each(&change);
            Say::Lines(lines)
        }
        other => other,
    }
}

#[tokio::test]
async fn an_honest_vllm_is_recognised_and_measured() {
    let server = Server::start(vllm).await;
    let engine = connect(&server.address, &Options::default()).await.unwrap();
    assert_eq!((engine.kind, engine.vocabulary), (EngineKind::Vllm, 1000));
    assert_eq!((engine.profile.engine.as_str(), engine.profile.version.as_str()), ("vLLM", "0.32.0"));
    assert_eq!(engine.profile.log_probs, LogProbMeaning::Drawn);
    assert_eq!(engine.findings, []);
    assert!(engine.control().is_ok());
}

#[tokio::test]
async fn raw_log_probs_are_refused_with_the_flag() {
    let raw = |piece: &mut Value| {
        piece["choices"][0]["sampling_mask"] = json!(null);
        let row = &mut piece["choices"][0]["logprobs"]["content"][0];
        for entry in row["top_logprobs"].as_array_mut().unwrap() {
            entry["logprob"] = json!(1.0f64 / 3.0).as_f64().map(|third| json!(third.ln())).unwrap();
        }
        row["logprob"] = row["top_logprobs"][0]["logprob"].clone();
    };
    let text = refused(&Options::default(), changed(raw)).await;
    assert!(text.contains("its log-probs are raw"), "{text}");
    assert!(text.contains("pass --logprobs-mode processed_logprobs to vllm serve"), "{text}");
    let server = Server::start(changed(raw)).await;
    let observe = Options { on_finding: OnFinding::Report, ..Options::default() };
    let engine = connect(&server.address, &observe).await.unwrap();
    assert_eq!(engine.profile.log_probs, LogProbMeaning::Raw);
    assert!(engine.findings[0].untruthful);
}

#[tokio::test]
async fn a_closed_route_is_refused_with_the_flag_and_observed_over_the_other_one() {
    fn closed(call: &Call) -> Say {
        match call.path.as_str() {
            "/inference/v1/generate" => {
                Say::Json(403, json!({ "error": { "message": "Scale-out endpoints are disabled" } }))
            }
            "/v1/completions" if call.body["prompt"][0].as_u64() >= Some(1000) => {
                Say::Json(400, json!({ "error": { "message": "out of vocabulary" } }))
            }
            "/v1/completions" => Say::Json(
                200,
                json!({ "choices": [{
                "token_ids": [5, 6], "finish_reason": "length", "logprobs": {
                    "tokens": ["token_id:5", "token_id:6"], "token_logprobs": [-0.2, -0.3],
                    "top_logprobs": [{ "token_id:5": -0.2, "token_id:6": -1.9, "token_id:7": -4.0 },
                        { "token_id:6": -0.3, "token_id:8": -1.6, "token_id:9": -3.0 }],
                },
            }] }),
            ),
            _ => vllm(call),
        }
    }
    let text = refused(&Options::default(), closed).await;
    assert!(text.contains("Scale-out endpoints are disabled; pass --enable-scale-out to vllm serve"), "{text}");
    let server = Server::start(closed).await;
    let observe = Options { on_finding: OnFinding::Report, ..Options::default() };
    let engine = connect(&server.address, &observe).await.unwrap();
    assert_eq!((engine.vocabulary, engine.profile.log_probs), (1000, LogProbMeaning::Raw));
    let sent = server.bodies("/v1/completions").remove(0);
    assert_eq!((&sent["return_token_ids"], &sent["return_tokens_as_token_ids"]), (&json!(true), &json!(true)));
}

#[tokio::test]
async fn labels_that_are_missing_or_foreign_are_refused() {
    let none = changed(|piece| piece["choices"][0]["weight_versions"] = json!(null));
    assert!(refused(&Options::default(), none).await.contains("its replies carry no weight version"));
    let foreign = changed(|piece| {
        if piece["choices"][0]["weight_versions"].is_array() {
            piece["choices"][0]["weight_versions"][0]["version"] = json!("default");
        }
    });
    let text = refused(&Options::default(), foreign).await;
    assert!(text.contains("labelled \"default\", which is no version of ours"), "{text}");
    assert!(text.contains("/update_weight_version"), "{text}");
}

#[tokio::test]
async fn fewer_log_probs_and_hidden_defaults_are_noted() {
    let capped = |call: &Call| {
        let many = call.body["sampling_params"]["logprobs"].as_u64() > Some(20);
        let bare = call.path == "/inference/v1/generate" && call.body["sampling_params"].get("top_k").is_none();
        match () {
            () if many => Say::Json(400, json!({ "error": { "message": "logprobs must be at most 20" } })),
            () if bare => Say::Json(200, crate::server::piece(0, Some("length"))),
            () => match changed(|piece| piece["choices"][0]["sampling_mask"] = json!(null))(call) {
                Say::Lines(lines) => Say::Lines(lines),
                other => other,
            },
        }
    };
    let server = Server::start(capped).await;
    let engine = connect(&server.address, &Options::default()).await.unwrap();
    let notes: Vec<String> = engine.findings.iter().map(ToString::to_string).collect();
    for note in ["pass --max-logprobs 64 to vllm serve", "no sampling mask", "generation_config.json"] {
        assert!(notes.iter().any(|found| found.contains(note)), "{note}: {notes:?}");
    }
}

/// A honest SGLang of 500 ids.
fn sglang(call: &Call) -> Say {
    match call.path.as_str() {
        "/model_info" => Say::Json(200, json!({ "model_path": "tiny", "weight_version": "e0.s0" })),
        "/server_info" => Say::Json(200, json!({ "version": "0.5.23" })),
        "/generate" => {
            if call.body["input_ids"].as_array().unwrap().iter().any(|id| id.as_u64() >= Some(500)) {
                return Say::Json(400, json!({ "error": { "message": "ids beyond the vocabulary" } }));
            }
            let tokens = call.body["sampling_params"]["max_new_tokens"].as_u64().unwrap() as usize;
            let pieces = (1..=tokens).map(|n| {
                let ids: Vec<usize> = (0..n).map(|at| 10 + at).collect();
                json!({ "output_ids": [ids[n - 1]], "meta_info": {
                    "completion_tokens": n, "weight_version": "e0.s0",
                    "finish_reason": (n == tokens).then(|| json!({ "type": "length", "length": n })),
                    "output_token_logprobs": ids.iter().map(|id| json!([-0.5, id, null])).collect::<Vec<_>>(),
                    "output_token_sampling_mask": ids.iter().map(|id| [id]).collect::<Vec<_>>(),
                    "output_token_sampling_logprobs": ids.iter().map(|_| [0.0]).collect::<Vec<_>>(),
                } })
            });
            Say::Lines(pieces.collect())
        }
        _ => Say::Json(404, json!({})),
    }
}

#[tokio::test]
async fn an_honest_sglang_is_taken_and_one_without_masks_is_refused() {
    let server = Server::start(sglang).await;
    let engine = connect(&server.address, &Options::default()).await.unwrap();
    assert_eq!((engine.kind, engine.vocabulary, engine.findings.len()), (EngineKind::Sglang, 500, 0));
    let unmasked = |call: &Call| match sglang(call) {
        Say::Lines(mut lines) => {
            for line in &mut lines {
                line["meta_info"].as_object_mut().unwrap().remove("output_token_sampling_mask");
            }
            Say::Lines(lines)
        }
        other => other,
    };
    let text = refused(&Options::default(), unmasked).await;
    assert!(text.contains("it does not report the kept ids"), "{text}");
    let unlabelled = |call: &Call| match sglang(call) {
        Say::Lines(mut lines) => {
            lines.iter_mut().for_each(|line| line["meta_info"]["weight_version"] = json!("default"));
            Say::Lines(lines)
        }
        other => other,
    };
    assert!(refused(&Options::default(), unlabelled).await.contains("pass --weight-version e0.s0"));
}

fn llama(call: &Call) -> Say {
    match call.path.as_str() {
        "/props" => Say::Json(200, json!({ "default_generation_settings": {}, "build_info": "b1" })),
        "/v1/models" => Say::Json(200, json!({ "data": [{ "meta": { "n_vocab": 700 } }] })),
        "/completion" => {
            let mut settings = call.body.clone();
            settings["speculative.types"] = json!("none");
            settings["lora"] = json!([]);
            let tokens = call.body["n_predict"].as_u64().unwrap() as usize;
            let row = |id: usize| json!({ "id": id, "prob": 1.0, "top_probs": [{ "id": id, "prob": 1.0 }] });
            let ids: Vec<usize> = (0..tokens).map(|at| 10 + at).collect();
            Say::Json(
                200,
                json!({ "tokens": ids, "model": "tiny.gguf", "stop_type": "limit", "generation_settings": settings,
                "completion_probabilities": ids.iter().map(|&id| row(id)).collect::<Vec<_>>() }),
            )
        }
        _ => Say::Json(404, json!({})),
    }
}

#[tokio::test]
async fn a_llama_server_needs_a_version_and_must_echo_what_it_was_asked() {
    let options = Options { weight_version: Some(WeightVersion { epoch: 0, step: 4 }), ..Options::default() };
    let server = Server::start(llama).await;
    let engine = connect(&server.address, &options).await.unwrap();
    assert_eq!((engine.kind, engine.vocabulary, engine.findings.len()), (EngineKind::LlamaCpp, 700, 0));
    assert!(engine.control().map(drop).unwrap_err().to_string().contains("llama.cpp has no weight update"));
    assert!(refused(&Options::default(), llama).await.contains("llama.cpp has no label for its weights"));
    let warm = |call: &Call| match llama(call) {
        Say::Json(200, mut value) if call.path == "/completion" => {
            value["generation_settings"]["repeat_penalty"] = json!(1.05);
            Say::Json(200, value)
        }
        other => other,
    };
    let text = refused(&options, warm).await;
    assert!(text.contains("repeat_penalty was asked as 1.0, the engine used 1.05"), "{text}");
}

#[tokio::test]
async fn an_unknown_server_is_not_guessed() {
    let server = Server::start(|_| Say::Json(404, json!({}))).await;
    let text = connect(&server.address, &Options::default()).await.unwrap_err().to_string();
    assert!(text.contains("name it with --engine"), "{text}");
}

#[test]
fn each_launch_line_names_the_flags_that_the_findings_name() {
    for flag in
        ["--enable-scale-out", "--return-sampling-mask", "--logprobs-mode processed_logprobs", "--max-logprobs 64"]
    {
        assert!(launch_line(EngineKind::Vllm).contains(flag));
    }
    assert!(launch_line(EngineKind::Sglang).contains("--weight-version e0.s0"));
    assert!(launch_line(EngineKind::LlamaCpp).starts_with("llama-server"));
}
