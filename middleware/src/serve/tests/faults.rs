//! Engines that break: the client is told, what was drawn is kept, and another replica goes on from there.

use super::{
    engine::{Act, Fake, delta, last},
    gateway, gateway_with, send,
};
use crate::{config::Stage, dispatch::FIRST_LOOSE, serve::Options};
use lockstep_core::{
    Delta, FinishReason, RolloutId, Support, TokenId,
    ports::PortError,
    support::{Domain, Reported, Sampled},
};
use serde_json::json;
use std::{sync::Arc, time::Duration};

const BODY: &str = r#"{"prompt":[1],"max_tokens":4,"return_token_ids":true,"return_rollout_id":true,"seed":3}"#;

fn gone() -> Act {
    Act::Fail(PortError::Unavailable("connection reset".into()))
}

#[tokio::test]
async fn an_answer_is_resumed_on_another_replica_from_its_tokens() {
    for breaks in [gone(), Act::Fail(PortError::Failed("garbage".into())), Act::Hang] {
        let dying = Fake::new(move |_, _| vec![Act::Draw(2, 0), breaks.clone()]);
        let healthy = Fake::counting();
        let options = Options { silence: Duration::from_millis(20), ..Options::default() };
        let gateway = Arc::new(gateway_with(vec![dying.clone(), healthy.clone()], options));
        let said = send(&gateway, "/v1/completions", &[], BODY).await.ok();
        assert_eq!(said["choices"][0]["token_ids"], json!([10, 11, 12, 13]));
        assert_eq!(healthy.asked()[0].resumed, [TokenId(10), TokenId(11)]);
        assert_eq!(healthy.asked()[0].request, dying.asked()[0].request);
        assert_eq!(gateway.counts.resumptions(), 1);
    }
}

#[tokio::test]
async fn a_restarted_engine_is_asked_again_for_what_is_missing() {
    let engine = Fake::new(|call, _| if call == 0 { vec![Act::Draw(3, 0), gone()] } else { vec![Act::Rest] });
    let said = send(&Arc::new(gateway(vec![engine])), "/v1/completions", &[], BODY).await.ok();
    assert_eq!(said["choices"][0]["token_ids"], json!([10, 11, 12, 13]));
}

#[tokio::test]
async fn an_engine_that_keeps_breaking_is_an_error_and_the_client_can_resume() {
    let engine = Fake::new(|call, _| match call {
        0 => vec![Act::Draw(2, 0), gone()],
        1..=3 => vec![gone()],
        _ => vec![Act::Rest],
    });
    let gateway = Arc::new(gateway(vec![engine.clone()]));
    let said = send(&gateway, "/v1/completions", &[], BODY).await;
    let error = said.error(503);
    assert_eq!(error, "engine engine 0, after 2 tokens of rollout p1099511627776.r0: connection reset");
    assert_eq!(said.json()["error"]["rollout_ids"], json!(["p1099511627776.r0"]));
    let other = BODY.replace("\"seed\":3", "\"seed\":4");
    let conflict = send(&gateway, "/v1/completions", &[("x-rollout-id", "p1099511627776.r0")], &other).await.error(409);
    assert!(conflict.contains("other parameters"), "{conflict}");
    let said = send(&gateway, "/v1/completions", &[("x-rollout-id", "p1099511627776.r0")], BODY).await.ok();
    assert_eq!(said["choices"][0]["token_ids"], json!([10, 11, 12, 13]));
    assert_eq!(engine.asked().last().unwrap().resumed, [TokenId(10), TokenId(11)]);
}

#[tokio::test]
async fn an_engine_that_cannot_resume_is_never_asked_to_sample_again() {
    let engine = Fake::new(|_, _| vec![Act::Draw(2, 0), gone()]).forgetful();
    let error = send(&Arc::new(gateway(vec![engine.clone()])), "/v1/completions", &[], BODY).await.error(400);
    assert!(error.contains("cannot resume"), "{error}");
    assert_eq!(engine.asked().len(), 1);
}

#[tokio::test]
async fn what_no_engine_may_send_is_refused_with_its_place() {
    let id = RolloutId { plan: FIRST_LOOSE, index: 0 };
    let cases: [(Delta, &str); 7] = [
        (
            delta(RolloutId { plan: FIRST_LOOSE, index: 1 }, 0, 1, 0),
            "a delta of rollout p1099511627776.r1 among those of p1099511627776.r0",
        ),
        (delta(id, 1, 1, 0), "a delta starts at token 1, but 0 are there"),
        (delta(id, 0, 0, 0), "an empty delta of rollout p1099511627776.r0"),
        (delta(id, 0, 5, 0), "rollout p1099511627776.r0 has 5 tokens, but was asked for at most 4"),
        (last(delta(id, 0, 0, 0), FinishReason::Length), "rollout p1099511627776.r0 ended without a token"),
        (delta(id, 0, 4, 0), "the stream ended before rollout p1099511627776.r0 did"),
        (Delta { start: 0, ..delta(id, 2000, 1, 0) }, "token 2010 at position 0 is outside the vocabulary of 1000"),
    ];
    for (sent, expected) in cases {
        let cut = sent.behavior.len() == 4;
        let engine =
            Fake::new(move |call, _| if cut && call > 0 { vec![] } else { vec![Act::Send(Box::new(sent.clone()))] });
        let said = send(&Arc::new(gateway(vec![engine])), "/v1/completions", &[], BODY).await;
        if cut {
            // All tokens were there: nothing is missing but the word of the end.
            assert_eq!(said.ok()["choices"][0]["finish_reason"], "length");
        } else {
            let error = said.error(502);
            assert!(error.contains(expected), "{error} is not {expected}");
        }
    }
}

