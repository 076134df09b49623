//! Engines that break: what came is kept, the error is clear, memory is bounded, the other requests go on.

use crate::server::*;
use futures_util::{StreamExt, TryStreamExt};
use lockstep_adapters::{Engine, Options, connect};
use lockstep_core::{
    Delta, FinishReason, RolloutId, SamplingParams, TokenId,
    delta::KvHistory,
    ports::{PortError, PortResult, SampleRequest},
    rollout::Request,
    sampling::{Limits, Truncation},
};
use std::{sync::Arc, time::Duration};

pub(crate) fn request(index: u32, tokens: u32) -> SampleRequest {
    let limits = Limits { stop: vec![], max_new_tokens: tokens };
    let params = SamplingParams::new(1.0, Truncation { top_k: 8, top_p: 0.9, min_p: 0.0 }, limits, 1).unwrap();
    let prompt = vec![TokenId(1), TokenId(900 + index)];
    SampleRequest { request: Request { id: RolloutId { plan: 0, index }, group: 0, prompt, params }, resumed: vec![] }
}

/// A vLLM that says something else to requests whose prompt ends in 900, 901, ..
async fn connected(
    breaks: impl Fn(&Call) -> Option<Say> + Send + Sync + 'static,
    options: Options,
) -> (Arc<Engine>, Server) {
    let server = Server::start(move |call| {
        let real =
            call.path == "/inference/v1/generate" && call.body["sampling_params"]["max_tokens"].as_u64() > Some(2);
        if real { breaks(call).unwrap_or_else(|| vllm(call)) } else { vllm(call) }
    })
    .await;
    (connect(&server.address, &Options { vocabulary: Some(1000), ..options }).await.unwrap(), server)
}

async fn told(engine: &Engine, requests: Vec<SampleRequest>) -> Vec<PortResult<Delta>> {
    engine.sampler.generate(requests).await.unwrap().collect().await
}

fn tokens(told: &[PortResult<Delta>]) -> Vec<u32> {
    let deltas = told.iter().filter_map(|item| item.as_ref().ok());
    deltas.flat_map(|delta| delta.behavior.tokens().iter().map(|token| token.0)).collect()
}

fn error(told: &[PortResult<Delta>]) -> PortError {
    told.iter().find_map(|item| item.clone().err()).expect("an error was put into the stream")
}

fn two_pieces() -> Vec<u8> {
    [event(&piece(0, None)), event(&piece(1, None))].concat().into_bytes()
}

