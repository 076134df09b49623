//! The lag is taken against the p_s the step was given.

use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::tilted,
    faults::training as faults,
    figure,
    obstacle::Obstacle,
    target::Target,
};
use lockstep_core::dlc::Rule;

/// `lag.denominator`.
pub const DENOMINATOR: Check = Check {
    id: "lag.denominator",
    demand: "the lag a step reports is log p_theta - log p_s of the p_s it was given, raw: not against q, not clipped",
    cost: tilted::cost,
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/lag_denominator.md"),
    cases: &["THUDM/slime#179", "huggingface/trl#5231", "radixark/miles#1829"],
    fault: faults::LAG_AGAINST_Q,
    extra_faults: &[faults::LAG_CLIPPED, faults::LAG_INVERTED],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let step = tilted::step(target, 0x1d, Rule::dlc()).await?;
    let terms: Vec<_> = step.tokens.iter().map(tilted::Token::terms).collect::<Result<_, _>>()?;
    let lags: Vec<f64> = terms.iter().map(|(lag, _)| lag.log()).collect();
    let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / terms.len().max(1) as f64;
    let (lag, numeric) = (mean(&mut lags.iter().copied()), mean(&mut terms.iter().map(|(_, numeric)| numeric.log())));
    let largest = lags.iter().map(|lag| lag.abs()).fold(0.0, f64::max);
    let found = step.report.terms;
    let slack = tilted::slack(target);
    let near = |found: f64, expected: f64| (found - expected).abs() <= slack;
    let evidence = format!(
        "{} tokens against made-up p_s: lag mean {:.4}, max abs {:.4}, expected {lag:.4} and {largest:.4}; numeric mean {:.4}, \
         expected {numeric:.4}, within {slack:.1e}",
        lags.len(),
        found.lag.mean,
        found.lag.max_abs,
        found.numeric.mean
    );
    let met = near(found.lag.mean, lag) && near(found.lag.max_abs, largest) && near(found.numeric.mean, numeric);
    Ok(Finding::of(met, evidence).with(figure::histogram("log p_theta - log p_s as handed over", &lags)))
}
