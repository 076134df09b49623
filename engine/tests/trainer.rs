//! The trainer: its gradient is that of plain automatic differentiation, equal versions have a lag of exactly 0, and what
//! it refuses changes nothing.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

mod common;
mod pair;

use lockstep_core::dlc::{Rule, TailModel};
use lockstep_core::plan::Batch;
use lockstep_core::ports::{ProbeLoss, StepOptions};
use lockstep_core::reward::RewardBook;
use lockstep_core::sampling::Truncation;
use lockstep_core::token::TokenId;
use lockstep_core::version::{Stamp, WeightVersion};
use lockstep_engine::trainer::Settings;
use lockstep_engine::{Pass, Qwen3Trainer, TrainError};
use pair::*;
use tempfile::tempdir;

const EVERY: [Truncation; 2] = [CUT, Truncation::NONE];

#[test]
fn scores_equal_a_plain_softmax_on_the_published_file() {
    let folder = tempdir().unwrap();
    for (tied, truncation) in [(true, CUT), (false, CUT), (true, Truncation::NONE)] {
        let mut trainer = trainer(tied, folder.path());
        let batch = sample(&sampler(&trainer, 6), plan(0, 5, &params(truncation, 9)));
        train(&mut trainer, 2);
        let model = load(&trainer.publish(trainer.version()).unwrap().path, tied);
        let scores = trainer.score(&batch, trainer.version()).unwrap();
        let mut seen = 0;
        for (rollout, scores) in batch.rollouts().iter().zip(&scores.rollouts) {
            let row: Vec<u32> = rollout.prompt().iter().copied().chain(rollout.sampled()).map(|id| id.0).collect();
            let logits = model.logits(&model.hidden_packed(&[&row], Pass::Score).unwrap()).unwrap();
            let logits = logits.to_vec2::<f32>().unwrap();
            let behavior = &rollout.segments()[0].behavior;
            scores[0].check(behavior).unwrap();
            for (position, support) in behavior.rows().enumerate() {
                let logits = &logits[rollout.prompt().len() - 1 + position];
                let z = |id: &TokenId| f64::from(logits[id.0 as usize]) / 0.8;
                let all: Vec<TokenId> = (0..40).map(TokenId).collect();
                let domain = if support.is_exact() { support.ids() } else { &all };
                let total = domain.iter().map(|id| z(id).exp()).sum::<f64>().ln();
                let row = scores[0].row(behavior, position);
                for (id, log_p) in support.ids().iter().zip(&row.log_p) {
                    assert!((log_p - (z(id) - total)).abs() <= 1e-5, "{position}: {log_p}");
                    seen += 1;
                }
                assert!((row.log_p_sampled - (z(&support.sampled().token) - total)).abs() <= 1e-5);
                assert_eq!(row.log_rest.is_some(), !support.is_exact());
                let rest = all.iter().filter(|id| !support.ids().contains(id)).map(|id| (z(id) - total).exp());
                let rest = row.log_rest.map_or(0.0, |log_rest| log_rest - rest.sum::<f64>().ln());
                assert!(rest.abs() <= 1e-5);
            }
        }
        assert!(seen > 200);
    }
}

#[test]
fn lag_is_exactly_zero_at_equal_versions_and_not_after_an_update() {
    let folder = tempdir().unwrap();
    for truncation in EVERY {
        let mut trainer = trainer(true, folder.path());
        let scored = reward(sample(&sampler(&trainer, 6), plan(0, 5, &params(truncation, 9))));
        let log_s = log_s(&trainer, scored.batch());
        for tail in [TailModel::SamplerWeights, TailModel::Collapsed] {
            let mut fresh = Qwen3Trainer::new(
                copy(trainer.model()),
                trainer.optimiser().copy().unwrap(),
                FIRST,
                settings(folder.path()),
            );
            let report = fresh.step(&scored, &log_s, &dlc(tail)).unwrap();
            let lag = report.terms.lag;
            assert_eq!((lag.mean, lag.k3, lag.max_abs, lag.kl), (0.0, 0.0, 0.0, 0.0));
            assert_eq!(report.ess_at(FIRST).map(|ess| (ess.token, ess.sequence, ess.horizon)), Some((1.0, 1.0, 1.0)));
        }
        let first = trainer.step(&scored, &log_s, &dlc(TailModel::SamplerWeights)).unwrap();
        assert_eq!((first.before, first.after), (FIRST, FIRST.next()));
        assert!(first.terms.numeric.max_abs < 1e-4 && first.terms.numeric.max_abs > 0.0, "{:?}", first.terms.numeric);
        assert!(first.loss.is_finite() && first.gradient_norm > 0.0);
        let second = trainer.step(&scored, &log_s, &dlc(TailModel::SamplerWeights)).unwrap();
        assert!(second.terms.lag.max_abs > 1e-3 && second.terms.lag.kl > 0.0);
        let ess = second.ess_at(FIRST).unwrap();
        assert!(ess.sequence < 1.0 && ess.sequences == 20 && ess.tokens == scored.batch().tokens());
        assert_eq!(second.terms.tokens, scored.batch().tokens());
    }
}

