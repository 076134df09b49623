//! The weights are clip(p_theta / p_s), the centring is q times them.

use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::tilted,
    faults::training as faults,
    obstacle::Obstacle,
    target::Target,
};
use lockstep_core::dlc::{Rule, weigh};

/// `correction.weights`.
pub const WEIGHTS: Check = Check {
    id: "correction.weights",
    demand: "under DLC a step's loss is that of w = clip(p_theta / p_s) and c = q w, entry by entry",
    cost: tilted::cost,
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/correction_weights.md"),
    cases: &["THUDM/slime#179", "inclusionAI/AReaL#201", "radixark/miles#1829"],
    fault: faults::CENTRING_UNWEIGHTED,
    extra_faults: &[
        faults::CENTRED_SCORE_WEIGHTED,
        faults::CENTRED_WITH_RAW,
        faults::NUMERIC_IN_WEIGHT,
        faults::UNCLIPPED,
        faults::RATIO_INVERTED,
    ],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let step = tilted::step(target, 0xc3, Rule::dlc()).await?;
    step.whole()?;
    let expected = tilted::mean_loss(&step.tokens, |position| weigh(position, &Rule::dlc()))
        .map_err(|error| Obstacle::Unclear(error.to_string()))?;
    Ok(step.judge_loss(expected, target).into())
}
