//! From spans to stamps: what an answer's tokens are said to be drawn by, and when it is not known.

use crate::replies::*;
use lockstep_adapters::{Answer, Chunk, End, Next, VersionSpan, Versions, Weights, WireError};
use lockstep_core::{
    Delta, FinishReason, Stamp, Support, TokenId,
    delta::KvHistory,
    profile::{Dtypes, LogProbMeaning, SamplerProfile, TieRule},
};
use std::sync::Arc;

fn profile() -> Arc<SamplerProfile> {
    let none = String::new;
    let dtypes = Dtypes { weights: none(), activations: none(), kv_cache: none(), head: none() };
    let (engine, version, filters) = ("test".into(), none(), vec![]);
    Arc::new(SamplerProfile {
        engine,
        version,
        filters,
        ties: TieRule::KeepAll,
        log_probs: LogProbMeaning::Drawn,
        dtypes,
    })
}

fn weights(label: &str, updates: u64) -> Weights {
    Weights { label: Some(label.into()), updates }
}

fn answer(proxied: bool, label: &str) -> Answer {
    let mut answer = Answer::new(request(TOP_8, 300), profile(), Versions::Spans { proxied });
    answer.begin(weights(label, 0));
    answer
}

fn tokens(count: u32) -> Vec<Support> {
    (0..count).map(|n| Support::singleton(TokenId(1000 + n))).collect()
}

fn piece(count: u32) -> Chunk {
    Chunk { rows: tokens(count), ..Chunk::default() }
}

fn last(count: u32, spans: Option<Vec<VersionSpan>>, end: End) -> Chunk {
    Chunk { rows: tokens(count), versions: spans, end: Some(end) }
}

fn span(version: &str, start: usize, end: usize) -> VersionSpan {
    VersionSpan { version: version.into(), start, end }
}

fn told(deltas: &[Delta]) -> Vec<(u32, usize, Option<String>, KvHistory)> {
    let version = |stamp: &Stamp| stamp.version().map(|version| version.to_string());
    deltas.iter().map(|d| (d.start, d.behavior.len(), version(&d.stamp), d.kv)).collect()
}

#[test]
fn the_spans_of_a_real_update_cut_the_answer_at_its_token() {
    let spans = reply("vllm_processed_logprobs_midgen_version_change")["choices"][0]["weight_versions"].clone();
    let mut spans: Vec<VersionSpan> = serde_json::from_value(spans).unwrap();
    let (foreign, next) =
        answer(false, "step-1").take(last(300, Some(spans.clone()), End::Length), &weights("step-1", 0)).unwrap();
    assert_eq!(next, Next::Done);
    // Labels that nobody of ours set are no versions, and the caches behind the second may be old.
    assert_eq!(told(&foreign), [(0, 43, None, KvHistory::Fresh), (43, 257, None, KvHistory::Ambiguous)]);
    assert_eq!((foreign[0].finish, foreign[1].finish), (None, Some(FinishReason::Length)));
    for (span, version) in spans.iter_mut().zip(["e0.s1", "e0.s2"]) {
        span.version = version.into();
    }
    let ours = answer(true, "e0.s1").take(last(300, Some(spans), End::Length), &weights("e0.s2", 2)).unwrap().0;
    let version = |version: &str| Some(version.to_owned());
    let expected = [(0, 43, version("e0.s1"), KvHistory::Fresh), (43, 257, version("e0.s2"), KvHistory::Recomputed)];
    assert_eq!(told(&ours), expected);
}

#[test]
fn tokens_wait_for_their_spans_unless_no_update_can_have_passed() {
    let now = weights("e0.s1", 0);
    let mut waiting = answer(false, "e0.s1");
    assert_eq!(waiting.take(piece(3), &now).unwrap(), (vec![], Next::Goes));
    let mut live = answer(true, "e0.s1");
    let (out, _) = live.take(piece(3), &now).unwrap();
    assert_eq!(told(&out), [(0, 3, Some("e0.s1".into()), KvHistory::Fresh)]);
    // An update begins: from here on tokens wait, and the spans decide.
    assert_eq!(live.take(piece(2), &weights("e0.s1", 1)).unwrap().0, vec![]);
    let spans = vec![span("e0.s1", 0, 4), span("e0.s2", 4, 6)];
    let (out, next) = live.take(last(1, Some(spans), End::Length), &weights("e0.s2", 2)).unwrap();
    assert_eq!(next, Next::Done);
    let version = |version: &str| Some(version.to_owned());
    assert_eq!(
        told(&out),
        [(3, 1, version("e0.s1"), KvHistory::Fresh), (4, 2, version("e0.s2"), KvHistory::Recomputed)]
    );
}

