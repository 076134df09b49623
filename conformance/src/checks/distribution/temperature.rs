//! The temperature divides the logits, once, and the report says so.

use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::question::{self, How},
    difference::{Difference, Place},
    faults::filters as faults,
    obstacle::Obstacle,
    target::Target,
};
use lockstep_core::Support;

const PROMPTS: u32 = 12;
const LENGTH: u32 = 6;
/// The second temperature is the first times this.
const FACTOR: f64 = 1.75;

/// `distribution.temperature`.
pub const TEMPERATURE: Check = Check {
    id: "distribution.temperature",
    demand: "T log q is the same at two temperatures, up to a constant: the logits are divided once, before the softmax",
    cost: |_| 2 * u64::from(PROMPTS),
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/distribution_temperature.md"),
    cases: &["huggingface/trl#4159", "GMISWE/tinker-cloud#26", "verl-project/verl#4162", "THUDM/slime#2325"],
    fault: faults::TEMPERATURE_IGNORED,
    extra_faults: &[faults::TEMPERATURE_TWICE, faults::TEMPERATURE_DEFAULT],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let prompts = question::random_prompts(&target.ask, PROMPTS, LENGTH);
    let temperatures = [target.ask.temperature, target.ask.temperature * FACTOR];
    let how = |question, temperature| How::top_k(question, temperature, question::listed(&target.ask));
    let low = question::first(target, &prompts, how(0x7a1, temperatures[0])).await?;
    let high = question::first(target, &prompts, how(0x7a2, temperatures[1])).await?;
    let mut found = Difference::default();
    for (rollout, (low, high)) in low.iter().zip(&high).enumerate() {
        push((low, high), temperatures, Place { rollout, position: 0 }, &mut found);
    }
    if found.count == 0 {
        return Err(Obstacle::Unclear(format!("none of {PROMPTS} prompts has two ids at both temperatures")));
    }
    let tolerance = target.numeric.tolerance();
    let evidence = format!(
        "T log q at T {:.2} and {:.2} over {} entries: mean abs {:.1e}, max abs {:.1e} apart ({} allows {:.0e} and {:.0e})",
        temperatures[0],
        temperatures[1],
        found.count,
        found.mean_abs(),
        found.max_abs,
        target.numeric,
        tolerance.mean_abs,
        tolerance.max_abs
    );
    Ok(Finding::of(tolerance.holds(found.mean_abs(), found.max_abs), evidence))
}

/// Distances of `T log q` at both temperatures, less their mean.
fn push((low, high): (&Support, &Support), temperatures: [f64; 2], at: Place, found: &mut Difference) {
    let other = |id| high.ids().iter().position(|&other| other == id).map(|at| high.log_q()[at]);
    let entries = low.ids().iter().zip(low.log_q());
    let pairs = entries.filter_map(|(&id, log_q)| Some(temperatures[1] * other(id)? - temperatures[0] * log_q));
    let distances: Vec<f64> = pairs.collect();
    if distances.len() > 1 {
        let mean = distances.iter().sum::<f64>() / distances.len() as f64;
        distances.iter().for_each(|distance| found.push(distance - mean, at));
    }
}
