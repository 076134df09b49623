//! What a trainer asks over gRPC, on the port that also speaks HTTP.

use super::{counting, engine::Fake, gateway, send};
use crate::{
    client::SamplerClient,
    conformance::outside::{Outside, target},
    serve::{Gateway, serve},
    wire::{
        batch::BatchReader,
        proto::{self, middleware_client::MiddlewareClient, rollout_reward::Outcome},
    },
};
use futures_util::TryStreamExt;
use lockstep_conformance::NumericClass;
use lockstep_core::{
    Delta, FinishReason, RolloutId, SamplingParams, TokenId,
    ports::{PortError, SampleRequest, Sampler},
    rollout::Request,
    sampling::{Limits, Truncation},
};
use std::{net::SocketAddr, sync::Arc};
use tokio::net::TcpListener;
use tonic::{Code, Response, Streaming, transport::Channel};

async fn served(gateway: &Arc<Gateway>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(gateway.clone(), listener, std::future::pending()));
    address
}

pub(super) async fn client(gateway: &Arc<Gateway>) -> MiddlewareClient<Channel> {
    MiddlewareClient::connect(format!("http://{}", served(gateway).await)).await.unwrap()
}

/// Everything that is streamed.
pub(super) async fn pieces(streamed: Response<Streaming<proto::BatchChunk>>) -> Vec<proto::BatchPiece> {
    let (mut chunks, mut pieces) = (streamed.into_inner(), Vec::new());
    while let Some(chunk) = chunks.message().await.unwrap() {
        pieces.extend(chunk.pieces);
    }
    pieces
}

fn id(index: u32) -> Option<proto::RolloutId> {
    Some(proto::RolloutId { plan: 0, index })
}

#[tokio::test]
async fn a_trainer_drives_a_plan_over_grpc() {
    let gateway = counting();
    let mut client = client(&gateway).await;
    let said = client.describe(proto::Empty {}).await.unwrap().into_inner();
    assert_eq!((said.pull, said.sampler.unwrap().vocabulary, said.stamp), (false, 1000, None));
    let asked = proto::OpenPlanRequest { groups: 1, answers: 2, plan: Some(0) };
    let opened = client.open_plan(asked).await.unwrap().into_inner();
    assert_eq!(client.open_plan(asked).await.unwrap().into_inner(), opened, "as after a reply that was lost");
    assert_eq!((opened.plan, opened.rollouts.len()), (0, 2));
    let body = r#"{"prompt":[1],"n":2,"max_tokens":3,"return_token_ids":true}"#;
    send(&gateway, "/v1/completions", &[("x-rollout-id", "p0.r0,p0.r1")], body).await.ok();
    let judged = |index, outcome| proto::RolloutReward { rollout: id(index), outcome: Some(outcome) };
    let reward = |index, reward| judged(index, Outcome::Reward(reward));
    client.reward(proto::Rewards { rewards: vec![reward(0, 1.0)] }).await.unwrap();
    for attempt in 0..gateway.options.judging.attempts {
        let failed = judged(1, Outcome::Failed(format!("timed out {attempt}")));
        assert_eq!(gateway.plans.open_plans()[0].judged, 1, "before attempt {attempt}");
        client.reward(proto::Rewards { rewards: vec![failed] }).await.unwrap();
    }
    assert_eq!(gateway.plans.open_plans()[0].judged, 2);

    let mut pieces = pieces(client.seal_plan(proto::PlanId { plan: 0 }).await.unwrap()).await.into_iter();
    let mut reader = BatchReader::begin(pieces.next().unwrap()).unwrap();
    pieces.for_each(|piece| reader.push(piece).unwrap());
    let batch = reader.into_batch().unwrap();
    assert_eq!(batch.rollouts().iter().map(|rollout| rollout.len()).collect::<Vec<_>>(), [3, 3]);

    let consumed = |kept| {
        let rollouts = (0..2).map(|index| proto::ConsumedRollout { rollout: id(index), tokens: 3, masked_in: kept });
        proto::Consumed { plan: 0, rollouts: rollouts.collect() }
    };
    let masked = client.report_consumed(consumed(0)).await.unwrap_err();
    assert_eq!(masked.code(), Code::FailedPrecondition);
    assert_eq!(masked.message(), "rollout p0.r0 has 3 sampled tokens, but the mask kept 0");
    client.report_consumed(consumed(3)).await.unwrap();
}

