//! Batches that the gateway makes of prompts, and trainers ask for.

use super::{
    engine::{Act, Fake},
    gateway_with, get,
    grpc::{client, pieces},
    send,
};
use crate::{
    ledger::{self, Record},
    serve::{
        Gateway, Options,
        prompts::Prompts,
        pull::{self, Judging, Pull},
        restore,
    },
    wire::proto::{self, batch_piece::Piece},
};
use lockstep_core::{
    SamplingParams, TokenId,
    dispatch::{Mode, Rules},
    ports::PortError,
    sampling::{Limits, Truncation},
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

fn options() -> Options {
    let rules = Rules { max_open_plans: 2, mode: Mode::Strict, ..Options::default().rules };
    Options { rules, ..Options::default() }
}

/// Two prompts with two answers each, for two plans, in a ledger.
fn pulling(engine: Fake, options: Options, directory: &Path) -> Arc<Gateway> {
    let file = directory.join("prompts.jsonl");
    std::fs::write(&file, "{\"token_ids\":[1]}\n{\"token_ids\":[2]}\n{\"token_ids\":[3]}\n").unwrap();
    let limits = Limits { stop: vec![], max_new_tokens: 3 };
    let pull = Arc::new(Pull {
        prompts: Prompts::load(&file, 0, None, 1000).unwrap(),
        groups: 2,
        answers: 2,
        params: SamplingParams::new(1.0, Truncation::NONE, limits, 0).unwrap(),
        plans: Some(2),
        pause: Duration::ZERO,
    });
    let found = restore(&directory.join("ledger"), &options).unwrap();
    let gateway = gateway_with(vec![engine], options).capturing(found.capture, found.plans, found.loose);
    let gateway = Arc::new(gateway.pulling(pull.clone()));
    tokio::spawn(pull::feed(gateway.clone(), pull));
    gateway
}

fn asks(rank: u32, ranks: u32) -> proto::NextBatchRequest {
    proto::NextBatchRequest { consumer: Some(proto::ConsumerId { consumer: format!("rank {rank}"), rank, ranks }) }
}

async fn judge(gateway: &Arc<Gateway>, plan: u64) -> Vec<Value> {
    let sealed = send(gateway, &format!("/v1/plans/{plan}/seal"), &[], "").await.text();
    let lines: Vec<Value> = sealed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (line, reward) in lines.iter().zip(0..) {
        let path = format!("/v1/rollouts/{}/reward", line["rollout_id"].as_str().unwrap());
        send(gateway, &path, &[], &json!({"reward": reward}).to_string()).await.ok();
    }
    lines
}

fn consumed(plan: u64, indices: std::ops::Range<u32>) -> proto::Consumed {
    let rollouts = indices.map(|index| {
        let rollout = Some(proto::RolloutId { plan, index });
        proto::ConsumedRollout { rollout, tokens: 3, masked_in: 3 }
    });
    proto::Consumed { plan, rollouts: rollouts.collect() }
}

fn rewards(pieces: &[proto::BatchPiece]) -> Vec<f64> {
    let reward = |piece: &proto::BatchPiece| match piece.piece {
        Some(Piece::Reward(reward)) => Some(reward),
        _ => None,
    };
    pieces.iter().filter_map(reward).collect()
}

#[tokio::test]
async fn two_ranks_pull_every_plan_in_its_order_and_are_told_when_there_is_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Fake::counting();
    let gateway = pulling(engine.clone(), options(), directory.path());
    let mut client = client(&gateway).await;
    let said = client.describe(proto::Empty {}).await.unwrap().into_inner();
    assert_eq!((said.pull, said.lease_seconds), (true, 60));
    for plan in 0..2 {
        let lines = judge(&gateway, plan).await;
        assert_eq!((lines.len(), &lines[0]["token_ids"]), (4, &json!([10, 11, 12])));
        assert_eq!(lines[0]["prompt_line"], lines[0]["prompt_token_ids"][0], "the line its prompt is from");
        for rank in 0..2 {
            let part = pieces(client.next_batch(asks(rank, 2)).await.unwrap()).await;
            let first = f64::from(2 * rank);
            assert_eq!(rewards(&part), [first, first + 1.0]);
            client.report_consumed(consumed(plan, 2 * rank..2 * rank + 2)).await.unwrap();
        }
    }
    assert!(pieces(client.next_batch(asks(1, 2)).await.unwrap()).await.is_empty());
    let driven = client.open_plan(proto::OpenPlanRequest { groups: 1, answers: 1, plan: None }).await.unwrap_err();
    assert!(driven.message().contains("opens its plans itself"), "{driven}");
    let seeds: BTreeSet<u64> = engine.asked().iter().map(|asked| asked.request.params.seed()).collect();
    assert_eq!(seeds.len(), 8, "every answer has a seed of its own");
    let prompts: Vec<TokenId> = engine.asked().iter().map(|asked| asked.request.prompt[0]).collect();
    assert_eq!(prompts.iter().collect::<BTreeSet<_>>().len(), 3);
    let open = get(&gateway, "/v1/plans").await.ok();
    assert_eq!(open, json!({"plans": []}));
}

#[tokio::test]
async fn a_reward_that_does_not_come_in_time_is_an_outcome() {
    let directory = tempfile::tempdir().unwrap();
    let judging = Judging { limit: Duration::ZERO, counts_as: -0.5, ..Judging::default() };
    let gateway = pulling(Fake::counting(), Options { judging, ..options() }, directory.path());
    let mut client = client(&gateway).await;
    let batch = pieces(client.next_batch(asks(0, 1)).await.unwrap()).await;
    assert_eq!(rewards(&batch), [-0.5; 4]);
    let records = ledger::read(&directory.path().join("ledger")).unwrap();
    let failed = records.iter().filter_map(|record| match record {
        Record::RewardFailed { rollout, reason, .. } if rollout.plan == 0 => Some(reason.as_str()),
        _ => None,
    });
    assert_eq!(failed.collect::<Vec<_>>(), ["no reward within 0 seconds of the last answer of its plan"; 4]);
}

#[tokio::test]
async fn an_answer_that_breaks_off_goes_on_and_too_often_is_told_to_the_trainer() {
    let directory = tempfile::tempdir().unwrap();
    let gone = || Act::Fail(PortError::Failed("power cut".into()));
    let engine = Fake::new(move |call, _| if call < 4 { vec![Act::Draw(1, 0), gone()] } else { vec![Act::Rest] });
    let gateway = pulling(engine.clone(), options(), directory.path());
    let lines = judge(&gateway, 0).await;
    assert_eq!(lines[3]["token_ids"], json!([10, 11, 12]));
    assert!(engine.asked().iter().any(|asked| asked.resumed == [TokenId(10)]), "it went on from its first token");

    let directory = tempfile::tempdir().unwrap();
    let dead = Fake::new(move |_, _| vec![gone()]);
    let gateway = pulling(dead, options(), directory.path());
    let refused = client(&gateway).await.next_batch(asks(0, 1)).await.unwrap_err();
    assert!(refused.message().contains("was broken off 9 times, 8 are allowed"), "{refused}");
}
