//! Weight updates that pass through: to every replica, and with their effect on the cache.

use super::{
    Said,
    engine::{Act, Fake},
    get, send,
};
use crate::serve::{Gateway, Options, Pool, pool::Replica};
use axum::{Router, body::Bytes, extract::OriginalUri, http::StatusCode};
use serde_json::json;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;

type Heard = Arc<Mutex<Vec<String>>>;

/// A control plane that notes what it is told, and says that its weights are `label`.
async fn plane(label: &'static str, heard: Heard) -> String {
    let answer = move |OriginalUri(uri): OriginalUri, body: Bytes| {
        let heard = heard.clone();
        async move {
            let body = String::from_utf8_lossy(&body).into_owned();
            heard.lock().unwrap().push(format!("{uri} {body}").trim_end().to_owned());
            match uri.path() {
                "/weight_info" => (StatusCode::OK, json!({"weight_version": label}).to_string()),
                "/flush_cache" if label == "broken" => (StatusCode::BAD_REQUEST, "busy".to_owned()),
                _ => (StatusCode::OK, "{}".to_owned()),
            }
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
    format!("http://{address}")
}

async fn before(labels: &[&'static str], engine: Fake) -> (Arc<Gateway>, Heard) {
    let heard = Heard::default();
    let mut replicas = Vec::new();
    for label in labels {
        let url = plane(label, heard.clone()).await;
        replicas.push(Replica::new(*label, Arc::new(engine.clone()), None).at(url.parse().unwrap()));
    }
    (Arc::new(Gateway::new(Pool::new(replicas).unwrap(), Options::default())), heard)
}

/// An engine that goes on with other weights after the first token.
fn updated_midway() -> Fake {
    Fake::new(|_, _| vec![Act::Draw(1, 1), Act::Draw(1, 2)])
}

async fn kv(gateway: &Arc<Gateway>) -> Vec<String> {
    let body = r#"{"prompt":[1],"max_tokens":2,"return_token_ids":true,"return_weight_versions":true}"#;
    let said = send(gateway, "/v1/completions", &[], body).await.ok();
    let spans = said["choices"][0]["weight_versions"].as_array().unwrap().clone();
    spans.iter().map(|span| span["kv"].as_str().unwrap().to_owned()).collect()
}

async fn post(gateway: &Arc<Gateway>, path: &str, body: &str) -> Said {
    send(gateway, path, &[], body).await
}

#[tokio::test]
async fn the_pause_before_an_update_says_what_becomes_of_the_cache() {
    let cases = [
        ("/pause?mode=keep&clear_cache=false", "{}", "stale"),
        ("/pause?mode=keep", "{}", "recomputed"),
        ("/pause", "{}", "recomputed"),
        ("/pause_generation", r#"{"mode":"in_place"}"#, "stale"),
        ("/pause_generation", r#"{"mode":"retract"}"#, "recomputed"),
    ];
    for (pause, body, expected) in cases {
        let (gateway, _) = before(&["e0.s1"], updated_midway()).await;
        post(&gateway, pause, body).await.ok();
        assert!(gateway.pool.is_paused());
        post(&gateway, "/update_weights", "{}").await.ok();
        post(&gateway, "/resume", "{}").await.ok();
        assert!(!gateway.pool.is_paused());
        assert_eq!(kv(&gateway).await.last().unwrap(), expected, "{pause} {body}");
    }
}

#[tokio::test]
async fn an_update_nobody_announced_is_ambiguous_until_the_cache_is_flushed() {
    let (gateway, _) = before(&["e0.s1"], updated_midway()).await;
    assert_eq!(kv(&gateway).await, ["fresh", "ambiguous"]);
    post(&gateway, "/update_weights", "{}").await.ok();
    assert_eq!(kv(&gateway).await, ["ambiguous", "ambiguous"]);
    post(&gateway, "/reset_prefix_cache", "").await.ok();
    assert_eq!(kv(&gateway).await, ["fresh", "ambiguous"]);
    assert!(get(&gateway, "/metrics").await.text().contains("lockstep_weight_updates_total 1\n"));
}

#[tokio::test]
async fn no_answer_begins_while_sampling_is_paused() {
    let (gateway, _) = before(&["e0.s1"], Fake::counting()).await;
    post(&gateway, "/pause", "").await.ok();
    let waiting = tokio::spawn({
        let gateway = gateway.clone();
        async move { kv(&gateway).await }
    });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(gateway.counts.total_tokens(), 0);
    post(&gateway, "/resume", "").await.ok();
    assert_eq!(waiting.await.unwrap(), ["fresh"]);
}

#[tokio::test]
async fn every_replica_hears_it_and_a_new_label_aborts_nobody() {
    let (gateway, heard) = before(&["e0.s1", "broken"], Fake::counting()).await;
    post(&gateway, "/update_weight_version", r#"{"new_version":"e0.s2"}"#).await.ok();
    let told = r#"/update_weight_version {"new_version":"e0.s2","abort_all_requests":false}"#;
    assert_eq!(*heard.lock().unwrap(), [told, told]);
    let differ = get(&gateway, "/weight_info").await.error(409);
    assert!(differ.contains("do not agree") && differ.contains("broken"), "{differ}");
    assert!(post(&gateway, "/flush_cache", "").await.error(502).contains("engine broken: 400 Bad Request busy"));
    let ranked = post(&gateway, "/init_weights_update_group", "{}").await.error(409);
    assert!(ranked.contains("2 replicas cannot share one"), "{ranked}");
}

#[tokio::test]
async fn an_engine_without_a_control_plane_is_named() {
    let error = post(&super::counting(), "/pause", "").await.error(503);
    assert!(error.contains("engine 0") && error.contains("no control plane"), "{error}");
}
