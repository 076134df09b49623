//! The pair through its ports.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

mod common;
mod pair;

use lockstep_core::delta::{Delta, FinishReason, KvHistory};
use lockstep_core::dlc::TailModel;
use lockstep_core::plan::Batch;
use lockstep_core::ports::{Control, PortError, ProbeLoss, PublishedWeights, Sampler, Scorer, Trainer};
use lockstep_core::sampling::Truncation;
use lockstep_core::score::{select, versions};
use lockstep_core::token::{RolloutId, TokenId};
use lockstep_core::version::{Digest, Evidence, WeightVersion};
use lockstep_engine::{SamplerPort, TrainerPort};
use pair::*;
use tempfile::tempdir;

/// Sampler, control, scorer, trainer and probe as trait objects: sample, score, step, publish, load.
#[test]
fn a_round_through_the_ports() {
    let folder = tempdir().unwrap();
    let trainer = trainer(true, folder.path());
    let sampler = sampler(&trainer, 6);
    let port = TrainerPort::new(trainer).unwrap();
    let (scorer, trainer): (&dyn Scorer, &dyn Trainer) = (&port, &port);
    let control: &dyn Control = &sampler;
    let mut rewards = Vec::new();
    for round in 0..3 {
        let scored = reward(sample(&sampler, plan(round, 5, &params(Truncation::NONE, 9))));
        rewards.push(scored.mean_reward());
        let drawn_at = versions(scored.batch()).unwrap();
        assert_eq!(drawn_at, [WeightVersion { epoch: 0, step: round }]);
        let scores = block_on(scorer.score(scored.batch(), drawn_at[0])).unwrap();
        let log_s = select(scored.batch(), &[scores]).unwrap();
        let report = block_on(trainer.step(&scored, &log_s, &dlc(TailModel::SamplerWeights))).unwrap();
        assert_eq!(report.terms.lag.max_abs, 0.0);
        assert!(report.terms.numeric.max_abs < 1e-4);
        let published = block_on(trainer.publish(report.after)).unwrap();
        assert!(published.path.ends_with(&format!("{}.safetensors", report.after)));
        let stamp = block_on(control.load_weights(&published)).unwrap();
        assert_eq!(stamp.version(), Some(report.after));
        assert_eq!(stamp.evidence(), &Evidence::Digest(published.digest.unwrap()));
        assert_eq!(block_on(control.version()).unwrap(), stamp);
        block_on(trainer.retain(&[report.after])).unwrap();
        assert_eq!(block_on(scorer.capabilities()).unwrap().live, [report.after]);
    }
    assert_eq!(block_on(trainer.version()).unwrap(), WeightVersion { epoch: 0, step: 3 });
    let probe = ProbeLoss {
        tokens: [1, 2, 3].map(TokenId).to_vec(),
        position: 2,
        support: [3, 4].map(TokenId).to_vec(),
        w: 1.0,
        c: vec![0.5, 0.5],
        temperature: 1.0,
    };
    let gradient = block_on(lockstep_core::ports::Probe::gradient(&port, &probe)).unwrap();
    assert!((gradient[0] + 0.5).abs() < 1e-12 && (gradient[1] - 0.5).abs() < 1e-12);
}

#[test]
fn weights_that_are_not_what_they_were_published_as_are_refused() {
    let folder = tempdir().unwrap();
    let mut trainer = trainer(true, folder.path());
    let sampler = sampler(&trainer, 6);
    train(&mut trainer, 1);
    let honest = trainer.publish(trainer.version()).unwrap();
    let lie = PublishedWeights { digest: Some(Digest([7; 32])), ..honest.clone() };
    let refused = block_on(sampler.load_weights(&lie)).unwrap_err();
    let (found, said) = (honest.digest.unwrap(), lie.digest.unwrap());
    let wanted = format!("{}: published as e0.s1 with digest {said}, holds {found}", honest.path);
    assert_eq!(refused, PortError::Refused(wanted));
    assert_eq!(block_on(Control::version(&sampler)).unwrap().version(), Some(FIRST));
    let gone = PublishedWeights { path: format!("{}.gone", honest.path), ..honest.clone() };
    assert!(matches!(block_on(sampler.load_weights(&gone)), Err(PortError::Failed(text)) if text.contains(".gone")));
    assert!(block_on(sampler.load_weights(&honest)).is_ok());
}

