//! The loss is a mean over every token of the batch.

use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::tilted,
    faults::training as faults,
    obstacle::Obstacle,
    target::Target,
};
use lockstep_core::dlc::{Rule, weigh};

/// `batch.denominator`.
pub const DENOMINATOR: Check = Check {
    id: "batch.denominator",
    demand: "a step's loss is the mean over all sampled tokens of its batch, counted before anything is masked",
    cost: tilted::cost,
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/batch_denominator.md"),
    cases: &["areal-project/AReaL#450", "NovaSky-AI/SkyRL#1802", "huggingface/trl#3758"],
    fault: faults::COUNTED_AFTER_MASK,
    extra_faults: &[faults::PADDED_DENOMINATOR, faults::TOKENS_MISCOUNTED],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let step = tilted::step(target, 0xde, Rule::Uncorrected).await?;
    step.whole()?;
    let expected = tilted::mean_loss(&step.tokens, |position| weigh(position, &Rule::Uncorrected))
        .map_err(|error| Obstacle::Unclear(error.to_string()))?;
    let counted = step.report.terms.tokens;
    let verdict = step.judge_loss(expected, target);
    let evidence = format!("{} answers; {}; the trainer counted {counted} tokens", step.answers, verdict.evidence());
    Ok(Finding::of(verdict.is_pass() && counted == step.tokens.len(), evidence))
}
