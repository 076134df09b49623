//! What every test of the ledger shares: a profile, a delta, one record of each kind, a ledger that has them.

mod crash;
mod damage;
mod exporting;
mod mirror;
mod shared;
mod simulated;
mod size;
mod storing;

use super::*;
use lockstep_core::{
    BehaviorDistribution, Delta, Evidence, FinishReason, RolloutId, SamplerProfile, SamplingParams, Stamp, Support,
    TokenId, WeightVersion,
    delta::KvHistory,
    ports::PublishedWeights,
    profile::{Dtypes, FilterName, LogProbMeaning, TieRule},
    rollout::Request,
    sampling::{Limits, Truncation},
    support::{Domain, Reported, Sampled},
    version::Digest,
};
use std::{path::PathBuf, sync::Arc};

fn profile() -> Arc<SamplerProfile> {
    let dtype = || "f32".to_owned();
    Arc::new(SamplerProfile {
        engine: "test".into(),
        version: "1".into(),
        filters: vec![FilterName::Temperature, FilterName::TopP],
        ties: TieRule::LowerId,
        log_probs: LogProbMeaning::Drawn,
        dtypes: Dtypes { weights: dtype(), activations: dtype(), kv_cache: dtype(), head: dtype() },
    })
}

fn version() -> WeightVersion {
    WeightVersion { epoch: 1, step: 7 }
}

fn delta(index: u32) -> Delta {
    let mut behavior = BehaviorDistribution::default();
    behavior.push(&Support::singleton(TokenId(4)));
    let (ids, halves) = (vec![TokenId(3), TokenId(9)], vec![0.5f64.ln(); 2]);
    behavior.push(&Support::exact(TokenId(9), ids.clone(), halves).unwrap());
    let log_q = vec![0.5f64.ln(), 0.25f64.ln()];
    let reported = Reported { ids, log_q, log_rest: Some(0.25f64.ln()), domain: Domain::Vocabulary(50) };
    behavior.push(&Support::new(Sampled { token: TokenId(30), log_q: 0.125f64.ln() }, reported).unwrap());
    Delta {
        rollout: RolloutId { plan: 2, index },
        start: 0,
        behavior,
        stamp: Stamp::declared(version(), Evidence::Digest(Digest([7; 32]))).unwrap(),
        kv: KvHistory::Fresh,
        profile: profile(),
        finish: Some(FinishReason::Stop(TokenId(30))),
    }
}

fn records() -> Vec<Record> {
    let limits = Limits { stop: vec![TokenId(30)], max_new_tokens: 8 };
    let params = SamplingParams::new(0.8, Truncation { top_k: 0, top_p: 0.95, min_p: 0.0 }, limits, 5).unwrap();
    let id = RolloutId { plan: 2, index: 0 };
    let request = Request { id, group: 0, prompt: vec![TokenId(1), TokenId(2)], params };
    let weights = PublishedWeights { version: version(), path: "w".into(), digest: Some(Digest([7; 32])) };
    vec![
        Record::PlanOpened { plan: 2, requests: vec![request] },
        Record::Profile((*profile()).clone()),
        Record::Delta(DeltaRecord::new(&delta(0), 0)),
        Record::PlanSealed { plan: 2 },
        Record::Reward { rollout: id, reward: 0.25 },
        Record::Consumed { plan: 2, rollouts: vec![id], before: version(), after: version().next() },
        Record::Resync(ResyncRecord { weights, stamp: Stamp::undeclared() }),
    ]
}

fn written() -> (tempfile::TempDir, PathBuf, Vec<Record>) {
    let directory = tempfile::tempdir().unwrap();
    let (mut ledger, empty) = Ledger::open(directory.path()).unwrap();
    assert!(empty.is_empty());
    records().iter().for_each(|record| ledger.append(record).unwrap());
    ledger.sync().unwrap();
    let path = ledger.path().to_owned();
    (directory, path, records())
}

/// Where the frames of a file begin.
fn frames_of(bytes: &[u8]) -> Vec<usize> {
    let mut at = 0;
    std::iter::from_fn(|| {
        let frame = frame::read(bytes.get(at..).filter(|rest| !rest.is_empty())?).unwrap();
        at += frame.size;
        Some(at - frame.size)
    })
    .collect()
}