#[test]
fn an_update_behind_our_back_is_seen_at_the_end() {
    let now = weights("e0.s1", 0);
    let mut answer = answer(true, "e0.s1");
    answer.take(piece(3), &now).unwrap();
    let spans = vec![span("e0.s1", 0, 2), span("e0.s2", 2, 4)];
    let seen = answer.take(last(1, Some(spans), End::Length), &now).unwrap_err();
    assert!(matches!(seen, WireError::Relabelled { start: 2, end: 3, .. }), "{seen}");
    assert!(seen.to_string().contains("\"e0.s2\""), "{seen}");
}

#[test]
fn a_cut_stream_keeps_its_tokens_and_invents_no_version() {
    let now = weights("e0.s1", 0);
    let mut unproxied = answer(false, "e0.s1");
    unproxied.take(piece(3), &now).unwrap();
    let cut = unproxied.cut(&now).unwrap();
    assert_eq!(told(&[cut]), [(0, 3, None, KvHistory::Ambiguous)]);
    assert_eq!(unproxied.cut(&now), None);
    // During an update nothing is known of what came since.
    let mut updating = answer(true, "e0.s1");
    updating.take(piece(3), &now).unwrap();
    updating.take(piece(2), &weights("e0.s1", 1)).unwrap();
    let cut = updating.cut(&weights("e0.s2", 2)).unwrap();
    assert_eq!(told(&[cut]), [(3, 2, None, KvHistory::Ambiguous)]);
}

#[test]
fn spans_that_do_not_cover_the_tokens_are_refused() {
    for spans in [vec![span("e0.s1", 0, 3)], vec![span("e0.s1", 0, 2), span("e0.s2", 3, 4)], vec![span("e0.s1", 0, 9)]]
    {
        let refused = answer(false, "e0.s1").take(last(4, Some(spans), End::Length), &weights("e0.s1", 0));
        assert!(matches!(refused, Err(WireError::Spans { tokens: 4, .. })), "{refused:?}");
    }
}

#[test]
fn an_aborted_answer_is_interrupted_not_finished() {
    let spans = Some(vec![span("e0.s1", 0, 4)]);
    let now = weights("e0.s1", 0);
    let (deltas, next) = answer(false, "e0.s1").take(last(4, spans, End::Aborted("gone".into())), &now).unwrap();
    assert_eq!(next, Next::Interrupted("gone".into()));
    assert_eq!(deltas.iter().map(|delta| delta.finish).collect::<Vec<_>>(), [None]);
}

#[test]
fn an_engine_that_stops_where_it_was_not_asked_to_is_asked_again() {
    let now = weights("e0.s1", 0);
    let spans = || Some(vec![span("e0.s1", 0, 4)]);
    let (deltas, next) = answer(false, "e0.s1").take(last(4, spans(), End::Stop), &now).unwrap();
    assert_eq!((next, deltas[0].finish), (Next::Again, None));
    let mut stopped = last(3, spans(), End::Stop);
    stopped.rows.push(Support::singleton(TokenId(3)));
    let (deltas, next) = answer(false, "e0.s1").take(stopped, &now).unwrap();
    assert_eq!((next, deltas[0].finish), (Next::Done, Some(FinishReason::Stop(TokenId(3)))));
}

#[test]
fn tokens_beyond_the_end_are_refused() {
    let now = weights("e0.s1", 0);
    let many = answer(false, "e0.s1").take(piece(301), &now);
    assert_eq!(many, Err(WireError::TooMany { found: 301, asked: 300 }));
    let mut after = Chunk { rows: vec![Support::singleton(TokenId(3))], ..Chunk::default() };
    after.rows.extend(tokens(1));
    assert_eq!(answer(false, "e0.s1").take(after, &now), Err(WireError::TooMany { found: 2, asked: 1 }));
}
