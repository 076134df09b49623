//! The effective sample size sees raw ratios.

use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::tilted,
    faults::training as faults,
    obstacle::Obstacle,
    target::Target,
};
use lockstep_core::dlc::Rule;

/// Largest accepted distance of a reported ESS from that of the same lags, where lag is 0 at equal versions.
const EXACT: f64 = 1e-4;

/// The same where the trainer's two scorings differ by repeat noise, which is added to it.
const NOISY: f64 = 5e-3;

/// `correction.ess`.
pub const ESS: Check = Check {
    id: "correction.ess",
    demand: "the effective sample size is the share (sum w)^2 / (n sum w^2) of raw lag ratios, by token, by answer and by horizon",
    cost: tilted::cost,
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/correction_ess.md"),
    cases: &["huggingface/trl#5231", "marin-community/marin#8955"],
    fault: faults::ESS_AFTER_CLIP,
    extra_faults: &[faults::ESS_AS_COUNT, faults::ESS_AGAINST_Q, faults::ESS_TOKEN_FOR_SEQUENCE],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let step = tilted::step(target, 0xe5, Rule::dlc()).await?;
    let expected = tilted::ess(&tilted::lags(&step.tokens, step.answers)?)?;
    let Some(found) = step.report.ess_at(step.version) else {
        return Ok(Finding::of(false, format!("no ESS is reported for {}, which drew the batch", step.version)));
    };
    let pairs = [
        ("token", found.token, expected.token),
        ("answer", found.sequence, expected.sequence),
        ("horizon", found.horizon, expected.horizon),
    ];
    let line = |(name, found, expected): &(&str, f64, f64)| format!("{name} {found:.4} (expected {expected:.4})");
    let atol = if target.exact_lag { EXACT } else { NOISY + tilted::slack(target) };
    let met = pairs.iter().all(|(_, found, expected)| (found - expected).abs() <= atol);
    let evidence = format!("ESS of {} made-up lags: {}", step.tokens.len(), pairs.each_ref().map(line).join(", "));
    Ok(Finding::of(met, evidence))
}
