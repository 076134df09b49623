//! The gradient of a step against plain automatic differentiation through a whole softmax, with `(w, c)` computed here from
//! their definition.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

mod common;
mod pair;

use candle_core::{D, Tensor};
use candle_nn::ops::log_softmax;
use lockstep_core::behavior::BehaviorDistribution;
use lockstep_core::delta::Delta;
use lockstep_core::dlc::{Rule, TailModel};
use lockstep_core::plan::Batch;
use lockstep_core::ports::StepOptions;
use lockstep_core::reward::ScoredBatch;
use lockstep_core::sampling::Truncation;
use lockstep_core::support::{Domain, Reported, Support};
use lockstep_engine::{Pass, Qwen3, Qwen3Trainer};
use pair::*;
use tempfile::tempdir;

const V: usize = 40;
const T: f64 = 0.8;

/// Every sampled token: the row of the hidden states that predicts it, its support, its advantage.
struct Tokens {
    rows: Vec<Vec<u32>>,
    tokens: Vec<(usize, Support, f64)>,
}

fn tokens(scored: &ScoredBatch) -> Tokens {
    let (mut rows, mut tokens, mut start) = (Vec::new(), Vec::new(), 0);
    for (rollout, advantage) in scored.batch().rollouts().iter().zip(scored.advantages()) {
        let mut row: Vec<u32> = rollout.prompt().iter().copied().chain(rollout.sampled()).map(|id| id.0).collect();
        row.pop();
        let supports = rollout.segments().iter().flat_map(|segment| segment.behavior.rows());
        let first = start + rollout.prompt().len() - 1;
        tokens.extend((first..).zip(supports).map(|(at, support)| (at, support, advantage)));
        start += row.len();
        rows.push(row);
    }
    Tokens { rows, tokens }
}

fn domain(support: &Support) -> Vec<usize> {
    match support.domain() {
        Domain::Listed => support.ids().iter().map(|id| id.0 as usize).collect(),
        Domain::Vocabulary(_) => (0..V).collect(),
    }
}

impl Tokens {
    /// log p over the domain of every token, `[M, V]`; far below zero outside it.
    fn log_p(&self, model: &Qwen3, pass: Pass) -> Tensor {
        let rows: Vec<&[u32]> = self.rows.iter().map(Vec::as_slice).collect();
        let logits = model.logits(&model.hidden_packed(&rows, pass).unwrap()).unwrap();
        let at = Tensor::from_iter(self.tokens.iter().map(|(at, _, _)| *at as u32), &common::device()).unwrap();
        let mut mask = vec![-1e9f32; self.tokens.len() * V];
        for (row, (_, support, _)) in mask.chunks_exact_mut(V).zip(&self.tokens) {
            domain(support).into_iter().for_each(|id| row[id] = 0.0);
        }
        let mask = Tensor::from_vec(mask, (self.tokens.len(), V), &common::device()).unwrap();
        let scaled = (logits.index_select(&at, 0).unwrap() / T).unwrap();
        log_softmax(&(scaled + mask).unwrap(), D::Minus1).unwrap()
    }
}

fn clip(log_ratio: f64) -> f64 {
    log_ratio.exp().clamp(0.0, 2.0)
}

