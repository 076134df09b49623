//! The loss is a mean over every token of the batch.

use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::tilted::{self, Step},
    faults::training as faults,
    obstacle::Obstacle,
    target::Target,
};
use lockstep_core::dlc::{
    Rule,
    weigh::{Position, weigh},
};

/// `batch.denominator`.
pub const DENOMINATOR: Check = Check {
    id: "batch.denominator",
    demand: "a step's loss is the mean over all sampled tokens of its batch, counted before anything is masked",
    cost: tilted::cost_decisive,
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/batch_denominator.md"),
    cases: &["areal-project/AReaL#450", "NovaSky-AI/SkyRL#1802", "huggingface/trl#3758"],
    fault: faults::COUNTED_AFTER_MASK,
    extra_faults: &[faults::PADDED_DENOMINATOR, faults::TOKENS_MISCOUNTED],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let step = tilted::decisive(target, (0xde, Rule::Uncorrected), distance).await?;
    let expected = loss(&step)?;
    let counted = step.report.terms.tokens;
    let verdict = step.judge_loss(expected, target);
    let evidence = format!("{} answers; {}; the trainer counted {counted} tokens", step.answers, verdict.evidence());
    Ok(Finding::of(verdict.is_pass() && counted == step.tokens.len(), evidence))
}

fn loss(step: &Step) -> Result<f64, Obstacle> {
    let rule = |position: &Position<'_>| weigh(position, &Rule::Uncorrected);
    tilted::mean_loss(&step.tokens, rule).map_err(|error| Obstacle::Unclear(error.to_string()))
}

/// How far the loss lies from the one whose denominator lacks a token of each answer, relative to `1 + |loss|`.
fn distance(step: &Step) -> Result<f64, Obstacle> {
    let (right, tokens) = (loss(step)?, step.tokens.len());
    let short = tokens.saturating_sub(step.answers).max(1);
    Ok(right.abs() * (tokens as f64 / short as f64 - 1.0) / (1.0 + right.abs()))
}