#[test]
fn an_old_version_scores_the_same_bits_after_steps_until_it_is_dropped() {
    let folder = tempdir().unwrap();
    let mut trainer = trainer(false, folder.path());
    let batch = sample(&sampler(&trainer, 6), plan(0, 5, &params(Truncation::NONE, 9)));
    let before = trainer.score(&batch, FIRST).unwrap();
    train(&mut trainer, 3);
    assert_eq!(trainer.score(&batch, FIRST).unwrap(), before);
    let now = trainer.version();
    assert_ne!(trainer.score(&batch, now).unwrap().rollouts, before.rollouts);
    assert_eq!(trainer.live().len(), 4);
    trainer.retain(&[now]);
    let gone = trainer.score(&batch, FIRST).unwrap_err().to_string();
    assert_eq!(gone, "version e0.s0 is not live; live are e0.s3");
}

#[test]
fn equal_batches_give_equal_bits() {
    let folder = tempdir().unwrap();
    let run = || {
        let mut trainer = trainer(true, folder.path());
        train(&mut trainer, 3);
        let scored = reward(sample(&sampler(&trainer, 6), plan(1, 4, &params(Truncation::NONE, 8))));
        let log_s = log_s(&trainer, scored.batch());
        let report = trainer.step(&scored, &log_s, &dlc(TailModel::SamplerWeights)).unwrap();
        (bits(trainer.model().weights()), report)
    };
    assert_eq!(run(), run());
}

/// Passes run side by side or one after the other; their sums are taken in the same order.
#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let folder = tempdir().unwrap();
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut trainer = trainer(false, folder.path());
            train(&mut trainer, 2);
            let scored = reward(sample(&sampler(&trainer, 6), plan(1, 5, &params(Truncation::NONE, 8))));
            let log_s = log_s(&trainer, scored.batch());
            let report = trainer.step(&scored, &log_s, &dlc(TailModel::SamplerWeights)).unwrap();
            (bits(trainer.model().weights()), report, log_s)
        })
    };
    assert_eq!(run(1), run(3));
}

/// How the batch is cut into passes and chunks is a question of memory: the gradient moves by rounding alone.
#[test]
fn passes_and_chunks_do_not_change_the_gradient() {
    let folder = tempdir().unwrap();
    for truncation in EVERY {
        let small = trainer(true, folder.path());
        let whole = Settings::new(folder.path());
        let whole = Qwen3Trainer::new(copy(small.model()), small.optimiser().copy().unwrap(), FIRST, whole);
        let scored = reward(sample(&sampler(&small, 6), plan(0, 5, &params(truncation, 9))));
        let gradient = |trainer: &Qwen3Trainer| {
            let log_s = log_s(trainer, scored.batch());
            trainer.gradient_of(&scored, &log_s, &dlc(TailModel::SamplerWeights)).unwrap()
        };
        let ((a_loss, a), (b_loss, b)) = (gradient(&small), gradient(&whole));
        assert!((a_loss - b_loss).abs() < 1e-6);
        for (name, _) in small.model().weights().iter() {
            let [a, b] = [&a, &b].map(|gradients| values(gradients, name));
            assert!(common::worst(&a, &b) <= 1e-5 * common::largest(&a), "{name}");
        }
    }
}

