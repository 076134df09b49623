//! Requests, deltas and answers for tests.

use lockstep_core::{
    BehaviorDistribution, Delta, FinishReason, RolloutId, SamplerProfile, SamplingParams, Stamp, Support, TokenId,
    WeightVersion,
    delta::KvHistory,
    profile::{Dtypes, FilterName, LogProbMeaning, TieRule},
    rollout::Request,
    sampling::{Limits, Truncation},
    version::Evidence,
};
use std::sync::Arc;

pub(crate) fn profile() -> Arc<SamplerProfile> {
    let dtype = || "f32".to_owned();
    Arc::new(SamplerProfile {
        engine: "test".into(),
        version: "1".into(),
        filters: vec![FilterName::Temperature],
        ties: TieRule::LowerId,
        log_probs: LogProbMeaning::Drawn,
        dtypes: Dtypes { weights: dtype(), activations: dtype(), kv_cache: dtype(), head: dtype() },
    })
}

pub(crate) fn params() -> SamplingParams {
    SamplingParams::new(1.0, Truncation::NONE, Limits { stop: vec![], max_new_tokens: 4096 }, 1).unwrap()
}

pub(crate) fn request(plan: u64, index: u32, group: u32) -> Request {
    let prompt = vec![TokenId(1 + group)];
    Request { id: RolloutId { plan, index }, group, prompt, params: params() }
}

/// `tokens` tokens from `start`, drawn by the weights of step `step`; the last of them ends the answer where `ends` says so.
pub(crate) fn delta(rollout: RolloutId, (start, tokens): (u32, u32), step: u64, ends: bool) -> Delta {
    let mut behavior = BehaviorDistribution::default();
    (0..tokens).for_each(|at| behavior.push(&Support::singleton(TokenId(7 + (start + at) % 5))));
    let version = WeightVersion { epoch: 0, step };
    Delta {
        rollout,
        start,
        behavior,
        stamp: Stamp::declared(version, Evidence::Label(version.to_string())).unwrap(),
        kv: KvHistory::Fresh,
        profile: profile(),
        finish: ends.then_some(FinishReason::Length),
    }
}
