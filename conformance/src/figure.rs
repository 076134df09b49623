//! What a report can draw: the numbers behind a verdict. Draws nothing.

use crate::difference::{Place, Row};
use serde::{Deserialize, Serialize};

/// Rows of a table of tokens, at most.
const WORST: usize = 12;
/// Bars of a histogram.
const BARS: usize = 21;

/// One picture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Figure {
    /// Counts of values, by interval.
    Histogram {
        /// What is counted.
        title: String,
        /// Unit of the values.
        unit: String,
        /// Where the first interval begins.
        low: f64,
        /// Where the last one ends.
        high: f64,
        /// Values in each interval, all of one width.
        counts: Vec<u64>,
    },
    /// A value by place.
    Points {
        /// What is shown.
        title: String,
        /// Name of the horizontal axis.
        x: String,
        /// Name of the vertical axis.
        y: String,
        /// The points, by x.
        points: Vec<(f64, f64)>,
    },
    /// Outcomes expected and seen.
    Cells {
        /// What is counted.
        title: String,
        /// Name, expected number and seen number of each.
        cells: Vec<(String, f64, f64)>,
    },
    /// The tokens that lie furthest apart.
    Tokens {
        /// What is shown.
        title: String,
        /// The tokens, worst first.
        tokens: Vec<TokenRow>,
    },
    /// Runs of tokens by the weights that drew them.
    Spans {
        /// What is shown.
        title: String,
        /// The answers, each a list of runs.
        answers: Vec<Vec<Run>>,
    },
}

/// One token of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenRow {
    /// Index of the rollout in its batch.
    pub rollout: usize,
    /// Index of the token in its answer.
    pub position: usize,
    /// Its id.
    pub token: u32,
    /// log q as reported, nats.
    pub log_q: f64,
    /// log p under the trainer, nats.
    pub log_p: f64,
}

/// A run of tokens on a time line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// What the label says.
    pub label: String,
    /// Index of its first token.
    pub start: usize,
    /// Index after its last token.
    pub end: usize,
}

/// Histogram of some values, symmetric about zero.
pub(crate) fn histogram(title: &str, values: &[f64]) -> Figure {
    let width = values.iter().filter(|v| v.is_finite()).map(|v| v.abs()).fold(1e-9, f64::max);
    let mut counts = vec![0; BARS];
    for value in values.iter().filter(|value| value.is_finite()) {
        let place = ((value / width + 1.0) / 2.0 * BARS as f64) as usize;
        counts[place.min(BARS - 1)] += 1;
    }
    Figure::Histogram { title: title.into(), unit: "nats".into(), low: -width, high: width, counts }
}

/// The numeric term of the drawn tokens: its histogram, its size by position, and the tokens it is largest for.
pub(crate) fn numeric(rows: &[Row]) -> [Figure; 3] {
    let term = |row: &Row| row.scores.log_p_sampled - row.support.sampled().log_q;
    let values: Vec<f64> = rows.iter().map(term).collect();
    [histogram("log p_s - log q of the drawn tokens", &values), by_position(rows, term), worst(rows, term)]
}

/// Mean absolute value by position in the answer.
pub(crate) fn by_position(rows: &[Row], term: impl Fn(&Row) -> f64) -> Figure {
    let last = rows.iter().map(|row| row.at.position).max().unwrap_or(0);
    let mean = |position: usize| {
        let here: Vec<f64> = rows.iter().filter(|row| row.at.position == position).map(|row| term(row).abs()).collect();
        (!here.is_empty()).then(|| (position as f64, here.iter().sum::<f64>() / here.len() as f64))
    };
    Figure::Points {
        title: "size of the numeric term by position".into(),
        x: "position in the answer".into(),
        y: "mean abs, nats".into(),
        points: (0..=last).filter_map(mean).filter(|point| point.1.is_finite()).collect(),
    }
}

fn worst(rows: &[Row], term: impl Fn(&Row) -> f64) -> Figure {
    let mut order: Vec<&Row> = rows.iter().collect();
    order.sort_by(|a, b| term(b).abs().total_cmp(&term(a).abs()));
    let token = |row: &&Row| {
        let Place { rollout, position } = row.at;
        let sampled = row.support.sampled();
        let log_p = row.scores.log_p_sampled;
        TokenRow { rollout, position, token: sampled.token.0, log_q: sampled.log_q, log_p }
    };
    let tokens = order.iter().filter(|row| term(row).is_finite()).take(WORST).map(token).collect();
    Figure::Tokens { title: "tokens furthest apart".into(), tokens }
}