#[tokio::test]
async fn what_this_gateway_cannot_do_is_refused_by_name() {
    let mut client = client(&counting()).await;
    let next =
        client.next_batch(proto::NextBatchRequest { consumer: Some(proto::ConsumerId::default()) }).await.unwrap_err();
    assert!(next.message().contains("no prompts of its own"), "{next}");
    let beat = client.heartbeat(proto::ConsumerId { consumer: "a".into(), rank: 0, ranks: 1 }).await.unwrap_err();
    assert_eq!(beat.code(), Code::FailedPrecondition);
    let unknown = client.seal_plan(proto::PlanId { plan: 9 }).await.unwrap_err();
    assert_eq!((unknown.code(), unknown.message()), (Code::NotFound, "plan 9 is not open"));
    let weights = proto::PublishedWeights {
        version: Some(proto::WeightVersion { epoch: 0, step: 1 }),
        path: "/weights".into(),
        digest: Vec::new(),
    };
    let uncontrolled = client.synchronise(weights).await.unwrap_err();
    assert!(uncontrolled.message().contains("engine 0 has no control plane"), "{uncontrolled}");
}

fn asked(prompt: u32, resumed: &[u32], max_new_tokens: u32) -> SampleRequest {
    let limits = Limits { stop: vec![], max_new_tokens };
    let params = SamplingParams::new(1.0, Truncation::NONE, limits, 7).unwrap();
    let (id, prompt) = (RolloutId { plan: 77, index: 5 }, vec![TokenId(prompt)]);
    let resumed = resumed.iter().copied().map(TokenId).collect();
    SampleRequest { request: Request { id, group: 0, prompt, params }, resumed }
}

#[tokio::test]
async fn whoever_draws_from_a_sampler_draws_through_the_gateway() {
    let engine = Fake::counting();
    let gateway = Arc::new(gateway(vec![engine.clone()]));
    let sampler = SamplerClient::connect(&served(&gateway).await.to_string()).await.unwrap();
    let request = asked(1, &[40], 3);
    let deltas: Vec<Delta> = sampler.generate(vec![request.clone()]).await.unwrap().try_collect().await.unwrap();
    assert!(deltas.iter().all(|delta| delta.rollout == request.request.id));
    assert_eq!(deltas.iter().map(|delta| delta.start).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(deltas[1].finish, Some(FinishReason::Length));
    let sent = &engine.asked()[0].request;
    assert_eq!(sent.prompt, [TokenId(1), TokenId(40)]);
    assert_ne!(sent.params.seed(), request.request.params.seed());
    assert_eq!(gateway.counts.total_tokens(), 2);
    for wrong in [asked(1000, &[], 3), asked(1, &[40], 1)] {
        let refused = sampler.generate(vec![wrong]).await.map(drop);
        assert!(matches!(refused, Err(PortError::Refused(_))), "{refused:?}");
    }
}

/// A gateway speaks a dialect of texts as well; the suite asks it for what it knows.
#[tokio::test]
async fn the_suite_knows_a_gateway_by_its_url() {
    let address = served(&counting()).await;
    let sampler = Some(format!("http://{address}/"));
    let (patience, numeric) = (std::time::Duration::from_secs(10), NumericClass::F32);
    let target = target(&Outside { sampler, trainer: None, numeric, patience, seed: 1 }).await;
    let said = target.sampler.unwrap().capabilities();
    assert_eq!((said.vocabulary, said.profile.engine.as_str()), (1000, "fake"));
}
