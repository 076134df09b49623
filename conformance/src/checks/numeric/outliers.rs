//! No token stands out.

use super::rows;
use crate::{
    check::{Check, FalseAlarm, Finding},
    difference::{self, Row},
    draw::{self, Shape},
    faults::report as faults,
    figure,
    obstacle::Obstacle,
    target::Target,
};

const ANSWERS: u32 = 4;
/// The largest term may be this many medians.
const MEDIANS: f64 = 50.0;

/// `numeric.outliers`.
pub const OUTLIERS: Check = Check {
    id: "numeric.outliers",
    demand: "the numeric term has one size: no position, no length, no token at which it is fifty times the usual one",
    cost: |target| draw::cost(&target.ask, ANSWERS, target.ask.max_new_tokens),
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/numeric_outliers.md"),
    cases: &["NovaSky-AI/SkyRL#2246", "AI-Hypercomputer/maxtext#5231", "NVIDIA/Megatron-LM#7562"],
    fault: faults::OUTLIER,
    extra_faults: &[faults::BLOCK_EDGE],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let shape = Shape { question: 0x0071, answers: ANSWERS, max_new_tokens: target.ask.max_new_tokens };
    let (_, rows) = rows(target, shape).await?;
    let size = |row: &Row| difference::over_supports(std::iter::once(row)).max_abs;
    let mut sizes: Vec<f64> = rows.iter().map(size).collect();
    sizes.sort_by(f64::total_cmp);
    let median = sizes[sizes.len() / 2];
    let floor = target.numeric.tolerance().max_abs;
    let bound = floor.max(MEDIANS * median);
    let outside: Vec<&Row> = rows.iter().filter(|row| size(row) > bound).collect();
    let places: Vec<String> =
        outside.iter().take(4).map(|row| format!("rollout {} token {}", row.at.rollout, row.at.position)).collect();
    let evidence = format!(
        "{} of {} tokens beyond {bound:.1e} ({MEDIANS:.0} medians of {median:.1e}, not below the {} bound); largest {:.1e}{}{}",
        outside.len(),
        rows.len(),
        target.numeric,
        sizes.last().copied().unwrap_or_default(),
        if places.is_empty() { "" } else { " at " },
        places.join(", ")
    );
    let mut finding = Finding::of(outside.is_empty(), evidence);
    finding.figures.extend(figure::numeric(&rows));
    Ok(finding)
}
