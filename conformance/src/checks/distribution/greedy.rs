//! With one id kept there is nothing to draw.

use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::question::{self, How},
    faults::filters as faults,
    obstacle::Obstacle,
    target::Target,
};
use lockstep_core::Support;

const PROMPTS: u32 = 12;
const LENGTH: u32 = 6;

/// `distribution.greedy`.
pub const GREEDY: Check = Check {
    id: "distribution.greedy",
    demand: "with top_k 1 the most likely id is drawn, and reported as the only choice, with log-prob 0",
    cost: |_| 2 * u64::from(PROMPTS),
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/distribution_greedy.md"),
    cases: &["sgl-project/sglang#36630", "THUDM/slime#2319", "huggingface/trl#4159"],
    fault: faults::GREEDY_SAMPLED,
    extra_faults: &[faults::GREEDY_RAW_LOG_PROB, faults::GREEDY_SECOND],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let prompts = question::random_prompts(&target.ask, PROMPTS, LENGTH);
    let how = |question, top_k| How::top_k(question, target.ask.temperature, top_k);
    let listed = question::first(target, &prompts, how(0x6e1, question::listed(&target.ask))).await?;
    let found = question::first(target, &prompts, how(0x6e2, 1)).await?;
    let alone = found.iter().filter(|support| support.is_exact() && support.ids().len() == 1).count();
    let best = listed.iter().zip(&found).filter(|(listed, found)| is_best(listed, found)).count();
    let evidence = format!(
        "of {PROMPTS} tokens under top_k 1, {alone} are reported as the only choice, {best} are the most likely of {} ids",
        question::listed(&target.ask)
    );
    Ok(Finding::of(alone == found.len() && best == found.len(), evidence))
}

/// True where no id is more likely than the drawn one, but for rounding.
fn is_best(listed: &Support, found: &Support) -> bool {
    let token = found.sampled().token;
    let own = listed.ids().iter().position(|&id| id == token).map(|at| listed.log_q()[at]);
    let most = listed.log_q().iter().copied().fold(f64::NEG_INFINITY, f64::max);
    own.is_some_and(|own| own >= most - 1e-4)
}
