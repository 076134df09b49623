//! End to end: a short training as wrapped, held against on-policy training.

use crate::{
    check::{Check, FalseAlarm, Finding},
    course::{Look, Way},
    faults::course as faults,
    figure::Figure,
    obstacle::{AtPort, Obstacle},
    target::Target,
};

/// Divergence in noise floors, mean over the looks of the second half, that is red.
const FARTHEST: f64 = 3.0;
/// Standing still must be this many floors away, or closeness shows nothing.
const STILL: f64 = 5.0;

/// `end.divergence`, which runs only when asked for: it trains.
pub const DIVERGENCE: Check = Check {
    id: "end.divergence",
    demand: "a short training as wrapped stays within three noise floors of on-policy training",
    cost: |_| 0,
    false_alarm: FalseAlarm {
        probability: 1.2e-2,
        why: "eleven seeds of the built-in pair lie at 1.1 to 1.8 floors with a deviation of 0.18; Cantelli's bound at nine \
              deviations",
    },
    explain: include_str!("../../explain/end_divergence.md"),
    cases: &["marin-community/marin#8955", "verl-project/verl-recipe#125", "NVIDIA-NeMo/RL#4018"],
    fault: faults::UNCORRECTED,
    extra_faults: &[],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let course = target.course()?;
    let looks = |way| async move { course.looks(way).await.at("course") };
    let (wrapped, plain, still) = (looks(Way::Wrapped).await?, looks(Way::Plain).await?, looks(Way::Still).await?);
    let (near, far, controlled) = (distance(&wrapped)?, distance(&plain)?, distance(&still)?);
    let last = wrapped.last().map_or(0, |look| look.step);
    let evidence = format!(
        "{last} updates: {near:.2} noise floors from on-policy training as wrapped (red above {FARTHEST:.0}), {far:.2} without \
         correction, {controlled:.2} without training"
    );
    if controlled < STILL {
        return Err(Obstacle::Unclear(format!(
            "{evidence}: standing still is too near to show anything ({STILL:.0} needed)"
        )));
    }
    Ok(Finding::of(near <= FARTHEST, evidence)
        .with(curve("as wrapped", &wrapped))
        .with(curve("without correction", &plain)))
}

/// Mean over the second half of the looks.
fn distance(looks: &[Look]) -> Result<f64, Obstacle> {
    let last = looks.last().map_or(0, |look| look.step);
    let late: Vec<f64> = looks.iter().filter(|look| 2 * look.step >= last).map(|look| look.floors).collect();
    if late.is_empty() {
        return Err(Obstacle::Unclear("the training was not looked at".into()));
    }
    Ok(late.iter().sum::<f64>() / late.len() as f64)
}

fn curve(way: &str, looks: &[Look]) -> Figure {
    Figure::Points {
        title: format!("divergence from on-policy training, {way}"),
        x: "updates".into(),
        y: "noise floors".into(),
        points: looks.iter().map(|look| (look.step as f64, look.floors)).collect(),
    }
}