#[tokio::test]
async fn an_honest_engine_is_heard_to_the_end() {
    let (engine, _server) = connected(|_| None, Options::default()).await;
    let told: Vec<Delta> = engine.sampler.generate(vec![request(0, 5)]).await.unwrap().try_collect().await.unwrap();
    assert_eq!(told.iter().map(|delta| delta.start).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(told[4].finish, Some(FinishReason::Length));
    assert!(told.iter().all(|delta| delta.stamp.version().unwrap().to_string() == "e0.s1"));
}

#[tokio::test]
async fn a_stream_that_is_cut_inside_a_character_keeps_its_tokens() {
    // The third line breaks off after the first byte of a two-byte character.
    let bytes = [two_pieces(), b"data: {\"text\": \"\xc3".to_vec()].concat();
    let (engine, _server) = connected(move |_| Some(Say::Cut(bytes.clone())), Options::default()).await;
    let told = told(&engine, vec![request(0, 5)]).await;
    assert_eq!(tokens(&told), [10, 11]);
    assert!(matches!(error(&told), PortError::Unavailable(why) if why.contains("p0.r0") || why.contains("broke off")));
}

#[tokio::test]
async fn a_cut_stream_of_weights_that_others_change_is_ambiguous_not_lost() {
    let options = Options { updates_proxied: false, ..Options::default() };
    let (engine, _server) = connected(move |_| Some(Say::Cut(two_pieces())), options).await;
    let told = told(&engine, vec![request(0, 5)]).await;
    let first = told[0].as_ref().unwrap();
    assert_eq!((first.behavior.len(), first.kv, first.stamp.version()), (2, KvHistory::Ambiguous, None));
    assert!(matches!(error(&told), PortError::Unavailable(_)));
}

#[tokio::test]
async fn a_stream_that_ends_without_a_finish_reason_is_interrupted() {
    let (engine, _server) = connected(|_| Some(Say::Lines(vec![piece(0, None)])), Options::default()).await;
    let told = told(&engine, vec![request(0, 5)]).await;
    assert_eq!(tokens(&told), [10]);
    assert!(
        matches!(error(&told), PortError::Unavailable(why) if why.contains("without a finish reason, after 1 tokens"))
    );
}

#[tokio::test]
async fn an_abort_keeps_its_tokens_and_is_resumable() {
    let lines = vec![piece(0, None), piece(1, Some("abort"))];
    let (engine, server) = connected(
        move |call| (call.body["token_ids"].as_array().unwrap().len() == 2).then(|| Say::Lines(lines.clone())),
        Options::default(),
    )
    .await;
    let first = told(&engine, vec![request(0, 5)]).await;
    assert_eq!(tokens(&first), [10, 11]);
    assert!(first.iter().flatten().all(|delta| delta.finish.is_none()));
    assert!(
        matches!(error(&first), PortError::Unavailable(why) if why.contains("aborted the request, after 2 tokens"))
    );
    let resumed = SampleRequest { resumed: vec![TokenId(10), TokenId(11)], ..request(0, 5) };
    let rest = told(&engine, vec![resumed]).await;
    assert_eq!(rest[0].as_ref().unwrap().start, 2);
    assert_eq!(rest.last().unwrap().as_ref().unwrap().finish, Some(FinishReason::Length));
    let sent = server.bodies("/inference/v1/generate").pop().unwrap();
    assert_eq!(sent["token_ids"].as_array().unwrap().len(), 4);
    assert_eq!(sent["sampling_params"]["max_tokens"], 3);
}

#[tokio::test]
async fn garbage_and_refusals_are_told_apart() {
    let garbage = b"data: {\"choices\": [{]\n\n".to_vec();
    let (engine, _server) = connected(
        move |call| match call.body["token_ids"][1].as_u64() {
            Some(900) => Some(Say::Cut(garbage.clone())),
            Some(901) => Some(Say::Json(400, serde_json::json!({ "error": { "message": "top_k must be finite" } }))),
            Some(902) => Some(Say::Json(503, serde_json::json!({ "error": "loading" }))),
            Some(903) => Some(Say::Json(500, serde_json::json!({ "detail": "out of memory" }))),
            Some(904) => Some(Say::Dead),
            _ => None,
        },
        Options::default(),
    )
    .await;
    let first = error(&told(&engine, vec![request(0, 5)]).await);
    assert!(matches!(&first, PortError::Failed(why) if why.contains("rollout p0.r0: reply of")), "{first}");
    let second = error(&told(&engine, vec![request(1, 5)]).await);
    assert!(matches!(&second, PortError::Refused(why) if why.contains("top_k must be finite")), "{second}");
    let third = error(&told(&engine, vec![request(2, 5)]).await);
    assert!(matches!(&third, PortError::Unavailable(why) if why.contains("loading")), "{third}");
    let fourth = error(&told(&engine, vec![request(3, 5)]).await);
    assert!(matches!(&fourth, PortError::Failed(why) if why.contains("out of memory")), "{fourth}");
    let fifth = error(&told(&engine, vec![request(4, 5)]).await);
    assert!(matches!(&fifth, PortError::Unavailable(_)), "{fifth}");
}

#[tokio::test]
async fn an_engine_that_falls_silent_is_given_up() {
    let options = Options { patience: Duration::from_millis(200), ..Options::default() };
    let (engine, _server) = connected(|_| Some(Say::Silent(two_pieces())), options).await;
    let told = told(&engine, vec![request(0, 5)]).await;
    assert_eq!(tokens(&told), [10, 11]);
    assert!(matches!(error(&told), PortError::Unavailable(why) if why.contains("fell silent for 0.2 s")));
}

#[tokio::test]
async fn a_line_without_end_is_cut_off_at_its_limit() {
    let options = Options { most_bytes: 4 << 20, ..Options::default() };
    let (engine, _server) = connected(|_| Some(Say::Endless(100 << 20)), options).await;
    #[cfg(target_os = "linux")]
    let before = resident();
    let told = told(&engine, vec![request(0, 5)]).await;
    assert!(matches!(error(&told), PortError::Failed(why) if why.contains("more than 4194304 bytes in one piece")));
    #[cfg(target_os = "linux")]
    {
        let grown = resident().saturating_sub(before);
        assert!(grown < 40 << 20, "memory grew by {grown} bytes over a reply of 100 MB");
    }
}

/// Bytes of this process in memory.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[tokio::test]
async fn one_broken_answer_leaves_the_others_alone() {
    let breaks = |call: &Call| (call.body["token_ids"][1] == 901).then_some(Say::Cut(b"data: nonsense\n\n".to_vec()));
    let (engine, _server) = connected(breaks, Options::default()).await;
    let told = told(&engine, vec![request(0, 5), request(1, 5), request(2, 5)]).await;
    let finished: Vec<u32> =
        told.iter().flatten().filter(|delta| delta.finish.is_some()).map(|delta| delta.rollout.index).collect();
    assert_eq!(finished.len(), 2);
    assert!(!finished.contains(&1));
    assert!(matches!(error(&told), PortError::Failed(why) if why.contains("rollout p0.r1")));
}

#[tokio::test]
async fn a_cancelled_answer_ends_with_what_it_has() {
    let (engine, _server) = connected(|_| Some(Say::Silent(two_pieces())), Options::default()).await;
    let mut deltas = engine.sampler.generate(vec![request(0, 5)]).await.unwrap();
    let first = deltas.next().await.unwrap().unwrap();
    let second = deltas.next().await.unwrap().unwrap();
    assert_eq!((first.start, second.start), (0, 1));
    engine.sampler.cancel(&[RolloutId { plan: 0, index: 0 }]).await.unwrap();
    assert!(deltas.next().await.is_none());
}

#[tokio::test]
async fn an_answer_that_was_complete_is_not_asked_again() {
    let (engine, server) = connected(|_| Some(Say::Dead), Options::default()).await;
    let before = server.paths().len();
    let resumed = SampleRequest { resumed: (0..5).map(TokenId).collect(), ..request(0, 5) };
    let told = told(&engine, vec![resumed]).await;
    assert_eq!(told.len(), 1);
    let delta = told[0].as_ref().unwrap();
    assert_eq!((delta.start, delta.behavior.len(), delta.finish), (5, 0, Some(FinishReason::Length)));
    assert_eq!(server.paths().len(), before);
}

#[tokio::test]
async fn nobody_at_the_address_is_said_so() {
    let refused = connect("http://127.0.0.1:9", &Options::default()).await.unwrap_err().to_string();
    assert!(refused.contains("engine at http://127.0.0.1:9"), "{refused}");
    for address in ["https://127.0.0.1:1", "127.0.0.1:1", "nonsense here"] {
        let refused = connect(address, &Options::default()).await.unwrap_err().to_string();
        assert!(refused.starts_with("address"), "{refused}");
    }
}
