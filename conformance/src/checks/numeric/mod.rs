//! The numeric term: `log p_s - log q` at equal weights.

pub mod batch;
pub mod bias;
pub mod drift;
pub mod outliers;
pub mod prefill;
pub mod size;
pub mod turns;
pub mod updates;

use crate::{
    difference::{self, Row},
    draw::{self, Shape},
    obstacle::Obstacle,
    target::Target,
};
use lockstep_core::Batch;

/// Answers, and those of their rows that have a choice, scored at the version that drew them.
async fn rows(target: &Target, shape: Shape) -> Result<(Batch, Vec<Row>), Obstacle> {
    let scorer = target.scorer()?;
    let batch = draw::taken(target, shape).await?;
    let scored = draw::score(scorer.as_ref(), &batch, draw::version_of(&batch)?).await?;
    let rows: Vec<Row> = difference::rows(&batch, &scored).filter(|row| difference::has_choice(&row.support)).collect();
    if rows.is_empty() {
        return Err(Obstacle::Unclear(format!("none of {} tokens had a choice", batch.tokens())));
    }
    Ok((batch, rows))
}

/// Mean size of the term over the entries of a row.
fn size_of(row: &Row) -> f64 {
    difference::over_supports(std::iter::once(row)).mean_abs()
}
