//! The trainer divides by the temperature before its softmax.

use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::distribution::retold,
    difference::{self, Difference, Row},
    draw::{self, Shape},
    faults::scorer as faults,
    obstacle::Obstacle,
    target::Target,
};

/// The second temperature is the first times this.
const FACTOR: f64 = 1.75;

/// `lag.temperature`.
pub const TEMPERATURE: Check = Check {
    id: "lag.temperature",
    demand: "the trainer scores softmax(z / T) at the recorded temperature: T log p is the same at two, up to a constant",
    cost: |target| draw::cost(&target.ask, 1, target.ask.max_new_tokens),
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/lag_temperature.md"),
    cases: &["huggingface/trl#4159", "THUDM/slime#2319", "verl-project/verl#4252", "GMISWE/tinker-cloud#26"],
    fault: faults::SCORED_AT_ONE,
    extra_faults: &[faults::SCORED_TWICE_TEMPERED],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let scorer = target.scorer()?.as_ref();
    let shape = Shape { question: 0x17, answers: 1, max_new_tokens: target.ask.max_new_tokens };
    let batch = draw::sample(target, shape).await?;
    let version = draw::version_of(&batch)?;
    let temperatures = [target.ask.temperature, target.ask.temperature * FACTOR];
    let other = retold(&batch, (|_: &_| temperatures[1], target.ask.truncation), |support| Ok(support.clone()))?;
    let scores = (draw::score(scorer, &batch, version).await?, draw::score(scorer, &other, version).await?);
    let mut found = Difference::default();
    for (low, high) in difference::rows(&batch, &scores.0).zip(difference::rows(&other, &scores.1)) {
        push((&low, &high), temperatures, &mut found);
    }
    if found.count == 0 {
        return Err(Obstacle::Unclear(format!("none of {} tokens has two ids to compare", batch.tokens())));
    }
    let tolerance = target.numeric.tolerance();
    let evidence = format!(
        "T log p at T {:.2} and {:.2} over {} entries: mean abs {:.1e}, max abs {:.1e} apart ({} allows {:.0e})",
        temperatures[0],
        temperatures[1],
        found.count,
        found.mean_abs(),
        found.max_abs,
        target.numeric,
        tolerance.max_abs
    );
    Ok(Finding::of(tolerance.holds(found.mean_abs(), found.max_abs), evidence))
}

fn push((low, high): (&Row, &Row), temperatures: [f64; 2], found: &mut Difference) {
    let pairs = low.scores.log_p.iter().zip(&high.scores.log_p);
    let distances: Vec<f64> = pairs.map(|(low, high)| temperatures[1] * high - temperatures[0] * low).collect();
    if low.support.is_exact() && distances.len() > 1 {
        let mean = distances.iter().sum::<f64>() / distances.len() as f64;
        distances.iter().for_each(|distance| found.push(distance - mean, low.at));
    }
}
