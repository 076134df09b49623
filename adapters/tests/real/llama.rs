//! llama.cpp's `llama-server`.

use crate::draws::{address, deltas, follow_the_report, nucleus, request, tokens};
use lockstep_adapters::{Engine, EngineKind, OnFinding, Options, connect};
use lockstep_core::{
    FinishReason, Rollout, Support, TokenId, WeightVersion,
    ports::{PortError, SampleRequest},
    sampling::{Limits, Truncation},
    support::Domain,
};
use std::sync::Arc;

const VERSION: WeightVersion = WeightVersion { epoch: 0, step: 0 };

async fn engine() -> Option<Arc<Engine>> {
    let address = address("LOCKSTEP_LLAMA_URL", "make real")?;
    Some(connect(&address, &Options { weight_version: Some(VERSION), ..Options::default() }).await.unwrap())
}

async fn answer(engine: &Engine, asked: &SampleRequest) -> Rollout {
    Rollout::fold(asked.request.clone(), deltas(&*engine.sampler, asked.clone()).await).unwrap()
}

#[tokio::test]
async fn draws_follow_the_report_and_a_report_of_another_nucleus_is_seen() {
    let Some(engine) = engine().await else { return };
    follow_the_report(&*engine.sampler).await;
}

#[tokio::test]
async fn an_answer_of_many_legs_is_whole_and_can_be_resumed() {
    let Some(engine) = engine().await else { return };
    assert_eq!(engine.kind, EngineKind::LlamaCpp);
    let asked = request(0, nucleus(0.9), tokens(100));
    let rollout = answer(&engine, &asked).await;
    assert_eq!((rollout.len(), rollout.finish()), (100, FinishReason::Length));
    assert_eq!(rollout.segments().len(), 1);
    assert_eq!(rollout.segments()[0].stamp.version(), Some(VERSION));
    let resumed: Vec<TokenId> = rollout.sampled().take(37).collect();
    let rest = deltas(&*engine.sampler, SampleRequest { resumed, ..asked }).await;
    assert_eq!(rest[0].start, 37);
    assert_eq!(rest.iter().map(|delta| delta.behavior.len()).sum::<usize>(), 63);
}

#[tokio::test]
async fn a_stop_id_of_the_request_ends_the_answer() {
    let Some(engine) = engine().await else { return };
    let whole = answer(&engine, &request(0, nucleus(0.9), tokens(40))).await;
    let stop = whole.sampled().nth(20).unwrap();
    let at = whole.sampled().position(|token| token == stop).unwrap();
    let asked = request(0, nucleus(0.9), Limits { stop: vec![stop], max_new_tokens: 40 });
    let cut = answer(&engine, &asked).await;
    assert_eq!((cut.len(), cut.finish()), (at + 1, FinishReason::Stop(stop)));
}

#[tokio::test]
async fn every_kind_of_support_is_reported() {
    let Some(engine) = engine().await else { return };
    for truncation in [
        Truncation::NONE,
        nucleus(0.8),
        Truncation { top_k: 20, top_p: 0.95, min_p: 0.02 },
        Truncation { top_k: 200, top_p: 1.0, min_p: 0.0 },
    ] {
        let rollout = answer(&engine, &request(3, truncation, tokens(24))).await;
        for row in rollout.segments().iter().flat_map(|segment| segment.behavior.rows()) {
            assert_eq!(row.domain() == Domain::Listed, !truncation.is_none());
            assert!(truncation.top_k == 0 || row.ids().len() <= truncation.top_k as usize);
        }
    }
}

/// The nucleus of a head, renormalised: the most probable ids up to the one that crosses `top_p`.
fn cut(head: &Support, top_p: f64) -> Vec<(TokenId, f64)> {
    let mut kept: Vec<(TokenId, f64)> = Vec::new();
    let mut mass = 0.0;
    for (&id, log_q) in head.ids().iter().zip(head.log_q()) {
        if mass >= top_p {
            break;
        }
        mass += log_q.exp();
        kept.push((id, log_q.exp()));
    }
    assert!(mass >= top_p, "the head carries {mass}, less than {top_p}");
    kept.iter().map(|&(id, q)| (id, q / mass)).collect()
}

#[tokio::test]
async fn the_nucleus_is_measured_after_the_temperature() {
    let Some(engine) = engine().await else { return };
    let asked = request(5, nucleus(0.8), tokens(20));
    let rollout = answer(&engine, &asked).await;
    let sampled: Vec<TokenId> = rollout.sampled().collect();
    let rows = rollout.segments().iter().flat_map(|segment| segment.behavior.rows());
    for (at, row) in rows.enumerate() {
        let resumed = sampled[..at].to_vec();
        let whole = SampleRequest { resumed, ..request(5, Truncation::NONE, tokens(at as u32 + 1)) };
        let expected = cut(&deltas(&*engine.sampler, whole).await[0].behavior.row(0), 0.8);
        assert_eq!(row.ids().len(), expected.len(), "at position {at}");
        for ((id, log_q), (kept, q)) in row.ids().iter().zip(row.log_q()).zip(&expected) {
            assert!(id == kept && (log_q.exp() - q).abs() < 1e-5, "at position {at}: {id} {} {kept} {q}", log_q.exp());
        }
    }
}

#[tokio::test]
async fn the_label_and_the_control_plane_are_refused_by_name() {
    let Some(address) = address("LOCKSTEP_LLAMA_URL", "make real") else { return };
    let refused = connect(&address, &Options::default()).await.unwrap_err().to_string();
    assert!(refused.contains("pass --weight-version e0.s0"), "{refused}");
    let observed = connect(&address, &Options { on_finding: OnFinding::Report, ..Options::default() }).await.unwrap();
    assert!(observed.findings.iter().any(|finding| finding.untruthful));
    assert!(matches!(observed.control().map(drop), Err(PortError::Refused(why)) if why.contains("no weight update")));
    let deltas = deltas(&*observed.sampler, request(0, nucleus(0.8), tokens(2))).await;
    assert_eq!(deltas[0].stamp.version(), None);
}