#[test]
fn deltas_come_every_32_tokens_and_at_the_end() {
    let folder = tempdir().unwrap();
    let trainer = trainer(true, folder.path());
    let sampler = sampler(&trainer, 6);
    let plan = plan(0, 2, &params(CUT, 50));
    let deltas = collect(block_on(sampler.generate(requests(&plan))).unwrap());
    let mut long = 0;
    for request in plan.requests() {
        let own: Vec<&Delta> = deltas.iter().filter(|delta| delta.rollout == request.id).collect();
        let lengths: Vec<usize> = own.iter().map(|delta| delta.behavior.len()).collect();
        assert!(lengths.iter().rev().skip(1).all(|length| *length == 32), "{lengths:?}");
        assert!(own.iter().rev().skip(1).all(|delta| delta.finish.is_none()));
        match own.last().unwrap().finish.unwrap() {
            FinishReason::Stop(token) => assert_eq!(token, TokenId(3)),
            FinishReason::Length => assert_eq!(lengths.iter().sum::<usize>(), 50),
            FinishReason::StopText => panic!("no text was asked for"),
        }
        long += usize::from(lengths.len() > 1);
    }
    assert!(long > 0);
    let capabilities = Sampler::capabilities(&sampler);
    assert_eq!((capabilities.vocabulary, capabilities.resumes), (40, true));
    assert_eq!(capabilities.profile.engine, "lockstep-qwen3");
    let order = lockstep_engine::generate::ORDER.map(str::to_owned);
    let named = capabilities.profile.filters.iter().map(|filter| match format!("{filter:?}").as_str() {
        "TopK" => "top_k".to_owned(),
        "TopP" => "top_p".to_owned(),
        "MinP" => "min_p".to_owned(),
        other => other.to_lowercase(),
    });
    assert_eq!(named.collect::<Vec<_>>(), order);
}

/// Answers far too long to end by themselves: the pause comes in their middle.
#[test]
fn a_pause_keeps_the_tokens_and_new_weights_go_on_from_them() {
    let folder = tempdir().unwrap();
    let config = lockstep_engine::Config { max_positions: 9000, ..common::config(true) };
    let model = |seed| {
        let weights = lockstep_engine::Weights::random(&config, seed, 0.1).unwrap();
        common::here(&lockstep_engine::Qwen3::new(config.clone(), weights).unwrap())
    };
    let sampler = SamplerPort::new(drawing(&model(1), FIRST).listing(6)).unwrap();
    let optimiser = lockstep_engine::Optimiser::new(model(2).weights(), rule(), 1.0);
    let other = lockstep_engine::Qwen3Trainer::new(model(2), optimiser, FIRST.next(), settings(folder.path()));
    let published = other.publish(FIRST.next()).unwrap();
    let limits = lockstep_core::sampling::Limits { stop: vec![], max_new_tokens: 8000 };
    let params = lockstep_core::sampling::SamplingParams::new(1.0, Truncation::NONE, limits, 1).unwrap();
    let plan = plan(0, 1, &params);
    let ids: Vec<RolloutId> = plan.requests().iter().map(|request| request.id).collect();
    let mut stream = block_on(sampler.generate(requests(&plan))).unwrap();
    let mut deltas = vec![next(&mut stream).unwrap().unwrap()];
    block_on(sampler.pause()).unwrap();
    let stamp = block_on(sampler.load_weights(&published)).unwrap();
    block_on(sampler.resume()).unwrap();
    while deltas.last().unwrap().stamp != stamp {
        deltas.push(next(&mut stream).unwrap().unwrap());
    }
    block_on(sampler.cancel(&ids)).unwrap();
    deltas.extend(collect(stream));
    for id in ids {
        let own: Vec<&Delta> = deltas.iter().filter(|delta| delta.rollout == id).collect();
        let (mut tokens, mut updated) = (0, false);
        for delta in &own {
            assert_eq!((delta.start as usize, delta.finish), (tokens, None));
            tokens += delta.behavior.len();
            let new = delta.stamp == stamp;
            assert!(new || (!updated && delta.stamp.version() == Some(FIRST)));
            assert_eq!(delta.kv, if new { KvHistory::Recomputed } else { KvHistory::Fresh });
            updated |= new;
        }
        assert!(updated && own[0].stamp.version() == Some(FIRST), "{id}");
    }
}

