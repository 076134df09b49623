//! What a trainer asks over gRPC, on the port that also speaks HTTP.

use super::{counting, send};
use crate::{
    serve::{Gateway, serve},
    wire::{
        batch::BatchReader,
        proto::{self, middleware_client::MiddlewareClient},
    },
};
use std::sync::Arc;
use tokio::net::TcpListener;
use tonic::{Code, Response, Streaming, transport::Channel};

pub(super) async fn client(gateway: &Arc<Gateway>) -> MiddlewareClient<Channel> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(gateway.clone(), listener, std::future::pending()));
    MiddlewareClient::connect(format!("http://{address}")).await.unwrap()
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
    let opened = client.open_plan(proto::OpenPlanRequest { groups: 1, answers: 2 }).await.unwrap().into_inner();
    assert_eq!((opened.plan, opened.rollouts.len()), (0, 2));
    let body = r#"{"prompt":[1],"n":2,"max_tokens":3,"return_token_ids":true}"#;
    send(&gateway, "/v1/completions", &[("x-rollout-id", "p0.r0,p0.r1")], body).await.ok();
    let reward = |index, reward| proto::RolloutReward { rollout: id(index), reward };
    client.reward(proto::Rewards { rewards: vec![reward(0, 1.0), reward(1, 0.0)] }).await.unwrap();

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
        digest: vec![0; 32],
    };
    let uncontrolled = client.synchronise(weights).await.unwrap_err();
    assert!(uncontrolled.message().contains("engine 0 has no control plane"), "{uncontrolled}");
}
