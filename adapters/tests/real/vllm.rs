//! vLLM on the CPU, by processed log-probs.

use crate::draws::{address, deltas, follow_the_report, nucleus, request, tokens};
use lockstep_adapters::{Engine, EngineKind, OnFinding, Options, connect};
use lockstep_core::{FinishReason, Rollout, profile::LogProbMeaning};
use std::sync::Arc;

async fn engine() -> Option<Arc<Engine>> {
    let address = address("LOCKSTEP_VLLM_URL", "make real-vllm")?;
    // Its label is "default" until somebody sets one.
    let options = Options { on_finding: OnFinding::Report, log_probs: 512, ..Options::default() };
    Some(connect(&address, &options).await.unwrap())
}

#[tokio::test]
async fn a_vllm_on_the_cpu_is_measured_for_what_it_is() {
    let Some(engine) = engine().await else { return };
    assert_eq!((engine.kind, engine.vocabulary), (EngineKind::Vllm, 151_936));
    assert_eq!(engine.profile.log_probs, LogProbMeaning::Drawn);
    assert!(engine.findings.iter().any(|finding| finding.what.contains("no sampling mask")));
}

#[tokio::test]
async fn draws_follow_the_report_and_a_report_of_another_nucleus_is_seen() {
    let Some(engine) = engine().await else { return };
    follow_the_report(&*engine.sampler).await;
}

#[tokio::test]
async fn a_streamed_answer_is_whole() {
    let Some(engine) = engine().await else { return };
    let asked = request(0, nucleus(0.8), tokens(64));
    let rollout = Rollout::fold(asked.request.clone(), deltas(&*engine.sampler, asked).await).unwrap();
    assert_eq!((rollout.len(), rollout.finish()), (64, FinishReason::Length));
}
