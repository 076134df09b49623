//! The gradient of the correction, through a probe: centring on an exact support does not depend on p.
//!
//! Where q = p a wrong centring hides behind p, so the distributions asked about are q, and q mixed with the uniform one.

use crate::{
    check::{Check, FalseAlarm, Finding},
    difference::{self, Difference, Place},
    draw::{self, Shape},
    faults::correction as faults,
    obstacle::{AtPort, Obstacle},
    target::Target,
};
use lockstep_core::{
    Batch, Rollout, Support, TokenId,
    ports::{Probe, ProbeLoss},
};

/// Largest accepted difference of a gradient entry, times the temperature.
pub const GRADIENT_ATOL: f64 = 1e-4;
/// Weights asked about: centred REINFORCE, and a lag ratio.
const WEIGHTS: [f64; 2] = [1.0, 1.75];
/// At most this many positions of each answer.
const POSITIONS: usize = 4;

/// `correction.gradient`.
pub const GRADIENT: Check = Check {
    id: "correction.gradient",
    demand: "with centring c = w q on an exact support the gradient of a token's logits is -(A w / T)(e_a - q), whatever p is",
    cost: |target| draw::cost(&target.ask, 1, target.ask.max_new_tokens),
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/correction_gradient.md"),
    cases: &["verl-project/verl#4252", "THUDM/slime#179"],
    fault: faults::RAW_CENTRED,
    extra_faults: &[faults::DOUBLE_CORRECTION, faults::TEMPERATURE_FORGOTTEN],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let probe = target.probe()?.as_ref();
    let shape = Shape { question: 0xc0, answers: 1, max_new_tokens: target.ask.max_new_tokens };
    let batch = draw::sample(target, shape).await?;
    let questions = questions(&batch);
    if questions.is_empty() {
        let reason = format!("none of {} tokens has an exact support of two ids or more", batch.tokens());
        return Err(Obstacle::Unclear(reason));
    }
    let mut found = Difference::default();
    for question in &questions {
        question.ask(probe, &mut found).await?;
    }
    Ok(Finding::of(
        found.max_abs <= GRADIENT_ATOL,
        format!(
            "{} gradients, {} entries: T times the distance from -(w / T)(e_a - q) is at most {:.1e} at rollout {} \
             token {} (allowed {GRADIENT_ATOL:.0e})",
            questions.len(),
            found.count,
            found.max_abs,
            found.at.rollout,
            found.at.position
        ),
    ))
}

/// A loss, and the distribution its centring was made from.
struct Question {
    at: Place,
    sampled: TokenId,
    q: Vec<f64>,
    loss: ProbeLoss,
}

impl Question {
    async fn ask(&self, probe: &dyn Probe, found: &mut Difference) -> Result<(), Obstacle> {
        let gradient = probe.gradient(&self.loss).await.at("probe")?;
        let ProbeLoss { support, w, temperature, .. } = &self.loss;
        if gradient.len() != support.len() {
            let (got, needed) = (gradient.len(), support.len());
            return Err(Obstacle::Unclear(format!("the probe gave {got} gradients for a support of {needed} ids")));
        }
        for ((entry, &token), q) in gradient.iter().zip(support).zip(&self.q) {
            let one = if token == self.sampled { 1.0 } else { 0.0 };
            let expected = -w / temperature * (one - q);
            found.push(temperature * (entry - expected), self.at);
        }
        Ok(())
    }
}

/// Losses with `c = w q` at the first positions that have a choice.
fn questions(batch: &Batch) -> Vec<Question> {
    let mut questions = Vec::new();
    for (index, rollout) in batch.rollouts().iter().enumerate() {
        let supports = rollout.segments().iter().flat_map(|segment| segment.behavior.rows()).enumerate();
        let open = supports.filter(|(_, support)| support.is_exact() && difference::has_choice(support));
        for (position, support) in open.take(POSITIONS) {
            let at = Place { rollout: index, position };
            for (w, share) in WEIGHTS.into_iter().flat_map(|w| [(w, 0.0), (w, 0.5)]) {
                let q = mixed(support.log_q(), share);
                let loss = loss(rollout, (position, &support), (w, &q));
                questions.push(Question { at, sampled: support.sampled().token, q, loss });
            }
        }
    }
    questions
}

/// q, renormalised, with a share of the uniform distribution over its ids; sums to 1 whatever f32 has lost.
pub(super) fn mixed(log_q: &[f64], share: f64) -> Vec<f64> {
    let q: Vec<f64> = log_q.iter().map(|log_q| log_q.exp()).collect();
    let (total, each) = (q.iter().sum::<f64>(), 1.0 / q.len() as f64);
    q.iter().map(|q| (1.0 - share) * q / total + share * each).collect()
}

fn loss(rollout: &Rollout, (position, support): (usize, &Support), (w, q): (f64, &[f64])) -> ProbeLoss {
    ProbeLoss {
        tokens: rollout.prompt().iter().copied().chain(rollout.sampled()).collect(),
        position: rollout.prompt().len() + position,
        support: support.ids().to_vec(),
        w,
        c: q.iter().map(|q| w * q).collect(),
        temperature: rollout.params().temperature(),
    }
}