#[test]
fn answers_of_several_versions_are_scored_by_segment_and_stand_in_no_ess() {
    let folder = tempdir().unwrap();
    let mut trainer = trainer(true, folder.path());
    let old = sampler(&trainer, 6);
    let plan = plan(0, 3, &params(Truncation::NONE, 9));
    let mut requests = requests(&plan);
    let mut deltas = collect(block_on(lockstep_core::ports::Sampler::generate(&old, requests.clone())).unwrap());
    train(&mut trainer, 2);
    let new = sampler(&trainer, 6);
    // The first answer stops after its fourth token and goes on under newer weights, the last is drawn by them alone.
    let mut first = deltas[deltas.iter().position(|delta| delta.rollout == requests[0].request.id).unwrap()].clone();
    first.behavior = first.behavior.slice(0..2);
    first.finish = None;
    requests[0].resumed = first.behavior.tokens().to_vec();
    let last = requests.len() - 1;
    let again = [requests[0].clone(), requests[last].clone()];
    deltas.retain(|delta| again.iter().all(|request| delta.rollout != request.request.id));
    deltas.push(first);
    deltas.extend(collect(block_on(lockstep_core::ports::Sampler::generate(&new, again.to_vec())).unwrap()));
    let scored = reward(seal(plan, &deltas));
    let now = trainer.version();
    let segments = scored.batch().rollouts()[0].segments();
    assert_eq!(segments.iter().map(|s| s.stamp.version().unwrap()).collect::<Vec<_>>(), [FIRST, now]);
    let log_s = log_s(&trainer, scored.batch());
    assert_eq!(log_s[0][1], trainer.score(scored.batch(), now).unwrap().rollouts[0][1]);
    let report = trainer.step(&scored, &log_s, &dlc(TailModel::SamplerWeights)).unwrap();
    let sequences: Vec<_> = report.ess.iter().map(|(version, ess)| (*version, ess.sequences)).collect();
    assert_eq!(sequences, [(FIRST, 10), (now, 1)]);
    assert_eq!(report.ess_at(now).unwrap().sequence, 1.0);
    assert!(report.ess_at(FIRST).unwrap().sequence < 1.0);
    assert!(report.terms.numeric.max_abs < 1e-4);
}

/// Without a tail model the rule needs no snapshot, with one it does.
#[test]
fn a_tail_on_p_s_needs_the_weights_that_drew_it() {
    let folder = tempdir().unwrap();
    let mut trainer = trainer(true, folder.path());
    let scored = reward(sample(&sampler(&trainer, 6), plan(0, 3, &params(Truncation::NONE, 9))));
    let log_s = log_s(&trainer, scored.batch());
    train(&mut trainer, 1);
    trainer.retain(&[]);
    let refused = trainer.step(&scored, &log_s, &dlc(TailModel::SamplerWeights)).unwrap_err();
    assert_eq!(refused.to_string(), "version e0.s0 is not live; live are e0.s1");
    assert!(trainer.step(&scored, &log_s, &dlc(TailModel::Collapsed)).is_ok());
}

fn with_stamp(batch: &Batch, stamp: &Stamp) -> Batch {
    let plan = plan(0, 2, &params(CUT, 6));
    let deltas: Vec<_> = batch
        .rollouts()
        .iter()
        .map(|rollout| lockstep_core::delta::Delta {
            rollout: rollout.id(),
            start: 0,
            behavior: rollout.segments()[0].behavior.clone(),
            stamp: stamp.clone(),
            kv: rollout.segments()[0].kv,
            profile: rollout.segments()[0].profile.clone(),
            finish: Some(rollout.finish()),
        })
        .collect();
    seal(plan, &deltas)
}

#[test]
fn refusals_name_their_numbers_and_change_nothing() {
    let folder = tempdir().unwrap();
    let mut trainer = trainer(true, folder.path());
    let batch = sample(&sampler(&trainer, 6), plan(0, 2, &params(CUT, 6)));
    let log_s = log_s(&trainer, &batch);
    let before =
        (bits(trainer.model().weights()), trainer.optimiser().copy().unwrap(), trainer.version(), trainer.live());
    let options = dlc(TailModel::SamplerWeights);
    let mut messages = Vec::new();
    let other = WeightVersion { epoch: 3, step: 9 };
    messages.push(trainer.score(&batch, other).unwrap_err().to_string());
    messages.push(trainer.publish(other).unwrap_err().to_string());
    let undeclared = reward(with_stamp(&batch, &Stamp::undeclared()));
    messages.push(trainer.step(&undeclared, &log_s, &options).unwrap_err().to_string());
    let scored = reward(batch.clone());
    messages.push(trainer.step(&scored, &log_s[1..], &options).unwrap_err().to_string());
    let mut short = log_s.clone();
    short[1][0].log_p_sampled.pop();
    messages.push(trainer.step(&scored, &short, &options).unwrap_err().to_string());
    let mut book = RewardBook::default();
    batch.rollouts().iter().for_each(|rollout| book.post(rollout.id(), f64::MAX).unwrap());
    let infinite = batch.clone().with_rewards(&mut book).unwrap();
    messages.push(trainer.step(&infinite, &log_s, &options).unwrap_err().to_string());
    let mut wild = log_s.clone();
    wild[0][0].log_p.fill(f32::NEG_INFINITY);
    messages.push(trainer.step(&scored, &wild, &options).unwrap_err().to_string());
    let tokens = log_s[1][0].log_p_sampled.len();
    let wanted = [
        "version e3.s9 is not live; live are e0.s0".to_owned(),
        "version e3.s9 is not live; live are e0.s0".to_owned(),
        "rollout p0.r0, segment 0: its weight version is undeclared, so p_s is not defined".to_owned(),
        "7 rollouts are scored, the batch has 8".to_owned(),
        format!(
            "rollout p0.r1, segment 0: scores have {} values in log_p_sampled, the behaviour needs {tokens}",
            tokens - 1
        ),
        "advantage -inf of rollout p0.r0 is not a finite number".to_owned(),
    ];
    assert_eq!(messages[..6], wanted);
    assert!(messages[6].starts_with("rollout p0.r0, segment 0, position "), "{}", messages[6]);
    assert!(messages[6].ends_with("their ratio is not finite"), "{}", messages[6]);
    let after =
        (bits(trainer.model().weights()), trainer.optimiser().copy().unwrap(), trainer.version(), trainer.live());
    assert_eq!(before, after);
}