/// `w e_a - c` over the vocabulary.
fn coefficients(support: &Support, log_theta: &[f32], log_s: &[f32], rule: &Rule) -> Vec<f64> {
    let (p, s) = (|v: usize| f64::from(log_theta[v]), |v: usize| f64::from(log_s[v]));
    let a = support.sampled().token.0 as usize;
    let mut k = vec![0.0; V];
    let Rule::Dlc { tail, .. } = rule else {
        k[a] = 1.0;
        return k;
    };
    let known: Vec<usize> = support.ids()[..support.known()].iter().map(|id| id.0 as usize).collect();
    let rest: Vec<usize> = domain(support).into_iter().filter(|v| !known.contains(v)).collect();
    for (&v, log_q) in known.iter().zip(support.log_q()) {
        k[v] -= log_q.exp() * clip(p(v) - s(v));
    }
    if let Some(log_rest) = support.log_rest() {
        let mass = |x: &dyn Fn(usize) -> f64| rest.iter().map(|v| x(*v).exp()).sum::<f64>();
        let (q_t, s_t, p_t) = (log_rest.exp(), mass(&s), mass(&p));
        match tail {
            TailModel::SamplerWeights => {
                rest.iter().for_each(|&v| k[v] -= q_t / s_t * s(v).exp() * clip(p(v) - s(v)));
            }
            TailModel::Collapsed => {
                let alpha = q_t / p_t * clip((p_t / s_t).ln());
                known.iter().for_each(|&v| k[v] += alpha * p(v).exp());
            }
        }
    }
    k[a] += clip(p(a) - s(a));
    k
}

/// Largest error of any parameter relative to its largest entry.
fn error(trainer: &Qwen3Trainer, sampler: &Qwen3, scored: &ScoredBatch, rule: Rule) -> f32 {
    let all = tokens(scored);
    let tracked = all.log_p(trainer.model(), Pass::Train);
    let log_theta = tracked.to_vec2::<f32>().unwrap();
    let log_s = all.log_p(sampler, Pass::Score).to_vec2::<f32>().unwrap();
    let mut k = Vec::new();
    for ((_, support, advantage), (log_theta, log_s)) in all.tokens.iter().zip(log_theta.iter().zip(&log_s)) {
        let scale = -advantage / all.tokens.len() as f64;
        k.extend(coefficients(support, log_theta, log_s, &rule).iter().map(|k| (k * scale) as f32));
    }
    let k = Tensor::from_vec(k, (all.tokens.len(), V), &common::device()).unwrap();
    let wanted = (tracked * k).unwrap().sum_all().unwrap().backward().unwrap();
    let log_s = log_s_of(trainer, scored);
    let (_, found) = trainer.gradient_of(scored, &log_s, &StepOptions { rule, horizon: 24 }).unwrap();
    let one = |(name, var): (&str, &candle_core::Var)| {
        let wanted = common::floats(wanted.get(var).unwrap());
        common::worst(&wanted, &values(&found, name)) / common::largest(&wanted)
    };
    trainer.model().weights().iter().map(one).fold(0.0, f32::max)
}

fn log_s_of(trainer: &Qwen3Trainer, scored: &ScoredBatch) -> Vec<lockstep_core::score::RolloutLogProbs> {
    log_s(trainer, scored.batch())
}

/// The same answers with only the three most probable entries of each kept set known.
fn masked(batch: Batch, plan: lockstep_core::plan::BatchPlan) -> Batch {
    let hide = |support: Support| {
        let mut entries: Vec<_> = support.ids().iter().copied().zip(support.log_q().iter().copied()).collect();
        if entries.len() <= 3 {
            return support;
        }
        entries.sort_by(|a, b| b.1.total_cmp(&a.1));
        let rest = entries[3..].iter().map(|(_, log_q)| log_q.exp()).sum::<f64>().ln();
        let reported = Reported {
            ids: entries.iter().map(|(id, _)| *id).collect(),
            log_q: entries[..3].iter().map(|(_, log_q)| *log_q).collect(),
            log_rest: Some(rest),
            domain: Domain::Listed,
        };
        Support::new(support.sampled(), reported).unwrap()
    };
    let delta = |rollout: &lockstep_core::rollout::Rollout| {
        let segment = &rollout.segments()[0];
        let mut behavior = BehaviorDistribution::default();
        segment.behavior.rows().map(hide).for_each(|support| behavior.push(&support));
        let (stamp, profile) = (segment.stamp.clone(), segment.profile.clone());
        let finish = Some(rollout.finish());
        Delta { rollout: rollout.id(), start: 0, behavior, stamp, kv: segment.kv, profile, finish }
    };
    seal(plan, &batch.rollouts().iter().map(delta).collect::<Vec<_>>())
}

