//! Plans of a trainer that drives the loop: membership, rewards, and what was trained on.

use super::{
    Said, counting,
    engine::{Act, Fake},
    gateway, gateway_with, get, send,
};
use crate::serve::{Gateway, Options, pull::Judging};
use futures_util::FutureExt;
use lockstep_core::dispatch::Rules;
use serde_json::{Value, json};
use std::sync::Arc;

async fn sample(gateway: &Arc<Gateway>, ids: &str, prompt: &str) -> Said {
    let n = ids.split(',').count();
    let body = format!(r#"{{"prompt":{prompt},"n":{n},"max_tokens":2,"return_token_ids":true}}"#);
    send(gateway, "/v1/completions", &[("x-plan-id", "0"), ("x-rollout-id", ids)], &body).await
}

async fn opened(gateway: &Arc<Gateway>) {
    let opened = send(gateway, "/v1/plans", &[], r#"{"groups":1,"answers":2}"#).await.ok();
    assert_eq!(opened, json!({"plan": 0, "rollouts": ["p0.r0", "p0.r1"]}));
}

fn lines(said: &Said) -> Vec<Value> {
    said.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn a_plan_is_opened_filled_sealed_rewarded_and_consumed() {
    let gateway = counting();
    opened(&gateway).await;
    sample(&gateway, "p0.r0,p0.r1", "[1]").await.ok();
    send(&gateway, "/v1/rollouts/p0.r1/reward", &[], r#"{"reward":0.5}"#).await.ok();
    let sealed = lines(&send(&gateway, "/v1/plans/0/seal", &[], "").await);
    assert_eq!((sealed.len(), &sealed[0]["token_ids"], &sealed[0]["reward"]), (2, &json!([10, 11]), &json!(null)));
    assert_eq!((&sealed[1]["reward"], &sealed[1]["rollout_id"]), (&json!(0.5), &json!("p0.r1")));
    let trained = r#"{"rollouts":[{"rollout_id":"p0.r1","tokens":2,"masked_in":2},
        {"rollout_id":"p0.r0","tokens":2,"masked_in":2}]}"#;
    send(&gateway, "/v1/plans/0/consumed", &[], trained).await.ok();
    send(&gateway, "/v1/plans/0/consumed", &[], trained).await.ok();
    assert!(send(&gateway, "/v1/plans/0/seal", &[], "").await.error(409).contains("consumed already"));
}

#[tokio::test]
async fn every_difference_between_plan_and_training_is_named() {
    let gateway = counting();
    opened(&gateway).await;
    let early = send(&gateway, "/v1/plans/0/consumed", &[], r#"{"rollouts":[]}"#).await.error(409);
    assert_eq!(early, "plan 0 waits for 2 of 2 rollouts and cannot have been trained on");
    sample(&gateway, "p0.r0,p0.r1", "[1]").await.ok();
    let rollout = |id: &str, tokens: u32, kept: u32| json!({"rollout_id": id, "tokens": tokens, "masked_in": kept});
    let cases = [
        (vec![rollout("p0.r0", 2, 2)], "plan 0: 1 rollouts were trained on, 2 were given; p0.r1 not trained on"),
        (vec![rollout("p0.r0", 2, 2), rollout("p0.r0", 2, 2)], "p0.r1 not trained on, p0.r0 of no such plan"),
        (vec![rollout("p0.r0", 2, 2), rollout("p0.r1", 1, 1)], "p0.r1 was trained on with 1 tokens, 2 were sampled"),
        (vec![rollout("p0.r0", 2, 0), rollout("p0.r1", 2, 2)], "p0.r0 has 2 sampled tokens, but the mask kept 0"),
        (
            vec![rollout("p0.r0", 2, 2), rollout("p0.r1", 2, 2), rollout("p0.r2", 1, 1)],
            "none not trained on, p0.r2 of no such plan",
        ),
    ];
    for (rollouts, expected) in cases {
        let body = json!({"rollouts": rollouts}).to_string();
        let error = send(&gateway, "/v1/plans/0/consumed", &[], &body).await.error(409);
        assert!(error.contains(expected), "{error} is not {expected}");
    }
}

#[tokio::test]
async fn rollouts_nobody_planned_and_broken_groups_are_refused() {
    let gateway = counting();
    opened(&gateway).await;
    assert!(sample(&gateway, "p0.r2", "[1]").await.error(404).contains("is not among the 2 of plan 0"));
    assert!(sample(&gateway, "p1.r0", "[1]").await.error(400).contains("is not of plan 0"));
    sample(&gateway, "p0.r0", "[1]").await.ok();
    assert!(sample(&gateway, "p0.r1", "[2]").await.error(409).contains("answer one prompt of the plan"));
    let again = sample(&gateway, "p0.r0", "[1]").await.ok();
    assert_eq!(again["choices"][0]["token_ids"], json!([10, 11]));
    let two = r#"{"prompt":[1],"n":2,"max_tokens":2,"return_token_ids":true}"#;
    let miscounted = send(&gateway, "/v1/completions", &[("x-rollout-id", "p0.r0")], two).await.error(400);
    assert!(miscounted.contains("names 1 rollouts for a request of 2 answers"), "{miscounted}");
    let rewarded = send(&gateway, "/v1/rollouts/p0.r7/reward", &[], r#"{"reward":1}"#).await.error(404);
    assert!(rewarded.contains("p0.r7"), "{rewarded}");
}

#[tokio::test]
async fn a_seal_waits_for_the_slowest_and_an_answer_goes_on_without_its_client() {
    let (release, released) = tokio::sync::watch::channel(false);
    let gateway = Arc::new(gateway(vec![Fake::counting()]));
    opened(&gateway).await;
    sample(&gateway, "p0.r0", "[1]").await.ok();
    let waiting = tokio::spawn({
        let gateway = gateway.clone();
        async move {
            let sealed = send(&gateway, "/v1/plans/0/seal", &[], "").await;
            assert!(*released.borrow(), "sealed before the second rollout was there");
            sealed
        }
    });
    tokio::task::yield_now().await;
    release.send(true).unwrap();
    // The client leaves as soon as its request is under way.
    let leaving = sample(&gateway, "p0.r1", "[1]");
    assert!(leaving.now_or_never().is_none());
    assert_eq!(lines(&waiting.await.unwrap()).len(), 2);
}

#[tokio::test]
async fn a_request_of_no_plan_is_given_up_when_its_client_leaves() {
    let engine = Fake::new(|_, _| vec![Act::Draw(1, 0), Act::Hang]);
    let gateway = Arc::new(gateway(vec![engine.clone()]));
    let body = r#"{"prompt":[1],"max_tokens":2,"return_token_ids":true}"#;
    let leaving = send(&gateway, "/v1/completions", &[], body);
    assert!(leaving.now_or_never().is_none());
    while engine.cancelled.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn rewards_that_are_no_numbers_or_contradict_are_refused() {
    let gateway = counting();
    opened(&gateway).await;
    send(&gateway, "/v1/rollouts/p0.r0/reward", &[], r#"{"reward":1}"#).await.ok();
    send(&gateway, "/v1/rollouts/p0.r0/reward", &[], r#"{"reward":1}"#).await.ok();
    let second = send(&gateway, "/v1/rollouts/p0.r0/reward", &[], r#"{"reward":0}"#).await.error(409);
    assert_eq!(second, "rollout p0.r0 has reward 1 already, and now 0");
    assert!(send(&gateway, "/v1/rollouts/r0/reward", &[], r#"{"reward":0}"#).await.error(400).contains("p12.r3"));
    assert!(
        send(&gateway, "/v1/rollouts/p0.r0/reward", &[], r#"{"reward":null}"#).await.error(400).contains("exactly one")
    );
    assert!(
        send(&gateway, "/v1/plans", &[], r#"{"groups":0,"answers":2}"#).await.error(400).contains("has no rollouts")
    );
}

#[tokio::test]
async fn no_more_plans_are_open_than_may_be_and_a_lost_trainer_finds_its_own() {
    let options = Options { rules: Rules { max_open_plans: 1, ..Rules::default() }, ..Options::default() };
    let gateway = Arc::new(gateway_with(vec![Fake::counting()], options));
    opened(&gateway).await;
    let full = send(&gateway, "/v1/plans", &[], r#"{"groups":1,"answers":2}"#).await.error(409);
    assert_eq!(full, "1 plans are open, at most 1 may be");
    let open = get(&gateway, "/v1/plans").await.ok();
    assert_eq!(open, json!({"plans": [{"plan": 0, "rollouts": 2, "arrived": 0, "judged": 0}]}));
}

#[tokio::test]
async fn judging_that_fails_is_an_outcome() {
    let judging = Judging { attempts: 2, counts_as: -1.0, ..Judging::default() };
    let gateway = Arc::new(gateway_with(vec![Fake::counting()], Options { judging, ..Options::default() }));
    opened(&gateway).await;
    let failed = r#"{"failed":"the sandbox broke"}"#;
    let said = send(&gateway, "/v1/rollouts/p0.r0/reward", &[], failed).await.ok();
    assert_eq!(said["attempts_left"], 1);
    let said = send(&gateway, "/v1/rollouts/p0.r0/reward", &[], failed).await.ok();
    assert_eq!(said["attempts_left"], 0);
    sample(&gateway, "p0.r0,p0.r1", "[1]").await.ok();
    let sealed = lines(&send(&gateway, "/v1/plans/0/seal", &[], "").await);
    assert_eq!((&sealed[0]["reward"], &sealed[1]["reward"]), (&json!(-1.0), &json!(null)));
    let both = r#"{"reward":1,"failed":"x"}"#;
    assert!(send(&gateway, "/v1/rollouts/p0.r1/reward", &[], both).await.error(400).contains("exactly one"));
}
