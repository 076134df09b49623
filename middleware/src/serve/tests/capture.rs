//! What passes is in the ledger, and plans go on after a restart.

use super::{
    engine::{Act, Fake},
    gateway, send,
};
use crate::{
    dispatch::FIRST_LOOSE,
    ledger::{self, Ledger, Record},
    serve::{Gateway, Options, restore},
};
use lockstep_core::{TokenId, ports::PortError};
use serde_json::json;
use std::{path::Path, sync::Arc};

fn capturing(engine: Fake, directory: &Path) -> (Arc<Gateway>, std::thread::JoinHandle<Ledger>) {
    let found = restore(directory, &Options::default()).unwrap();
    let gateway = gateway(vec![engine]).capturing(found.capture, found.plans, found.loose);
    (Arc::new(gateway), found.writer)
}

#[tokio::test]
async fn an_answer_is_durable_when_the_client_has_it() {
    let directory = tempfile::tempdir().unwrap();
    let (gateway, _thread) = capturing(Fake::counting(), directory.path());
    let body = r#"{"prompt":[1,2],"max_tokens":3,"return_token_ids":true}"#;
    send(&gateway, "/v1/completions", &[], body).await.ok();
    // The writer still holds the file: what is read here was synced before the answer was given.
    let records = ledger::read(directory.path()).unwrap();
    let kinds: Vec<String> = records.iter().map(ToString::to_string).collect();
    assert_eq!(kinds[0], "the rules of dispatch, 8 open plans");
    assert_eq!(kinds[1], format!("the opening of plan {FIRST_LOOSE} with 1 rollouts"));
    assert_eq!(kinds[2], "the profile of fake 1");
    let deltas = records.iter().filter_map(|record| match record {
        Record::Delta(delta) => Some(delta.columns.tokens.clone()),
        _ => None,
    });
    assert_eq!(deltas.flatten().collect::<Vec<_>>(), [TokenId(10), TokenId(11), TokenId(12)]);
}

#[tokio::test]
async fn concurrent_requests_share_syncs() {
    let directory = tempfile::tempdir().unwrap();
    let (gateway, _thread) = capturing(Fake::counting(), directory.path());
    let body = r#"{"prompt":[1],"n":64,"max_tokens":3,"return_token_ids":true}"#;
    send(&gateway, "/v1/completions", &[], body).await.ok();
    let written = gateway.capture.written();
    let (entries, syncs) = (written.entries.load(std::sync::atomic::Ordering::Relaxed), &written.syncs);
    assert_eq!(entries, 1 + 64 * 3);
    assert!(syncs.load(std::sync::atomic::Ordering::Relaxed) < entries);
}

#[tokio::test]
async fn a_plan_goes_on_after_a_restart_from_the_tokens_it_has() {
    let directory = tempfile::tempdir().unwrap();
    let gone = || Act::Fail(PortError::Failed("power cut".into()));
    let dying = Fake::new(move |call, _| if call == 0 { vec![Act::Rest] } else { vec![Act::Draw(1, 0), gone()] });
    let (gateway, thread) = capturing(dying, directory.path());
    send(&gateway, "/v1/plans", &[], r#"{"groups":1,"answers":2}"#).await.ok();
    let body = r#"{"prompt":[1],"max_tokens":3,"return_token_ids":true}"#;
    send(&gateway, "/v1/completions", &[("x-rollout-id", "p0.r0")], body).await.ok();
    send(&gateway, "/v1/completions", &[("x-rollout-id", "p0.r1")], body).await.error(502);
    send(&gateway, "/v1/rollouts/p0.r0/reward", &[], r#"{"reward":2}"#).await.ok();
    drop(gateway);
    thread.join().unwrap();

    let engine = Fake::counting();
    let (gateway, _thread) = capturing(engine.clone(), directory.path());
    send(&gateway, "/v1/completions", &[("x-rollout-id", "p0.r1")], body).await.ok();
    assert_eq!(engine.asked()[0].resumed, [TokenId(10)]);
    let sealed = send(&gateway, "/v1/plans/0/seal", &[], "").await.text();
    let sealed: Vec<serde_json::Value> = sealed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(sealed[0]["reward"], json!(2.0));
    assert_eq!(sealed[1]["token_ids"], json!([10, 11, 12]));
    let opened = send(&gateway, "/v1/plans", &[], r#"{"groups":1,"answers":1}"#).await.ok();
    assert_eq!(opened["plan"], 1);
}