fn dlc_rule(tail: TailModel) -> Rule {
    dlc(tail).rule
}

#[test]
fn the_gradient_of_a_step_is_that_of_automatic_differentiation() {
    let folder = tempdir().unwrap();
    let tails = [TailModel::SamplerWeights, TailModel::Collapsed];
    for tied in [true, false] {
        let mut trainer = trainer(tied, folder.path());
        let old = copy(trainer.model());
        let drawn_by = sampler(&trainer, 6);
        let sampled = |truncation| sample(&drawn_by, plan(0, 5, &params(truncation, 9)));
        let (exact, whole) = (sampled(CUT), sampled(Truncation::NONE));
        let hidden = masked(exact.clone(), plan(0, 5, &params(CUT, 9)));
        train(&mut trainer, 4);
        for (name, batch, partial) in [("exact", exact, false), ("head", whole, true), ("masked", hidden, true)] {
            let supports: Vec<Support> = tokens(&reward(batch.clone())).tokens.into_iter().map(|t| t.1).collect();
            assert_eq!(supports.iter().any(|support| !support.is_exact()), partial);
            let outside = supports.iter().filter(|s| !s.ids()[..s.known()].contains(&s.sampled().token)).count();
            assert!(!partial || outside > 0, "{name}: no token was drawn from a tail");
            let scored = reward(batch);
            for rule in tails.map(dlc_rule).into_iter().chain([Rule::Uncorrected]) {
                let error = error(&trainer, &old, &scored, rule);
                assert!(error <= 2e-5, "tied {tied}, {name}, {rule:?}: {error:e}");
            }
        }
    }
}

/// A wrong rule shows: the bar above is not met by accident.
#[test]
fn another_rule_has_another_gradient() {
    let folder = tempdir().unwrap();
    let mut trainer = trainer(true, folder.path());
    let scored = reward(sample(&sampler(&trainer, 6), plan(0, 5, &params(Truncation::NONE, 9))));
    train(&mut trainer, 4);
    let log_s = log_s_of(&trainer, &scored);
    let gradient = |options: &StepOptions| trainer.gradient_of(&scored, &log_s, options).unwrap().1;
    let rules = [
        dlc(TailModel::SamplerWeights),
        dlc(TailModel::Collapsed),
        StepOptions { rule: Rule::Uncorrected, horizon: 24 },
    ];
    let all = rules.each_ref().map(gradient);
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        let [a, b] = [a, b].map(|rule| values(&all[rule], "model.norm.weight"));
        assert!(common::worst(&a, &b) > 1e-3 * common::largest(&a));
    }
}

/// `(w, c)` of the plain policy gradient are constants, so its loss has this gradient by differences too.
#[test]
fn the_loss_of_the_plain_gradient_moves_as_its_gradient_says() {
    let folder = tempdir().unwrap();
    let trainer = trainer(true, folder.path());
    let scored = reward(sample(&sampler(&trainer, 6), plan(0, 5, &params(CUT, 9))));
    let log_s = log_s_of(&trainer, &scored);
    let options = StepOptions { rule: Rule::Uncorrected, horizon: 24 };
    let (_, gradient) = trainer.gradient_of(&scored, &log_s, &options).unwrap();
    let norm = gradient.norm().unwrap();
    let start = trainer.model().weights().snapshot().unwrap();
    let moved = |by: f64| {
        for (name, var) in trainer.model().weights().iter() {
            let from = common::floats(start.get(name).unwrap().as_tensor());
            let to = from.iter().zip(values(&gradient, name)).map(|(x, g)| x + (by / norm) as f32 * g);
            var.set(&Tensor::from_vec(to.collect::<Vec<f32>>(), var.shape(), &common::device()).unwrap()).unwrap();
        }
        trainer.gradient_of(&scored, &log_s, &options).unwrap().0
    };
    let slope = (moved(3e-3) - moved(-3e-3)) / 6e-3;
    assert!((slope / norm - 1.0).abs() < 2e-3, "slope {slope}, norm {norm}");
}
