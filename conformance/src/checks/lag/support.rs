//! The trainer scores over the support that was recorded.

use crate::{
    check::{Check, FalseAlarm, Finding},
    difference::{self, Row},
    draw::{self, Shape},
    faults::scorer as faults,
    obstacle::Obstacle,
    target::Target,
};

/// How far the mass of a support may lie from 1.
const MASS: f64 = 1e-3;

/// `lag.support`.
pub const SUPPORT: Check = Check {
    id: "lag.support",
    demand: "the trainer's probabilities over a kept support add up to 1: replayed, not over the vocabulary, not over a nucleus of its own",
    cost: |target| draw::cost(&target.ask, 1, target.ask.max_new_tokens),
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/lag_support.md"),
    cases: &["huggingface/trl#6789", "huggingface/trl#7269", "NVIDIA-NeMo/RL#4154", "radixark/miles#3330"],
    fault: faults::SCORED_OVER_VOCABULARY,
    extra_faults: &[faults::OWN_NUCLEUS, faults::TEMPERED_AFTER_SOFTMAX],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let shape = Shape { question: 0x15, answers: 1, max_new_tokens: target.ask.max_new_tokens };
    let scorer = target.scorer()?.as_ref();
    let batch = draw::sample(target, shape).await?;
    let scored = draw::score(scorer, &batch, draw::version_of(&batch)?).await?;
    let exact = |row: &Row| row.support.is_exact() && row.support.ids().len() > 1;
    let rows: Vec<Row> = difference::rows(&batch, &scored).filter(exact).collect();
    if rows.is_empty() {
        return Err(Obstacle::Unclear(format!("none of {} tokens has an exact support of two ids", batch.tokens())));
    }
    let mass = |row: &Row| row.scores.log_p.iter().map(|log_p| log_p.exp()).sum::<f64>();
    let wrong = rows.iter().filter(|row| (mass(row) - 1.0).abs() > MASS).count();
    let empty = rows.iter().flat_map(|row| &row.scores.log_p).filter(|log_p| !log_p.is_finite()).count();
    let least = rows.iter().map(mass).fold(f64::INFINITY, f64::min);
    let evidence = format!(
        "p over {} supports: mass at least {least:.4}, {wrong} not 1 within {MASS:.0e}, {empty} entries without probability",
        rows.len()
    );
    Ok(Finding::of(wrong == 0 && empty == 0, evidence))
}
