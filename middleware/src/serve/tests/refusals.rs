//! What would change the distribution is refused by its name, in every dialect.

use super::{counting, engine::Fake, gateway_with, get, send};
use crate::serve::Options;
use std::sync::Arc;

/// A body of each dialect with one more sampling field.
fn bodies(field: &str) -> [(&'static str, String); 3] {
    [
        ("/v1/completions", format!(r#"{{"prompt":[1],"max_tokens":1,"return_token_ids":true,{field}}}"#)),
        ("/inference/v1/generate", format!(r#"{{"token_ids":[1],"sampling_params":{{"max_tokens":1,{field}}}}}"#)),
        ("/generate", format!(r#"{{"input_ids":[1],"sampling_params":{{"max_new_tokens":1,{field}}}}}"#)),
    ]
}

#[tokio::test]
async fn fields_that_change_the_distribution_are_refused_by_name() {
    let fields = [
        ("presence_penalty", "0.5"),
        ("frequency_penalty", "-0.5"),
        ("repetition_penalty", "1.05"),
        ("logit_bias", r#"{"5":-100}"#),
        ("min_tokens", "4"),
        ("bad_words", r#"["x"]"#),
        ("regex", r#""a+""#),
        ("guided_grammar", r#""root""#),
        ("response_format", r#"{"type":"json_object"}"#),
        ("topp", "0.9"),
        ("typical_p", "0.9"),
    ];
    for (name, value) in fields {
        for (path, body) in bodies(&format!("{name:?}:{value}")) {
            let said = send(&counting(), path, &[], &body).await;
            let error = said.error(400);
            assert!(error.contains(name), "{path} {name}: {error}");
            assert_eq!(said.json()["error"]["param"], name);
            assert_eq!(said.json()["error"]["type"], "invalid_request_error");
        }
    }
}

#[tokio::test]
async fn values_outside_their_range_are_refused_with_their_number() {
    let cases = [
        (r#""temperature":0"#, "temperature 0"),
        (r#""temperature":-1"#, "temperature -1"),
        (r#""top_p":1.5"#, "top_p 1.5"),
        (r#""min_p":1"#, "min_p 1"),
        (r#""top_k":-2"#, "top_k -2"),
        (r#""n":0"#, "0 answers"),
        (r#""n":100000"#, "100000 answers"),
        (r#""temperature":"hot""#, "temperature"),
        (r#""stop":"""#, "stop"),
    ];
    for (field, expected) in cases {
        for (path, body) in bodies(field) {
            let error = send(&counting(), path, &[], &body).await.error(400);
            assert!(error.contains(expected), "{path} {field}: {error}");
        }
    }
}

#[tokio::test]
async fn prompts_outside_the_vocabulary_and_empty_ones_are_refused() {
    let body = |ids: &str| format!(r#"{{"token_ids":{ids},"sampling_params":{{"max_tokens":1}}}}"#);
    let outside = send(&counting(), "/inference/v1/generate", &[], &body("[1,1000]")).await.error(400);
    assert_eq!(outside, "token 1000 at position 1 of the prompt is outside the vocabulary of 1000");
    let empty = send(&counting(), "/inference/v1/generate", &[], &body("[]")).await.error(400);
    assert!(empty.contains("empty"), "{empty}");
    let negative = send(&counting(), "/inference/v1/generate", &[], &body("[-1]")).await.error(400);
    assert!(negative.contains("token_ids"), "{negative}");
}

#[tokio::test]
async fn bodies_that_are_too_large_and_answers_that_are_too_many_are_refused() {
    let options = Options { body: 100, in_flight: 2, ..Options::default() };
    let gateway = Arc::new(gateway_with(vec![Fake::counting()], options));
    let large = format!(r#"{{"prompt":[{}1],"return_token_ids":true}}"#, "1,".repeat(100));
    let said = send(&gateway, "/v1/completions", &[], &large).await;
    assert_eq!(said.error(413), "the request's body is larger than 100 bytes");
    let many = r#"{"prompt":[1],"n":3,"max_tokens":1,"return_token_ids":true}"#;
    assert!(send(&gateway, "/v1/completions", &[], many).await.error(429).contains("2 answers are in flight"));
    let fits = r#"{"prompt":[1],"n":2,"max_tokens":1,"return_token_ids":true}"#;
    send(&gateway, "/v1/completions", &[], fits).await.ok();
    send(&gateway, "/v1/completions", &[], fits).await.ok();
}

#[tokio::test]
async fn text_without_a_model_and_unknown_routes_and_models_are_named() {
    let text = send(&counting(), "/v1/completions", &[], r#"{"prompt":"hello","return_token_ids":true}"#).await;
    assert!(text.error(501).contains("--model"));
    let shown = send(&counting(), "/v1/completions", &[], r#"{"prompt":[1]}"#).await.error(400);
    assert!(shown.contains("return_token_ids"), "{shown}");
    assert!(get(&counting(), "/v2/models").await.error(404).contains("/v2/models"));
    let options = Options { model: "tiny".into(), hold_name: true, ..Options::default() };
    let gateway = Arc::new(gateway_with(vec![Fake::counting()], options));
    let other = r#"{"model":"large","prompt":[1],"return_token_ids":true}"#;
    assert!(send(&gateway, "/v1/completions", &[], other).await.error(404).contains("\"tiny\" is"));
    assert_eq!(get(&gateway, "/v1/models").await.ok()["data"][0]["id"], "tiny");
}

#[tokio::test]
async fn health_and_metrics_answer() {
    let gateway = counting();
    send(&gateway, "/v1/completions", &[], r#"{"prompt":[1],"max_tokens":3,"return_token_ids":true}"#).await.ok();
    send(&gateway, "/v1/completions", &[], r#"{"prompt":[1],"topp":3}"#).await.error(400);
    assert_eq!(get(&gateway, "/health").await.status.as_u16(), 200);
    let page = get(&gateway, "/metrics").await.text();
    for line in ["lockstep_tokens_total 3", "lockstep_requests_refused_total 1", "lockstep_answers_total 1"] {
        assert!(page.lines().any(|found| found == line), "{line} is not in {page}");
    }
}
