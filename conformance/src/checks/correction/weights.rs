//! The weights are clip(p_theta / p_s), the centring is q times them.

use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::tilted::{self, Step},
    faults::training as faults,
    obstacle::Obstacle,
    target::Target,
};
use lockstep_core::dlc::{
    LagClip, Rule, TailModel, TokenCorrection,
    weigh::{Position, WeighError, weigh},
    wrong_on_purpose,
};

/// `correction.weights`.
pub const WEIGHTS: Check = Check {
    id: "correction.weights",
    demand: "under DLC a step's loss is that of w = clip(p_theta / p_s) and c = q w, entry by entry",
    cost: tilted::cost_decisive,
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
    let step = tilted::decisive(target, (0xc3, Rule::dlc()), distance).await?;
    let expected = loss(&step, |position| weigh(position, &Rule::dlc()))?;
    Ok(step.judge_loss(expected, target).into())
}

fn loss(step: &Step, rule: impl Fn(&Position<'_>) -> Result<TokenCorrection, WeighError>) -> Result<f64, Obstacle> {
    tilted::mean_loss(&step.tokens, rule).map_err(|error| Obstacle::Unclear(error.to_string()))
}

/// How far the loss lies from the nearest one of a wrong rule, relative to `1 + |loss|`.
fn distance(step: &Step) -> Result<f64, Obstacle> {
    let right = loss(step, |position| weigh(position, &Rule::dlc()))?;
    let unclipped = LagClip::new(0.0, f64::MAX).unwrap_or_default();
    let wrong = [
        loss(step, |position| wrong_on_purpose::centring_without_the_weight(position, LagClip::default()))?,
        loss(step, |position| wrong_on_purpose::centring_with_the_drawn_tokens_weight(position, LagClip::default()))?,
        loss(step, |position| weigh(position, &Rule::Dlc { lag_clip: unclipped, tail: TailModel::default() }))?,
        loss(step, |position| {
            let (log_s, log_theta) = (position.log_theta, position.log_s);
            weigh(&Position { log_s, log_theta, ..*position }, &Rule::dlc())
        })?,
        loss(step, faults::centred_with_raw)?,
        loss(step, faults::numeric_in_weight)?,
    ];
    let nearest = wrong.iter().map(|wrong| (wrong - right).abs()).fold(f64::INFINITY, f64::min);
    Ok(nearest / (1.0 + right.abs()))
}
