//! Centring leaves no drift: the expected gradient at constant advantage is zero.

use super::gradient::{GRADIENT_ATOL, mixed};
use crate::{
    check::{Check, FalseAlarm, Finding},
    difference::{self, Difference, Place},
    draw::{self, Shape},
    faults::correction as faults,
    mix::{keyed, normal},
    obstacle::{AtPort, Obstacle},
    target::Target,
};
use lockstep_core::{
    Rollout, Support, TokenId,
    ports::{Probe, ProbeLoss},
};

/// Positions of each answer that are asked about, at most.
const POSITIONS: usize = 2;
/// Of a larger support the likeliest ids, renormalised, are a question as good: every id is asked about.
const IDS: usize = 32;

/// `correction.drift`.
pub const DRIFT: Check = Check {
    id: "correction.drift",
    demand: "at constant advantage the gradient, averaged over what could have been drawn, is zero for any lag weights",
    cost: |target| draw::cost(&target.ask, 1, target.ask.max_new_tokens),
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/correction_drift.md"),
    cases: &["verl-project/verl#4252", "vllm-project/vime#64"],
    fault: faults::CENTRING_DROPPED,
    extra_faults: &[faults::CENTRING_HEAD_ALONE],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let probe = target.probe()?.as_ref();
    let shape = Shape { question: 0xcd, answers: 1, max_new_tokens: target.ask.max_new_tokens };
    let batch = draw::sample(target, shape).await?;
    let (mut found, mut positions) = (Difference::default(), 0);
    for (rollout, answer) in batch.rollouts().iter().enumerate() {
        let supports = answer.segments().iter().flat_map(|segment| segment.behavior.rows()).enumerate();
        let open = |(_, support): &(usize, Support)| support.is_exact() && difference::has_choice(support);
        for (position, support) in supports.filter(open).take(POSITIONS) {
            positions += 1;
            let at = Place { rollout, position };
            for entry in drift(probe, answer, (position, &likeliest(&support))).await? {
                found.push(entry, at);
            }
        }
    }
    if positions == 0 {
        let reason = format!("none of {} tokens has an exact support of two ids or more", batch.tokens());
        return Err(Obstacle::Unclear(reason));
    }
    Ok(Finding::of(
        found.max_abs <= GRADIENT_ATOL,
        format!(
            "{positions} positions, each with every id of its support, or the {IDS} likeliest, drawn in turn: T times the mean gradient is at most \
             {:.1e} (allowed {GRADIENT_ATOL:.0e})",
            found.max_abs
        ),
    ))
}

/// The [`IDS`] likeliest ids of a support, with their log q.
fn likeliest(support: &Support) -> Vec<(TokenId, f64)> {
    let mut entries: Vec<_> = support.ids().iter().copied().zip(support.log_q().iter().copied()).collect();
    entries.sort_by(|a, b| b.1.total_cmp(&a.1));
    entries.truncate(IDS);
    entries
}

/// `T sum_a q_a g(a)`, over the support.
async fn drift(
    probe: &dyn Probe,
    answer: &Rollout,
    (position, support): (usize, &[(TokenId, f64)]),
) -> Result<Vec<f64>, Obstacle> {
    let (ids, log_q): (Vec<TokenId>, Vec<f64>) = support.iter().copied().unzip();
    let q = mixed(&log_q, 0.25);
    let weight = |id: &TokenId| {
        let ratio = normal(&[keyed(&[position as u64, 0xd8]), u64::from(id.0)]).exp();
        ratio.min(2.0)
    };
    let w: Vec<f64> = ids.iter().map(weight).collect();
    let temperature = answer.params().temperature();
    let mut tokens: Vec<TokenId> = answer.prompt().iter().copied().chain(answer.sampled()).collect();
    let place = answer.prompt().len() + position;
    let mut sum = vec![0.0; q.len()];
    for (at, &id) in ids.iter().enumerate() {
        tokens[place] = id;
        let loss = ProbeLoss {
            tokens: tokens.clone(),
            position: place,
            support: ids.clone(),
            w: w[at],
            c: q.iter().zip(&w).map(|(q, w)| q * w).collect(),
            temperature,
        };
        let gradient = probe.gradient(&loss).await.at("probe")?;
        if gradient.len() != sum.len() {
            let (got, needed) = (gradient.len(), sum.len());
            return Err(Obstacle::Unclear(format!("the probe gave {got} gradients for a support of {needed} ids")));
        }
        sum.iter_mut().zip(gradient).for_each(|(sum, entry)| *sum += temperature * q[at] * entry);
    }
    Ok(sum)
}
