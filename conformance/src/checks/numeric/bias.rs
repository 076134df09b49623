//! The numeric term has no direction.

use super::rows;
use crate::difference::Row;
use crate::{
    check::{Check, FalseAlarm, Finding},
    draw::{self, Shape},
    faults::report as faults,
    figure::Figure,
    obstacle::Obstacle,
    target::Target,
    tolerance::NumericClass,
};

const ANSWERS: u32 = 4;
/// Standard errors at which the mean of the drawn tokens is no accident.
const ERRORS: f64 = 7.0;
/// Points in the picture.
const POINTS: usize = 400;

/// `numeric.bias`.
pub const BIAS: Check = Check {
    id: "numeric.bias",
    demand: "the numeric term has no direction: it neither follows log q nor prefers the token that was drawn",
    cost: |target| draw::cost(&target.ask, ANSWERS, target.ask.max_new_tokens),
    false_alarm: FalseAlarm { probability: 1e-9, why: "the mean over drawn tokens is red at seven standard errors" },
    explain: include_str!("../../../explain/numeric_bias.md"),
    cases: &["GMISWE/tinker-cloud#26", "huggingface/trl#7269", "AI-Hypercomputer/maxtext#5231"],
    fault: faults::SHARPENED_REPORT,
    extra_faults: &[faults::DRAWN_OVERSTATED],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let shape = Shape { question: 0xb1a5, answers: ANSWERS, max_new_tokens: target.ask.max_new_tokens };
    let (_, rows) = rows(target, shape).await?;
    let slope = slope(&rows);
    let (mean, error) = preference(&rows);
    let (steep, floor) = (largest_slope(target.numeric), target.numeric.tolerance().mean_abs / 4.0);
    let evidence = format!(
        "{} tokens: log p_s goes with log q at slope {slope:.5} (1 within {steep}); the drawn token's term lies {mean:.1e} from \
         the expected one, standard error {error:.1e}",
        rows.len(),
    );
    let met = (slope - 1.0).abs() <= steep && mean.abs() <= floor.max(ERRORS * error);
    let points = rows.iter().take(POINTS).map(|row| (row.support.sampled().log_q, row.scores.log_p_sampled));
    let mut points: Vec<(f64, f64)> = points.filter(|(_, log_p)| log_p.is_finite()).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (x, y) = ("log q, nats".to_owned(), "log p_s, nats".to_owned());
    Ok(Finding::of(met, evidence).with(Figure::Points {
        title: "log p_s against log q of drawn tokens".into(),
        x,
        y,
        points,
    }))
}

fn largest_slope(class: NumericClass) -> f64 {
    match class {
        NumericClass::F32 => 1e-3,
        NumericClass::Bf16 => 0.02,
        NumericClass::Fp8Int8 => 0.06,
        NumericClass::Int4 => 0.2,
    }
}

/// Slope of log p_s on log q over the entries of each support, both less their means.
fn slope(rows: &[Row]) -> f64 {
    let (mut covariance, mut variance) = (0.0, 0.0);
    for row in rows {
        let (q, p) = (row.support.log_q(), &row.scores.log_p);
        let n = q.len().max(1) as f64;
        let (mean_q, mean_p) = (q.iter().sum::<f64>() / n, p.iter().sum::<f64>() / n);
        for (q, p) in q.iter().zip(p) {
            covariance += (q - mean_q) * (p - mean_p);
            variance += (q - mean_q) * (q - mean_q);
        }
    }
    // Supports of equally likely ids have no slope to be wrong about.
    if variance > 1e-9 { covariance / variance } else { 1.0 }
}

/// Mean distance of the drawn token's term from the mean of the term under q, and its standard error.
fn preference(rows: &[Row]) -> (f64, f64) {
    let surplus = |row: &Row| {
        let terms = row.support.log_q().iter().zip(&row.scores.log_p);
        let expected: f64 = terms.map(|(log_q, log_p)| log_q.exp() * (log_p - log_q)).sum();
        row.scores.log_p_sampled - row.support.sampled().log_q - expected
    };
    let values: Vec<f64> = rows.iter().filter(|row| row.support.is_exact()).map(surplus).collect();
    let n = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / n;
    (mean, (variance / n).sqrt())
}
