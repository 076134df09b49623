//! The numeric term does not grow along the answer.

use super::{rows, size_of};
use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::question,
    difference::Row,
    draw::{self, Shape},
    faults::report as faults,
    figure,
    obstacle::Obstacle,
    target::Target,
};

/// Answers are this many times as long as elsewhere.
const LONGER: u32 = 4;
/// Rank correlation with the position, in standard errors, that is no accident.
const ERRORS: f64 = 6.0;
/// Growth from the first third to the last that matters.
const GROWTH: f64 = 2.0;

/// `numeric.drift`.
pub const DRIFT: Check = Check {
    id: "numeric.drift",
    demand: "the numeric term does not grow with the position in the answer",
    cost: |target| draw::cost(&target.ask, 1, LONGER * target.ask.max_new_tokens),
    false_alarm: FalseAlarm {
        probability: 1e-9,
        why: "rank correlation with the position, red at six standard errors",
    },
    explain: include_str!("../../../explain/numeric_drift.md"),
    cases: &["vllm-project/vime#64", "verl-project/verl#7519", "NVIDIA-NeMo/RL#4018"],
    fault: faults::COARSE_ROTARY,
    extra_faults: &[faults::LATE_NOISE],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let target = question::listing(target);
    let shape = Shape { question: 0xd41f, answers: 1, max_new_tokens: LONGER * target.ask.max_new_tokens };
    let (_, rows) = rows(&target, shape).await?;
    let last = rows.iter().map(|row| row.at.position).max().unwrap_or(0);
    let mean = |part: &dyn Fn(usize) -> bool| {
        let sizes: Vec<f64> = rows.iter().filter(|row| part(row.at.position)).map(size_of).collect();
        sizes.iter().sum::<f64>() / sizes.len().max(1) as f64
    };
    let (early, late) = (mean(&|position| 3 * position <= last), mean(&|position| 3 * position >= 2 * last));
    let errors = rank_correlation(&rows) * (rows.len() as f64 - 1.0).max(0.0).sqrt();
    let floor = target.numeric.tolerance().mean_abs / 20.0;
    let evidence = format!(
        "{} tokens to position {last}: mean abs {early:.1e} in the first third, {late:.1e} in the last; rank correlation with \
         the position {errors:.1} standard errors (red above {ERRORS:.0}, {GROWTH:.0} times and {floor:.0e})",
        rows.len()
    );
    let grows = errors > ERRORS && late > GROWTH * early && late > floor;
    Ok(Finding::of(!grows, evidence).with(figure::by_position(&rows, size_of)))
}

/// Spearman's rank correlation of size and position, ties sharing their mean rank.
fn rank_correlation(rows: &[Row]) -> f64 {
    let positions = ranks(&rows.iter().map(|row| row.at.position as f64).collect::<Vec<_>>());
    let sizes = ranks(&rows.iter().map(size_of).collect::<Vec<_>>());
    let mean = (rows.len() as f64 - 1.0) / 2.0;
    let sum =
        |f: &dyn Fn(f64, f64) -> f64| positions.iter().zip(&sizes).map(|(&a, &b)| f(a - mean, b - mean)).sum::<f64>();
    let (ab, aa, bb) = (sum(&|a, b| a * b), sum(&|a, _| a * a), sum(&|_, b| b * b));
    if aa * bb > 0.0 { ab / (aa * bb).sqrt() } else { 0.0 }
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    while start < order.len() {
        let value = values[order[start]];
        let tied = order[start..].iter().take_while(|&&at| values[at] == value).count();
        for &at in &order[start..start + tied] {
            ranks[at] = start as f64 + (tied as f64 - 1.0) / 2.0;
        }
        start += tied;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::ranks;

    #[test]
    fn ties_share_their_mean_rank() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [2.5, 0.0, 2.5, 1.0]);
    }
}