/// Paused before anything is drawn: the order of events is then certain.
#[test]
fn a_paused_sampler_draws_nothing_until_it_is_resumed() {
    let folder = tempdir().unwrap();
    let trainer = trainer(true, folder.path());
    let sampler = sampler(&trainer, 6);
    let plan = plan(0, 2, &params(CUT, 9));
    let alone = sample(&sampler, pair::plan(0, 2, &params(CUT, 9)));
    block_on(sampler.pause()).unwrap();
    let stream = block_on(sampler.generate(requests(&plan))).unwrap();
    let twice = block_on(sampler.generate(requests(&plan))).err();
    assert_eq!(twice, Some(PortError::Refused("rollout p0.r0 is being answered already".into())));
    let cancelled = RolloutId { plan: 0, index: 5 };
    block_on(sampler.cancel(&[cancelled])).unwrap();
    block_on(sampler.resume()).unwrap();
    let deltas = collect(stream);
    assert!(deltas.iter().all(|delta| delta.rollout != cancelled));
    let resumed = requests(&plan)[5].clone();
    let last = collect(block_on(sampler.generate(vec![resumed])).unwrap());
    // Another batch around an answer moves its logits by rounding, and its tokens not at all.
    let answers = |batch: &Batch| batch.rollouts().iter().map(|r| r.sampled().collect::<Vec<_>>()).collect::<Vec<_>>();
    assert_eq!(answers(&seal(plan, &[deltas, last].concat())), answers(&alone));
}

/// The call that drew it before is paused, and has not noticed.
#[test]
fn what_was_cancelled_is_asked_for_again_at_once() {
    let folder = tempdir().unwrap();
    let trainer = trainer(true, folder.path());
    let sampler = sampler(&trainer, 6);
    let plan = || pair::plan(0, 2, &params(CUT, 9));
    let alone = sample(&sampler, plan());
    block_on(sampler.pause()).unwrap();
    let before = block_on(sampler.generate(requests(&plan()))).unwrap();
    let ids: Vec<RolloutId> = plan().requests().iter().map(|request| request.id).collect();
    block_on(sampler.cancel(&ids[..3])).unwrap();
    let refused = block_on(sampler.generate(requests(&plan()))).err();
    assert_eq!(refused, Some(PortError::Refused("rollout p0.r3 is being answered already".into())));
    block_on(sampler.cancel(&ids)).unwrap();
    let again = block_on(sampler.generate(requests(&plan()))).unwrap();
    block_on(sampler.resume()).unwrap();
    assert_eq!(collect(before), []);
    assert_eq!(seal(plan(), &collect(again)), alone);
}

/// An answer that another engine began, and one that is complete already.
#[test]
fn answers_are_resumed_from_given_tokens() {
    let folder = tempdir().unwrap();
    let trainer = trainer(true, folder.path());
    let sampler = sampler(&trainer, 6);
    let plan = plan(0, 2, &params(CUT, 9));
    let whole = sample(&sampler, pair::plan(0, 2, &params(CUT, 9)));
    let mut requests = requests(&plan);
    for (request, rollout) in requests.iter_mut().zip(whole.rollouts()) {
        request.resumed = rollout.sampled().take(2).collect();
    }
    requests[7].resumed = whole.rollouts()[7].sampled().collect();
    let deltas = collect(block_on(sampler.generate(requests.clone())).unwrap());
    for (request, rollout) in requests.iter().zip(whole.rollouts()) {
        let own: Vec<&Delta> = deltas.iter().filter(|delta| delta.rollout == request.request.id).collect();
        assert_eq!(own[0].start as usize, request.resumed.len());
        assert_eq!(own[own.len() - 1].finish, Some(rollout.finish()));
        let tokens = own.iter().flat_map(|delta| delta.behavior.tokens());
        assert_eq!(
            request.resumed.iter().chain(tokens).copied().collect::<Vec<_>>(),
            rollout.sampled().collect::<Vec<_>>()
        );
    }
}

#[test]
fn a_bad_request_fails_its_call_and_the_next_call_works() {
    let folder = tempdir().unwrap();
    let trainer = trainer(true, folder.path());
    let sampler = SamplerPort::new(drawing(trainer.model(), FIRST)).unwrap();
    let long = plan(0, 1, &params(CUT, 200));
    let mut stream = block_on(sampler.generate(requests(&long))).unwrap();
    let refused = next(&mut stream).unwrap().unwrap_err();
    assert!(
        matches!(&refused, PortError::Refused(text) if text.contains("beyond max_position_embeddings 64")),
        "{refused}"
    );
    assert!(next(&mut stream).is_none());
    let listener = block_on(sampler.generate(requests(&plan(0, 1, &params(CUT, 40))))).unwrap();
    drop(listener);
    assert_eq!(sample(&sampler, plan(1, 2, &params(CUT, 9))).rollouts().len(), 8);
    drop(TrainerPort::new(trainer).unwrap());
}
