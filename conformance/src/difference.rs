//! How far two log-probs of the same entries lie apart.

use lockstep_core::{Batch, score::RowLogProbs, score::ScoredAt, support::Support};

/// Where an entry stands: rollout and position within its sampled tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// Index of the rollout in its batch.
    pub rollout: usize,
    /// Index of the token in its answer.
    pub position: usize,
}

/// Sums of differences, in nats.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Difference {
    /// Entries compared.
    pub count: usize,
    /// Largest absolute difference.
    pub max_abs: f64,
    /// Where it stands.
    pub at: Place,
    sum: f64,
    sum_abs: f64,
    sum_squares: f64,
}

impl Difference {
    /// Adds one. A NaN makes every size NaN or infinite, so that no bound holds it.
    pub fn push(&mut self, difference: f64, at: Place) {
        let size = if difference.is_nan() { f64::INFINITY } else { difference.abs() };
        self.count += 1;
        self.sum += difference;
        self.sum_abs += size;
        self.sum_squares += size * size;
        if size > self.max_abs {
            (self.max_abs, self.at) = (size, at);
        }
    }

    /// Signed mean.
    pub fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }

    /// Mean absolute value.
    pub fn mean_abs(&self) -> f64 {
        self.sum_abs / self.count.max(1) as f64
    }

    /// Root of the mean square.
    pub fn rms(&self) -> f64 {
        (self.sum_squares / self.count.max(1) as f64).sqrt()
    }
}

/// One row of a batch with its scores.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Where it stands.
    pub at: Place,
    /// q.
    pub support: Support,
    /// log p on its entries.
    pub scores: RowLogProbs,
}

/// The rows of a batch, each with its scores; the scores must have been checked against the batch.
pub fn rows<'a>(batch: &'a Batch, scored: &'a ScoredAt) -> impl Iterator<Item = Row> + 'a {
    let rollouts = batch.rollouts().iter().zip(&scored.rollouts).enumerate();
    rollouts.flat_map(|(rollout, (answer, scores))| {
        let segments = answer.segments().iter().zip(scores);
        let pairs = segments.flat_map(|(segment, scores)| {
            let row = |position| (segment.behavior.row(position), scores.row(&segment.behavior, position));
            (0..segment.behavior.len()).map(row).collect::<Vec<_>>()
        });
        let placed = move |(position, (support, scores))| Row { at: Place { rollout, position }, support, scores };
        pairs.enumerate().map(placed)
    })
}

/// `log p - log q` over the entries of the rows that have a choice; rows of a single id carry no information.
pub fn over_supports<'a>(rows: impl Iterator<Item = &'a Row>) -> Difference {
    let mut found = Difference::default();
    for row in rows.filter(|row| has_choice(&row.support)) {
        let entries = row.support.log_q().iter().zip(&row.scores.log_p);
        entries.for_each(|(log_q, log_p)| found.push(log_p - log_q, row.at));
        if let Some((log_q, log_p)) = row.support.log_rest().zip(row.scores.log_rest) {
            found.push(log_p - log_q, row.at);
        }
    }
    found
}

/// `log p - log q` of the drawn tokens.
pub fn of_sampled<'a>(rows: impl Iterator<Item = &'a Row>) -> Difference {
    let mut found = Difference::default();
    rows.for_each(|row| found.push(row.scores.log_p_sampled - row.support.sampled().log_q, row.at));
    found
}

/// `log p_b - log p_a` of one batch scored twice, over every known entry.
pub fn between(batch: &Batch, a: &ScoredAt, b: &ScoredAt) -> Difference {
    let mut found = Difference::default();
    for (a, b) in rows(batch, a).zip(rows(batch, b)) {
        let entries = a.scores.log_p.iter().zip(&b.scores.log_p);
        entries.for_each(|(log_a, log_b)| found.push(log_b - log_a, a.at));
    }
    found
}

/// True when more than one token could have been drawn.
pub fn has_choice(support: &Support) -> bool {
    !support.is_exact() || support.ids().len() > 1
}
