//! An engine recorded, and judged without it.

use super::recording;
use crate::record::{self, Recorder};
use axum::{
    Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures_util::TryStreamExt;
use lockstep_adapters::{OnFinding, Options};
use lockstep_conformance::{Report, Suite};
use lockstep_core::{
    RolloutId, SamplingParams, TokenId,
    ports::SampleRequest,
    rollout::Request,
    sampling::{Limits, Truncation},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

const VOCABULARY: u64 = 40;
const ANSWERS: u32 = 120;
const LENGTH: u32 = 4;
const ODDS: [f64; 4] = [0.4, 0.3, 0.2, 0.1];

/// How an engine draws: a place below the kept ids, by a uniform number.
type Draw = fn(&[f64], f64) -> usize;

fn honest(kept: &[f64], u: f64) -> usize {
    let mut below = 0.0;
    let inside = kept.iter().take_while(|p| {
        below += **p;
        below <= u
    });
    inside.count().min(kept.len() - 1)
}

fn greedy(_: &[f64], _: f64) -> usize {
    0
}

/// SplitMix64's finaliser, as a number below 1.
fn uniform(seed: u64, at: u64) -> f64 {
    let z = seed.wrapping_add(at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z >> 11) as f64 / (1u64 << 53) as f64
}

/// A vLLM that keeps the likeliest of four ids.
async fn generate(State(draw): State<Draw>, asked: String) -> Response {
    let asked: Value = serde_json::from_str(&asked).unwrap();
    let sampling = &asked["sampling_params"];
    let prompt: Vec<u64> = asked["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    if prompt.iter().any(|&id| id >= VOCABULARY) {
        return (StatusCode::BAD_REQUEST, json!({"error": {"message": "Token id out of vocabulary"}}).to_string())
            .into_response();
    }
    let top_k = sampling["top_k"].as_i64().unwrap();
    let kept = if top_k > 0 { &ODDS[..(top_k as usize).min(4)] } else { &ODDS[..] };
    let total: f64 = kept.iter().sum();
    let kept: Vec<f64> = kept.iter().map(|p| p / total).collect();
    let limit = sampling["max_tokens"].as_u64().unwrap();
    let rows: Vec<Value> = (0..limit)
        .map(|at| {
            let first = 8 + at;
            let token = first + draw(&kept, uniform(sampling["seed"].as_u64().unwrap(), at)) as u64;
            let top = (first..first + 6).enumerate().map(|(rank, id)| {
                let log_prob = kept.get(rank).map_or(-9999.0, |p| p.ln());
                json!({"token_id": id, "logprob": log_prob, "rank": rank + 1})
            });
            let own = kept[(token - first) as usize].ln();
            json!({"token_id": token, "logprob": own, "rank": token - first + 1, "top_logprobs": top.collect::<Vec<_>>()})
        })
        .collect();
    let ids: Vec<u64> = rows.iter().map(|row| row["token_id"].as_u64().unwrap()).collect();
    let choice = json!({
        "index": 0, "token_ids": ids, "finish_reason": "length", "sampling_mask": null, "logprobs": {"content": rows},
        "weight_versions": [{"version": "e0.s0", "start": 0, "end": limit}],
    });
    let body = format!("data: {}\n\ndata: [DONE]\n\n", json!({"choices": [choice]}));
    ([("content-type", "text/event-stream")], body).into_response()
}

async fn listening(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(record::serve(router, listener, std::future::pending()));
    address
}

fn request(index: u32) -> SampleRequest {
    let limits = Limits { stop: vec![], max_new_tokens: LENGTH };
    let params =
        SamplingParams::new(0.8, Truncation { top_k: 3, ..Truncation::NONE }, limits, u64::from(index)).unwrap();
    let id = RolloutId { plan: 1, index };
    SampleRequest {
        request: Request { id, group: index, prompt: vec![TokenId(1 + index % 5)], params },
        resumed: vec![],
    }
}

/// What the suite says of answers that an engine drew before.
async fn judged(draw: Draw) -> Report {
    let known = |value: Value| get(move || async move { value.to_string() });
    let engine = Router::new()
        .route("/version", known(json!({"version": "0.32.0"})))
        .route("/v1/models", known(json!({"data": [{"id": "fake"}]})))
        .route("/weight_info", known(json!({"weight_version": "e0.s0"})))
        .route("/inference/v1/generate", post(generate))
        .with_state(draw);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("recording.jsonl");
    let recorder = Recorder::create(&listening(engine).await, &file).unwrap();
    let address = listening(recorder.router()).await;
    let options = Options { on_finding: OnFinding::Report, ..Options::default() };
    let connected = lockstep_adapters::connect(&address, &options).await.unwrap();
    for index in 0..ANSWERS {
        let deltas = connected.sampler.generate(vec![request(index)]).await.unwrap();
        deltas.try_collect::<Vec<_>>().await.unwrap();
    }
    let found = recording(&file).await.unwrap();
    let answers = found.target.recorded.as_ref().unwrap().rollouts().len();
    assert!(
        answers >= ANSWERS as usize,
        "{answers} answers, {} foreign, {:?}",
        found.foreign,
        found.target.contradictions
    );
    Suite::all().run(&found.target, &mut |_| {}).await
}

fn verdict<'a>(report: &'a Report, id: &str) -> &'a str {
    report.row(id).unwrap().verdict.word()
}

#[tokio::test]
async fn a_recording_is_judged_by_what_it_shows_and_the_rest_could_not_run() {
    let report = judged(honest).await;
    for id in ["distribution.drawn", "distribution.support", "tokens.ends", "tokens.vocabulary"] {
        assert_eq!(verdict(&report, id), "pass", "{}", report.table());
    }
    for id in ["distribution.seed", "distribution.greedy", "distribution.filters", "version.evidence"] {
        assert_eq!(verdict(&report, id), "could not run", "{}", report.table());
    }
    assert_eq!(report.exit_code(), 2);
}

#[tokio::test]
async fn a_recorded_engine_that_draws_otherwise_than_it_says_is_red() {
    let report = judged(greedy).await;
    assert_eq!(verdict(&report, "distribution.drawn"), "FAIL", "{}", report.table());
}