/// A gradient of f32's largest numbers squared has no finite norm.
#[test]
fn a_gradient_without_a_norm_changes_nothing() {
    let folder = tempdir().unwrap();
    let mut trainer = trainer(true, folder.path());
    let batch = sample(&sampler(&trainer, 6), plan(0, 2, &params(CUT, 6)));
    let log_s = log_s(&trainer, &batch);
    let mut book = RewardBook::default();
    for (rollout, sign) in batch.rollouts().iter().zip([1.0, -1.0].into_iter().cycle()) {
        book.post(rollout.id(), sign * 1e300).unwrap();
    }
    let huge = batch.with_rewards(&mut book).unwrap();
    let before = (bits(trainer.model().weights()), trainer.optimiser().copy().unwrap(), trainer.version());
    let refused = trainer.step(&huge, &log_s, &StepOptions { rule: Rule::Uncorrected, horizon: 24 }).unwrap_err();
    assert!(matches!(refused, TrainError::Gradient { .. }), "{refused}");
    assert_eq!(before, (bits(trainer.model().weights()), trainer.optimiser().copy().unwrap(), trainer.version()));
}

#[test]
fn a_restored_trainer_goes_on_with_the_same_bits_in_a_new_epoch() {
    let folder = tempdir().unwrap();
    let (published, saved) = (folder.path().join("published"), folder.path().join("saved"));
    let mut whole = trainer(false, &published);
    train(&mut whole, 2);
    whole.save(&saved).unwrap();
    train(&mut whole, 2);
    for epoch in [1, 2] {
        let mut restored = restore(&saved, &published).unwrap();
        assert_eq!(restored.version(), WeightVersion { epoch, step: 2 });
        train(&mut restored, 2);
        assert_eq!(bits(restored.model().weights()), bits(whole.model().weights()));
        assert_eq!(restored.optimiser(), whole.optimiser());
    }
    whole.model().weights().save(&saved.join("model.safetensors")).unwrap();
    let mixed = restore(&saved, &published).unwrap_err().to_string();
    assert!(
        mixed.contains("trainer.json: it names weights ") && mixed.contains(" model.safetensors holds "),
        "{mixed}"
    );
}

/// Unweighted centring over the whole support: `dloss/dz = -(e_a - q) / T` whatever p is.
#[test]
fn a_probe_answers_with_the_gradient_of_its_position() {
    let folder = tempdir().unwrap();
    let trainer = trainer(true, folder.path());
    let support: Vec<TokenId> = [4, 9, 30, 17].map(TokenId).to_vec();
    let q = [0.4, 0.3, 0.2, 0.1];
    let tokens = [1, 5, 7, 30, 2].map(TokenId).to_vec();
    let probe = ProbeLoss { tokens, position: 3, support, w: 1.0, c: q.to_vec(), temperature: 0.8 };
    let gradient = trainer.gradient(&probe).unwrap();
    for ((at, gradient), q) in gradient.iter().enumerate().zip(q) {
        let own = if at == 2 { 1.0 } else { 0.0 };
        assert!((gradient + (own - q) / 0.8).abs() < 1e-12);
    }
    let plain = ProbeLoss { c: vec![0.0; 4], ..probe.clone() };
    assert!(trainer.gradient(&plain).unwrap().iter().sum::<f64>().abs() < 1e-12);
    let refused = |probe: ProbeLoss| trainer.gradient(&probe).unwrap_err().to_string();
    assert_eq!(
        refused(ProbeLoss { position: 0, ..probe.clone() }),
        "probe, position 0: nothing stands before the token"
    );
    let outside = refused(ProbeLoss { position: 4, ..probe.clone() });
    assert_eq!(outside, "probe, position 4: token 2 is outside its support (4 ids)");
    assert_eq!(
        refused(ProbeLoss { c: vec![0.0], ..probe }),
        "1 coefficients are scored, the support of the probe has 4"
    );
}
