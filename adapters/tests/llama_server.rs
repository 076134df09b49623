//! A real `llama-server` (`make real`): it is believed, its draws follow its reports, and a lie would be seen.
//!
//! Runs against the server at `LOCKSTEP_LLAMA_URL`; without it, says so and does nothing.

use futures_util::{StreamExt, TryStreamExt};
use lockstep_adapters::{Engine, EngineKind, OnFinding, Options, connect};
use lockstep_conformance::frequency::{Draws, GTest, g_test};
use lockstep_core::{
    Delta, FinishReason, Rollout, RolloutId, SamplingParams, Support, TokenId, WeightVersion,
    ports::{PortError, SampleRequest},
    rollout::Request,
    sampling::{Limits, Truncation},
};
use std::sync::Arc;

/// The draws of one frequency test.
const DRAWS: u32 = 4096;

/// Requests under way at once.
const AT_ONCE: usize = 64;

fn address(test: &str) -> Option<String> {
    let address = std::env::var("LOCKSTEP_LLAMA_URL").ok();
    if address.is_none() {
        eprintln!("{test}: not run, LOCKSTEP_LLAMA_URL names no llama-server (make real starts one)");
    }
    address
}

async fn engine(address: &str) -> Arc<Engine> {
    let weight_version = Some(WeightVersion { epoch: 0, step: 0 });
    connect(address, &Options { weight_version, ..Options::default() }).await.unwrap()
}

fn request(index: u32, truncation: Truncation, tokens: u32) -> SampleRequest {
    let limits = Limits { stop: vec![], max_new_tokens: tokens };
    let params = SamplingParams::new(0.7, truncation, limits, 1000 + u64::from(index)).unwrap();
    let prompt = [9707, 11, 358, 1079].map(TokenId).to_vec();
    SampleRequest { request: Request { id: RolloutId { plan: 1, index }, group: 0, prompt, params }, resumed: vec![] }
}

fn nucleus(top_p: f64) -> Truncation {
    Truncation { top_k: 0, top_p, min_p: 0.0 }
}

async fn deltas(engine: &Engine, request: SampleRequest) -> Vec<Delta> {
    engine.sampler.generate(vec![request]).await.unwrap().try_collect().await.unwrap()
}

async fn first_rows(engine: &Engine, truncation: Truncation) -> Vec<Support> {
    let draws = futures_util::stream::iter(0..DRAWS).map(|index| deltas(engine, request(index, truncation, 1)));
    let answers: Vec<Vec<Delta>> = draws.buffer_unordered(AT_ONCE).collect().await;
    answers.iter().map(|deltas| deltas[0].behavior.row(0)).collect()
}

fn tested(rows: &[Support]) -> GTest {
    let mut draws = Draws::default();
    rows.iter().for_each(|row| draws.push(row));
    let found = g_test(&[draws]);
    eprintln!(
        "{} draws: G = {:.3}, {} degrees of freedom, p = {:.3e}",
        rows.len(),
        found.statistic,
        found.freedom,
        found.p
    );
    found
}

#[tokio::test]
async fn draws_follow_the_report_and_a_report_of_another_nucleus_is_seen() {
    let Some(address) = address("draws_follow_the_report") else { return };
    let engine = engine(&address).await;
    let honest = first_rows(&engine, nucleus(0.8)).await;
    assert!(tested(&honest).p > 0.001);
    // What an engine would say that draws at top_p 0.8 and reports 0.9.
    let wide = deltas(&engine, request(DRAWS, nucleus(0.9), 1)).await[0].behavior.row(0);
    let lie = |row: &Support| Support::exact(row.sampled().token, wide.ids().to_vec(), wide.log_q().to_vec()).unwrap();
    assert!(wide.ids().len() > honest[0].ids().len(), "the two nuclei are the same here");
    assert!(tested(&honest.iter().map(lie).collect::<Vec<_>>()).p < 1e-6);
}

#[tokio::test]
async fn an_answer_of_many_legs_is_whole_and_can_be_resumed() {
    let Some(address) = address("an_answer_of_many_legs") else { return };
    let engine = engine(&address).await;
    assert_eq!(engine.kind, EngineKind::LlamaCpp);
    let asked = request(0, nucleus(0.9), 100);
    let first = deltas(&engine, asked.clone()).await;
    let rollout = Rollout::fold(asked.request.clone(), first.clone()).unwrap();
    assert_eq!((rollout.len(), rollout.finish()), (100, FinishReason::Length));
    assert_eq!(rollout.segments().len(), 1);
    assert_eq!(rollout.segments()[0].stamp.version(), Some(WeightVersion { epoch: 0, step: 0 }));
    let kept: Vec<TokenId> = rollout.sampled().take(37).collect();
    let rest = deltas(&engine, SampleRequest { resumed: kept, ..asked }).await;
    assert_eq!(rest[0].start, 37);
    assert_eq!(rest.iter().map(|delta| delta.behavior.len()).sum::<usize>(), 63);
}

#[tokio::test]
async fn a_stop_id_of_the_request_ends_the_answer() {
    let Some(address) = address("a_stop_id") else { return };
    let engine = engine(&address).await;
    let mut asked = request(0, nucleus(0.9), 40);
    let whole = Rollout::fold(asked.request.clone(), deltas(&engine, asked.clone()).await).unwrap();
    let stop = whole.sampled().nth(20).unwrap();
    let at = whole.sampled().position(|token| token == stop).unwrap();
    let limits = Limits { stop: vec![stop], max_new_tokens: 40 };
    asked.request.params = SamplingParams::new(0.7, nucleus(0.9), limits, 1000).unwrap();
    let cut = Rollout::fold(asked.request.clone(), deltas(&engine, asked).await).unwrap();
    assert_eq!((cut.len(), cut.finish()), (at + 1, FinishReason::Stop(stop)));
}

#[tokio::test]
async fn every_kind_of_support_is_reported() {
    let Some(address) = address("every_kind_of_support") else { return };
    let engine = engine(&address).await;
    for truncation in [
        Truncation::NONE,
        nucleus(0.8),
        Truncation { top_k: 20, top_p: 0.95, min_p: 0.02 },
        Truncation { top_k: 200, top_p: 1.0, min_p: 0.0 },
    ] {
        let asked = request(3, truncation, 24);
        let rollout = Rollout::fold(asked.request.clone(), deltas(&engine, asked).await).unwrap();
        for row in rollout.segments().iter().flat_map(|segment| segment.behavior.rows()) {
            assert_eq!(row.domain() == lockstep_core::support::Domain::Listed, !truncation.is_none());
            assert!(truncation.top_k == 0 || row.ids().len() <= truncation.top_k as usize);
        }
    }
}

#[tokio::test]
async fn the_label_and_the_control_plane_are_refused_by_name() {
    let Some(address) = address("the_label") else { return };
    let refused = connect(&address, &Options::default()).await.unwrap_err().to_string();
    assert!(refused.contains("pass --weight-version e0.s0"), "{refused}");
    let observed = connect(&address, &Options { on_finding: OnFinding::Report, ..Options::default() }).await.unwrap();
    assert!(observed.findings.iter().any(|finding| finding.untruthful));
    assert!(matches!(observed.control().map(drop), Err(PortError::Refused(why)) if why.contains("no weight update")));
    let deltas = deltas(&observed, request(0, nucleus(0.8), 2)).await;
    assert_eq!(deltas[0].stamp.version(), None);
}
