//! Moving the weights until it shows, and how much of the move a sampler shows.

use crate::{
    difference::{self, Difference, Row},
    draw,
    obstacle::Obstacle,
    target::Target,
    training,
};
use lockstep_core::{
    Batch, WeightVersion,
    dlc::Rule,
    score::{ScoredAt, select},
};

/// At most this many updates to move the log-probs visibly.
const STEPS: u32 = 8;
/// Rounding of a log-prob to f32.
const SMALLEST_CHANGE: f64 = 1e-5;

/// Takes steps on the probe until the log-probs of its watched rows have moved by `resolution` standard errors of the noise.
pub(super) async fn weights(
    target: &Target,
    probe: &Batch,
    (old, resolution): (WeightVersion, f64),
    watched: impl Fn(&Row) -> bool,
) -> Result<WeightVersion, Obstacle> {
    let scorer = target.scorer()?.as_ref();
    let at_old = draw::score(scorer, probe, old).await?;
    let rows: Vec<Row> = difference::rows(probe, &at_old).filter(|row| watched(row)).collect();
    let noise = difference::over_supports(rows.iter()).rms();
    let log_s = select(probe, std::slice::from_ref(&at_old))?;
    let mut change = Difference::default();
    for _ in 0..STEPS {
        let new = training::step(target, probe, &log_s, Rule::Uncorrected).await?.after;
        change = Shown::of(probe, (&at_old, &draw::score(scorer, probe, new).await?), &watched).change;
        if new != old && change.max_abs > SMALLEST_CHANGE && errors(&change, noise) > resolution {
            return Ok(new);
        }
    }
    Err(Obstacle::Unclear(format!(
        "{STEPS} steps moved {} log-probs by rms {:.1e}, max {:.1e}: too little beside a noise of {noise:.1e}",
        change.count,
        change.rms(),
        change.max_abs
    )))
}

/// A change in standard errors of the noise.
pub(super) fn errors(change: &Difference, noise: f64) -> f64 {
    change.rms() * (change.count as f64).sqrt() / noise.max(f64::MIN_POSITIVE)
}

/// The rows of a batch that leave a choice, each at the old weights and at the new ones.
pub(super) fn pairs<'a>(
    batch: &'a Batch,
    (at_old, at_new): (&'a ScoredAt, &'a ScoredAt),
) -> impl Iterator<Item = (Row, Row)> + 'a {
    let pairs = difference::rows(batch, at_old).zip(difference::rows(batch, at_new));
    pairs.filter(|(old, _)| difference::has_choice(&old.support))
}

/// How a sampler's log-probs stand between two versions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown {
    /// The coefficient of `log p_new - log p_old` in `log q - log p_old`: 0 for the old weights, 1 for the new ones.
    pub(super) share: f64,
    /// `log p_new - log p_old`.
    pub(super) change: Difference,
    /// `log p_new - log q`.
    pub(super) residue: Difference,
}

impl Shown {
    /// Over the watched rows of a batch.
    pub(super) fn of(batch: &Batch, scores: (&ScoredAt, &ScoredAt), watched: impl Fn(&Row) -> bool) -> Self {
        let pairs: Vec<(Row, Row)> = pairs(batch, scores).filter(|(old, _)| watched(old)).collect();
        Self::over(&pairs)
    }

    /// Over rows, each at the old weights and at the new ones.
    pub(super) fn over<'a>(pairs: impl IntoIterator<Item = &'a (Row, Row)>) -> Self {
        let (mut shown, mut whole) = (0.0, 0.0);
        let (mut change, mut residue) = (Difference::default(), Difference::default());
        for (old, new) in pairs {
            let scores = old.scores.log_p.iter().zip(&new.scores.log_p);
            for (log_q, (log_old, log_new)) in old.support.log_q().iter().zip(scores) {
                shown += (log_q - log_old) * (log_new - log_old);
                whole += (log_new - log_old) * (log_new - log_old);
                change.push(log_new - log_old, old.at);
                residue.push(log_new - log_q, old.at);
            }
        }
        Self { share: shown / whole, change, residue }
    }
}
