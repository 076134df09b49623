//! Requests at one fixed prefix, and the G-test of what comes back.

use futures_util::{StreamExt, TryStreamExt};
use lockstep_conformance::frequency::{Draws, GTest, g_test};
use lockstep_core::{
    Delta, RolloutId, SamplingParams, Support, TokenId,
    ports::{SampleRequest, Sampler},
    rollout::Request,
    sampling::{Limits, Truncation},
};

/// The draws of one frequency test.
const DRAWS: u32 = 4096;

/// Requests under way at once.
const AT_ONCE: usize = 64;

/// The address in a variable; without it, the test says that it did not run.
pub(crate) fn address(variable: &str, make: &str) -> Option<String> {
    let address = std::env::var(variable).ok();
    if address.is_none() {
        eprintln!("not run: {variable} names no engine ({make} starts one)");
    }
    address
}

pub(crate) fn nucleus(top_p: f64) -> Truncation {
    Truncation { top_k: 0, top_p, min_p: 0.0 }
}

pub(crate) fn request(index: u32, truncation: Truncation, limits: Limits) -> SampleRequest {
    let params = SamplingParams::new(0.7, truncation, limits, 1000 + u64::from(index)).unwrap();
    let prompt = [9707, 11, 358, 1079].map(TokenId).to_vec();
    SampleRequest { request: Request { id: RolloutId { plan: 1, index }, group: 0, prompt, params }, resumed: vec![] }
}

pub(crate) fn tokens(max_new_tokens: u32) -> Limits {
    Limits { stop: vec![], max_new_tokens }
}

pub(crate) async fn deltas(sampler: &dyn Sampler, request: SampleRequest) -> Vec<Delta> {
    sampler.generate(vec![request]).await.unwrap().try_collect().await.unwrap()
}

async fn first_row(sampler: &dyn Sampler, index: u32, truncation: Truncation) -> Support {
    deltas(sampler, request(index, truncation, tokens(1))).await[0].behavior.row(0)
}

fn tested(rows: &[Support]) -> GTest {
    let mut draws = Draws::default();
    rows.iter().for_each(|row| draws.push(row));
    let found = g_test(&[draws]);
    let GTest { statistic, freedom, p } = found;
    eprintln!("{} draws: G = {statistic:.3}, {freedom} degrees of freedom, p = {p:.3e}", rows.len());
    found
}

/// Draws at top_p 0.8 follow their report; the same draws reported as of top_p 0.9 do not.
pub(crate) async fn follow_the_report(sampler: &dyn Sampler) {
    let draws = futures_util::stream::iter(0..DRAWS).map(|index| first_row(sampler, index, nucleus(0.8)));
    let honest: Vec<Support> = draws.buffer_unordered(AT_ONCE).collect().await;
    assert!(tested(&honest).p > 0.001);
    let wide = first_row(sampler, DRAWS, nucleus(0.9)).await;
    assert!(wide.ids().len() > honest[0].ids().len(), "the two nuclei are the same here");
    let lie = |row: &Support| Support::exact(row.sampled().token, wide.ids().to_vec(), wide.log_q().to_vec()).unwrap();
    assert!(tested(&honest.iter().map(lie).collect::<Vec<_>>()).p < 1e-6);
}
