//! Steps under every correction by name: identities that hold whatever the batch, and samplers of every precision.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

mod common;
mod pair;

use lockstep_core::dlc::{LagClip, Rule, TailModel};
use lockstep_core::ports::StepOptions;
use lockstep_core::reward::ScoredBatch;
use lockstep_core::rivals::{Method, Reduction};
use lockstep_core::sampling::Truncation;
use lockstep_engine::optimiser::Gradients;
use lockstep_engine::{Numerics, Qwen3Trainer, SamplerPort};
use pair::*;
use tempfile::tempdir;

const HEAD: &str = "model.norm.weight";

fn coarse(trainer: &Qwen3Trainer, numerics: Numerics) -> SamplerPort {
    SamplerPort::new(drawing(trainer.model(), trainer.version()).with_numerics(numerics).unwrap()).unwrap()
}

fn batch(sampler: &SamplerPort) -> ScoredBatch {
    reward(sample(sampler, plan(0, 5, &params(Truncation::NONE, 9))))
}

fn gradient(trainer: &Qwen3Trainer, scored: &ScoredBatch, rule: Rule) -> Gradients {
    let log_s = log_s(trainer, scored.batch());
    trainer.gradient_of(scored, &log_s, &StepOptions { rule, horizon: 24 }).unwrap().1
}

/// Largest difference relative to the largest entry.
fn apart(a: &Gradients, b: &Gradients) -> f32 {
    let [a, b] = [a, b].map(|gradients| values(gradients, HEAD));
    common::worst(&a, &b) / common::largest(&a)
}

#[test]
fn with_a_fresh_sampler_ppo_on_p_s_is_none_and_dlc_is_centring() {
    let folder = tempdir().unwrap();
    let trainer = trainer(true, folder.path());
    let scored = batch(&coarse(&trainer, Numerics::Int(4)));
    let of = |rule| gradient(&trainer, &scored, rule);
    let none = of(Rule::Uncorrected);
    assert!(apart(&none, &of(Rule::Method(Method::PpoLag))) < 1e-6);
    assert!(apart(&of(Rule::dlc()), &of(Rule::Method(Method::Centring))) < 1e-5);
    assert!(apart(&none, &of(Rule::Method(Method::PpoFull))) > 1e-2, "the anchor shows under int4");
    assert!(apart(&none, &of(Rule::dlc())) > 1e-3, "centring shows under int4");
}

#[test]
fn with_an_exact_sampler_ppo_with_numeric_centring_is_ppo_and_f_is_a() {
    let folder = tempdir().unwrap();
    let mut trainer = trainer(true, folder.path());
    let scored = batch(&coarse(&trainer, Numerics::Exact));
    train(&mut trainer, 4);
    let of = |rule| gradient(&trainer, &scored, rule);
    assert!(apart(&of(Rule::dlc()), &of(Rule::Method(Method::DlcF))) < 1e-4);
    let uncentred = Rule::Dlc { lag_clip: LagClip::new(0.0, f64::MAX).unwrap(), tail: TailModel::SamplerWeights };
    assert!(apart(&of(uncentred), &of(Rule::Method(Method::Is))) < 1e-4, "unclipped lag centring is IS");
    for wrong in [Method::WrongUnweightedCentring, Method::WrongWeightedCentring] {
        assert!(apart(&of(Rule::dlc()), &of(Rule::Method(wrong))) > 1e-2, "{wrong}");
    }
}

#[test]
fn every_method_steps_and_a_batch_method_sees_its_own_forward() {
    let folder = tempdir().unwrap();
    let mut trainer = trainer(true, folder.path());
    let scored = batch(&coarse(&trainer, Numerics::Int(4)));
    train(&mut trainer, 2);
    let log_s = log_s(&trainer, scored.batch());
    for method in Method::ALL {
        let options = StepOptions { rule: Rule::Method(method), horizon: 24 };
        let (loss, gradients) = trainer.gradient_of(&scored, &log_s, &options).unwrap();
        assert!(loss.is_finite() && gradients.norm().unwrap() > 0.0, "{method}");
    }
    let rate = trainer.optimiser().rule.lr;
    let options = StepOptions { rule: Rule::Method(Method::Vcpo), horizon: 24 };
    let report = trainer.step(&scored, &log_s, &options).unwrap();
    assert_eq!(trainer.optimiser().rule.lr, rate, "the rate of a step is that step's alone");
    assert!(report.terms.numeric.kl > 0.0 && report.terms.lag.kl > 0.0);
    assert_eq!(Method::Vcpo.reduction(), Reduction::SeqMeanTokenMean);
}