#[tokio::test]
async fn a_support_that_ignores_the_filters_is_refused_where_the_truth_is_enforced() {
    for (stage, filter, accepted) in [
        (Stage::Observe, r#","top_p":0.9"#, true),
        (Stage::Fix, "", true),
        (Stage::Fix, r#","top_p":0.9"#, false),
        (Stage::Dlc, r#","top_k":5"#, false),
    ] {
        let engine = Fake::new(|_, asked| {
            let head = Reported {
                ids: vec![TokenId(10)],
                log_q: vec![0.5f64.ln()],
                log_rest: Some(0.5f64.ln()),
                domain: Domain::Vocabulary(1000),
            };
            let sampled = Sampled { token: TokenId(10), log_q: 0.5f64.ln() };
            let mut drawn = last(delta(asked.request.id, 0, 0, 0), FinishReason::Length);
            drawn.behavior.push(&Support::new(sampled, head).unwrap());
            vec![Act::Send(Box::new(drawn))]
        });
        let gateway = Arc::new(gateway_with(vec![engine], Options { stage, ..Options::default() }));
        let body = format!(r#"{{"prompt":[1],"max_tokens":1,"return_token_ids":true{filter}}}"#);
        let said = send(&gateway, "/v1/completions", &[], &body).await;
        if accepted {
            said.ok();
        } else {
            assert!(said.error(502).contains("position 0 is over the whole vocabulary"));
        }
    }
}

#[tokio::test]
async fn an_end_at_a_token_that_ends_nothing_is_refused() {
    let engine = Fake::new(|_, asked| {
        let stopped = last(delta(asked.request.id, 0, 1, 0), FinishReason::Stop(TokenId(10)));
        vec![Act::Send(Box::new(stopped))]
    });
    let gateway = Arc::new(gateway(vec![engine]));
    let error = send(&gateway, "/v1/completions", &[], BODY).await.error(502);
    assert!(error.contains("ended at 10"), "{error}");
    let stops = BODY.replace("\"seed\":3", "\"stop_token_ids\":[10]");
    send(&gateway, "/v1/completions", &[], &stops).await.ok();
}

#[tokio::test]
async fn a_stream_that_breaks_off_says_so_and_is_not_done() {
    let engine = Fake::new(|call, _| if call == 0 { vec![Act::Draw(2, 0), gone()] } else { vec![gone()] });
    let body = BODY.replace("\"seed\":3", "\"stream\":true");
    let (events, done) = send(&Arc::new(gateway(vec![engine])), "/v1/completions", &[], &body).await.events();
    assert!(!done);
    assert_eq!(events[0]["choices"][0]["token_ids"], json!([10, 11]));
    assert!(events[1]["error"]["message"].as_str().unwrap().contains("after 2 tokens"));
}

#[tokio::test]
async fn other_requests_are_untouched_by_one_that_fails() {
    let engine = Fake::new(|_, asked| {
        let fails = asked.request.prompt[0] == TokenId(9);
        if fails { vec![Act::Fail(PortError::Failed("garbage".into()))] } else { vec![Act::Rest] }
    });
    let gateway = Arc::new(gateway(vec![engine]));
    let bad = BODY.replace("[1]", "[9]");
    let (good, failed) =
        tokio::join!(send(&gateway, "/v1/completions", &[], BODY), send(&gateway, "/v1/completions", &[], &bad));
    assert_eq!(good.ok()["choices"][0]["token_ids"], json!([10, 11, 12, 13]));
    assert!(failed.error(502).contains("garbage"));
}

#[tokio::test]
async fn an_engine_that_refuses_is_not_asked_twice() {
    let engine = Fake::new(|_, _| vec![Act::Fail(PortError::Refused("top_k must be finite".into()))]);
    let gateway = Arc::new(gateway(vec![engine.clone(), Fake::counting()]));
    let error = send(&gateway, "/v1/completions", &[], BODY).await.error(400);
    assert!(error.contains("top_k must be finite"), "{error}");
    assert_eq!(engine.asked().len(), 1);
}
