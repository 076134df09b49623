//! A draw is a function of its seed.

use crate::{
    check::{Check, FalseAlarm, Finding},
    draw::{self, Shape},
    faults::sampler as faults,
    obstacle::Obstacle,
    target::Target,
};
use lockstep_core::{Batch, TokenId};
use std::collections::BTreeSet;

const ANSWERS: u32 = 4;
/// Share of answers that must come back: on a machine that does not repeat its rounding some part on their way.
const SAME: f64 = 0.5;

/// `distribution.seed`.
pub const SEED: Check = Check {
    id: "distribution.seed",
    demand: "the same request with the same seed draws the same answer, and other seeds draw others",
    cost: |target| draw::cost(&target.ask, 2 * ANSWERS + 1, target.ask.max_new_tokens),
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/distribution_seed.md"),
    cases: &["sgl-project/sglang#36630", "vllm-project/vllm#42259"],
    fault: faults::SEED_IGNORED,
    extra_faults: &[faults::NOISE_REUSED],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let shape = Shape { question: 0x5eed, answers: ANSWERS, max_new_tokens: target.ask.max_new_tokens };
    let first = draw::sample(target, shape).await?;
    let again = draw::sample(target, shape).await?;
    let (first, again) = (answers(&first), answers(&again));
    let same = first.iter().zip(&again).filter(|(one, other)| one.1 == other.1).count();
    let distinct = first.iter().collect::<BTreeSet<_>>().len();
    let prompts = target.ask.prompts.len();
    let evidence = format!(
        "{same} of {} answers came back when asked again; {distinct} distinct answers to {prompts} prompts",
        first.len()
    );
    if distinct <= prompts && ANSWERS > 1 && same == first.len() && !draws(target).await? {
        return Err(Obstacle::Unclear(format!("{evidence}; no prefix leaves a choice")));
    }
    Ok(Finding::of(same as f64 >= SAME * first.len() as f64 && distinct > prompts, evidence))
}

/// The tokens of each answer, with its group.
fn answers(batch: &Batch) -> Vec<(u32, Vec<TokenId>)> {
    batch.rollouts().iter().map(|rollout| (rollout.group(), rollout.sampled().collect())).collect()
}

/// Whether anything can be drawn at all.
async fn draws(target: &Target) -> Result<bool, Obstacle> {
    let shape = Shape { question: 0x5eee, answers: 1, max_new_tokens: target.ask.max_new_tokens };
    let batch = draw::sample(target, shape).await?;
    let rows = batch.rollouts().iter().flat_map(|rollout| rollout.segments());
    Ok(rows.flat_map(|segment| segment.behavior.rows()).any(|row| crate::difference::has_choice(&row)))
}
