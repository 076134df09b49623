//! A server of OpenAI's shape that takes texts and gives texts: its log-probs are of the shape of `llama_cpp.server` 0.3.36,
//! which reports log softmax of the raw logits whatever it draws from. The server here is made up; the shape is recorded.

use super::{Outside, target};
use crate::record;
use axum::{
    Router,
    extract::State,
    routing::{get, post},
};
use lockstep_conformance::{NumericClass, Report, Suite};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::net::TcpListener;

const WORDS: usize = 40;

fn log_softmax(z: &[f64]) -> Vec<f64> {
    let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_sum = max + z.iter().map(|z| (z - max).exp()).sum::<f64>().ln();
    z.iter().map(|z| z - log_sum).collect()
}

/// Logits after a text: the likeliest word first.
fn logits(prompt: &str) -> Vec<f64> {
    let steepness = 0.15 + (prompt.len() % 5) as f64 / 20.0;
    (0..WORDS).map(|word| -steepness * word as f64).collect()
}

/// What is drawn from: tempered, then top-k, then top-p; places and log-probs.
fn processed(z: &[f64], asked: &Value) -> Vec<f64> {
    let temperature = asked["temperature"].as_f64().unwrap();
    let mut tempered = log_softmax(&z.iter().map(|z| z / temperature).collect::<Vec<_>>());
    let top_k = asked["top_k"].as_u64().unwrap() as usize;
    tempered.truncate(if top_k > 0 { top_k } else { WORDS });
    let kept = log_softmax(&tempered);
    let mut before = 0.0;
    let inside = kept.iter().take_while(|log_q| {
        let keep = before < asked["top_p"].as_f64().unwrap();
        before += log_q.exp();
        keep
    });
    let count = inside.count().max(1);
    log_softmax(&kept[..count])
}

/// SplitMix64's finaliser, as a number below 1.
fn uniform(seed: u64) -> f64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

async fn complete(State(raw): State<bool>, asked: String) -> String {
    let asked: Value = serde_json::from_str(&asked).unwrap();
    let mut text = asked["prompt"].as_str().unwrap().to_owned();
    let (mut tokens, mut own, mut tops) = (vec![], vec![], vec![]);
    for at in 0..asked["max_tokens"].as_u64().unwrap() {
        let z = logits(&text);
        let q = processed(&z, &asked);
        let u = uniform(asked["seed"].as_u64().unwrap() + (at << 40));
        let mut below = 0.0;
        let inside = q.iter().take_while(|log_q| {
            below += log_q.exp();
            below <= u
        });
        let drawn = inside.count().min(q.len() - 1);
        let told = if raw { log_softmax(&z) } else { q };
        let named = told.iter().enumerate().take(asked["logprobs"].as_u64().unwrap() as usize);
        tops.push(named.map(|(word, log_q)| (format!(" w{word}"), json!(log_q))).collect::<serde_json::Map<_, _>>());
        tokens.push(format!(" w{drawn}"));
        own.push(told[drawn]);
        text += &format!(" w{drawn}");
    }
    let logprobs = json!({"tokens": tokens, "token_logprobs": own, "top_logprobs": tops, "text_offset": []});
    json!({"choices": [{"text": tokens.concat(), "index": 0, "logprobs": logprobs, "finish_reason": "length"}]})
        .to_string()
}

async fn judged(raw: bool) -> Report {
    let models = get(|| async { json!({"object": "list", "data": [{"id": "tiny", "object": "model"}]}).to_string() });
    let server = Router::new().route("/v1/models", models).route("/v1/completions", post(complete)).with_state(raw);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sampler = Some(format!("http://{}", listener.local_addr().unwrap()));
    tokio::spawn(record::serve(server, listener, std::future::pending()));
    let (patience, numeric) = (Duration::from_secs(60), NumericClass::F32);
    let outside = Outside { sampler, trainer: None, numeric, patience, seed: 1 };
    let checks = ["distribution.drawn", "distribution.support", "distribution.greedy", "distribution.temperature"];
    Suite::only(&checks).unwrap().run(&target(&outside).await, &mut |_| {}).await
}

#[tokio::test]
async fn raw_log_probs_are_red_by_every_check_that_reads_them() {
    let report = judged(true).await;
    for row in &report.rows {
        assert!(row.verdict.is_fail(), "{}", report.table());
    }
}

#[tokio::test]
async fn log_probs_of_what_is_drawn_are_not() {
    let report = judged(false).await;
    for row in &report.rows {
        let word = row.verdict.word();
        // Masses need a trainer.
        assert!(word == "pass" || (row.id == "distribution.support" && word == "not applicable"), "{}", report.table());
    }
}