#[test]
fn the_report_splits_the_kl_and_fits_the_tail() {
    let folder = tempdir().unwrap();
    let mut trainer = trainer(true, folder.path());
    let scored = reward(sample(&coarse(&trainer, Numerics::Int(4)), plan(0, 16, &params(Truncation::NONE, 9))));
    let log_s = log_s(&trainer, scored.batch());
    let fresh = trainer.step(&scored, &log_s, &dlc(TailModel::SamplerWeights)).unwrap().terms;
    assert_eq!((fresh.shape.lag_variance, fresh.shape.lag_pareto_k), (0.0, None));
    assert!(fresh.shape.numeric_pareto_k.is_some());
    assert!((fresh.full.kl - fresh.numeric.kl).abs() < 1e-9, "all of it is numeric at equal weights");
    let stale = trainer.step(&scored, &log_s, &dlc(TailModel::SamplerWeights)).unwrap().terms;
    assert!(stale.shape.lag_variance > 0.0 && stale.shape.lag_pareto_k.is_some());
    assert!((stale.full.mean - stale.lag.mean - stale.numeric.mean).abs() < 1e-9);
    assert!((stale.head_mass - 1.0).abs() < 1e-4, "40 ids, all of them listed");
}

#[test]
fn a_coarse_sampler_says_so_and_is_coarse_after_a_load_too() {
    let folder = tempdir().unwrap();
    let mut trainer = trainer(true, folder.path());
    let noise = Numerics::Noise { sigma: 0.02, seed: 3 };
    let ladder = [Numerics::Exact, Numerics::Int(8), Numerics::Int(4), Numerics::Int(3)];
    let numeric = |trainer: &Qwen3Trainer, port: &SamplerPort| {
        let scored = batch(port);
        let log_s = log_s(trainer, scored.batch());
        trainer.clone_step(&scored, &log_s)
    };
    let kls: Vec<f64> = ladder.iter().map(|numerics| numeric(&trainer, &coarse(&trainer, *numerics))).collect();
    assert!(kls.is_sorted() && kls[0] < 1e-9 && kls[1] > 1e-7 && kls[3] > 10.0 * kls[1], "{kls:?}");
    for other in [noise, Numerics::Bf16Head] {
        assert!(numeric(&trainer, &coarse(&trainer, other)) > 1e-7, "{other}");
    }
    let in_q8 = coarse(&trainer, Numerics::Q8);
    let kl = numeric(&trainer, &in_q8);
    assert!(kl > 1e-7 && kl < 10.0 * kls[1], "Q8_0 is about as coarse as int8: {kl}, {kls:?}");
    let port = coarse(&trainer, Numerics::Int(4));
    let profile = lockstep_core::ports::Sampler::capabilities(&port).profile;
    assert!(profile.dtypes.weights.starts_with("int4") && profile.dtypes.head == "f32", "{profile:?}");
    train(&mut trainer, 2);
    let published = trainer.publish(trainer.version()).unwrap();
    block_on(lockstep_core::ports::Control::load_weights(&port, &published)).unwrap();
    assert!(numeric(&trainer, &port) > 10.0 * kls[1], "still int4");
    block_on(lockstep_core::ports::Control::load_weights(&in_q8, &published)).unwrap();
    let loaded = numeric(&trainer, &in_q8);
    assert!(loaded > kl / 10.0 && loaded < 10.0 * kl, "still Q8_0, of the new weights: {loaded}, {kl}");
}

trait NumericKl {
    fn clone_step(&self, scored: &ScoredBatch, log_s: &[lockstep_core::score::RolloutLogProbs]) -> f64;
}

impl NumericKl for Qwen3Trainer {
    /// KL(q || p_s) as a step would report it, on a copy that is thrown away.
    fn clone_step(&self, scored: &ScoredBatch, log_s: &[lockstep_core::score::RolloutLogProbs]) -> f64 {
        let folder = tempdir().unwrap();
        let model = copy(self.model());
        let optimiser = lockstep_engine::Optimiser::new(model.weights(), rule(), 1.0);
        let mut trainer = Qwen3Trainer::new(model, optimiser, self.version(), settings(folder.path()));
        trainer.step(scored, log_s, &dlc(TailModel::SamplerWeights)).unwrap().terms.numeric.kl
    }
}
