//! Are tokens drawn as often as reported? The G-test of draws at fixed prefixes.
//!
//! p is that of the chi-square approximation. Measured on 60,000 honest tests of 256 draws over 24 ids, many cells near the
//! smallest: 6,153 below 1e-1, 635 below 1e-2, 78 below 1e-3, 8 below 1e-4, 1 below 1e-5, none below 1e-6.

use crate::gamma::chi_square_survival;
use lockstep_core::{Support, TokenId};
use std::collections::BTreeMap;

/// Cells that expect fewer draws are pooled.
pub const SMALLEST_CELL: f64 = 5.0;

/// One outcome: what was expected of it and how often it came.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cell {
    /// Draws expected.
    pub expected: f64,
    /// Draws seen.
    pub observed: f64,
}

/// `G = 2 sum O ln(O / E)` over k cells, divided by Williams' factor `1 + (n sum 1 / E - 1) / (6 n (k - 1))`, which takes
/// out what small cells add to it, and how surprising it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GTest {
    /// G.
    pub statistic: f64,
    /// Cells less one, summed over prefixes.
    pub freedom: u32,
    /// `P(G or more)` under the chi-square distribution.
    pub p: f64,
}

/// Draws at one prefix. What is expected is the mean of the reports, so that reports may differ by rounding.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Draws {
    cells: BTreeMap<Option<TokenId>, Cell>,
    reports: Vec<BTreeMap<TokenId, f64>>,
}

impl Draws {
    /// Adds a draw with its report; a drawn token whose log-prob is unknown counts as the rest.
    pub fn push(&mut self, support: &Support) {
        let known = support.ids().iter().copied().zip(support.log_q().iter().map(|log_q| log_q.exp()));
        let report: BTreeMap<TokenId, f64> = known.collect();
        for (&token, &q) in &report {
            self.cells.entry(Some(token)).or_default().expected += q;
        }
        if let Some(log_rest) = support.log_rest() {
            self.cells.entry(None).or_default().expected += log_rest.exp();
        }
        let token = support.sampled().token;
        let cell = Some(token).filter(|token| report.contains_key(token));
        self.cells.entry(cell).or_default().observed += 1.0;
        self.reports.push(report);
    }

    /// Every outcome with its cell; `None` is what the reports do not name.
    pub fn cells(&self) -> impl Iterator<Item = (Option<TokenId>, Cell)> + '_ {
        self.cells.iter().map(|(&id, &cell)| (id, cell))
    }

    /// Mean total variation between a report and the mean report: 0 when all say the same.
    pub fn spread(&self) -> f64 {
        let n = self.reports.len().max(1) as f64;
        let distance = |report: &BTreeMap<TokenId, f64>| {
            let entries = self.cells.iter().filter_map(|(token, cell)| Some((token.as_ref()?, cell)));
            let gaps = entries.map(|(token, cell)| (report.get(token).unwrap_or(&0.0) - cell.expected / n).abs());
            gaps.sum::<f64>() / 2.0
        };
        self.reports.iter().map(distance).sum::<f64>() / n
    }

    /// The cells, those below [`SMALLEST_CELL`] pooled into one, and that one into the next smallest if it is too small.
    fn pooled(&self) -> Vec<Cell> {
        let mut cells: Vec<Cell> = self.cells.values().copied().collect();
        cells.sort_by(|a, b| b.expected.total_cmp(&a.expected));
        let large = cells.iter().take_while(|cell| cell.expected >= SMALLEST_CELL).count();
        let mut rest = cells.split_off(large).into_iter().fold(Cell::default(), add);
        if rest.expected < SMALLEST_CELL {
            rest = add(rest, cells.pop().unwrap_or_default());
        }
        cells.push(rest);
        cells
    }
}

fn add(a: Cell, b: Cell) -> Cell {
    Cell { expected: a.expected + b.expected, observed: a.observed + b.observed }
}

/// The G-test over several prefixes at once.
pub fn g_test(prefixes: &[Draws]) -> GTest {
    let (mut statistic, mut freedom) = (0.0, 0);
    for draws in prefixes {
        let cells = draws.pooled();
        if cells.len() > 1 {
            statistic += g(&cells) / williams(&cells);
            freedom += cells.len() as u32 - 1;
        }
    }
    GTest { statistic, freedom, p: chi_square_survival(statistic, freedom) }
}

/// Bins of the pooled test, at most.
const BINS: usize = 20;

/// The G-test of draws that share no prefix: `u = Q(more likely ids) + v q(drawn id)`, v uniform, is uniform whatever q is
/// (Rosenblatt 1952), and those of one answer are independent of each other. Each draw comes with its v; supports that are
/// not known whole, or leave no choice, are left out. `None` where fewer than ten draws are left.
pub fn pooled(draws: impl Iterator<Item = (Support, f64)>) -> Option<(GTest, Vec<Cell>)> {
    let open = draws.filter(|(support, _)| support.is_exact() && support.ids().len() > 1);
    let ranks: Vec<f64> = open.map(|(support, v)| rank(&support, v)).collect();
    let bins = BINS.min(ranks.len() / SMALLEST_CELL as usize);
    if bins < 2 {
        return None;
    }
    let expected = ranks.len() as f64 / bins as f64;
    let mut cells = vec![Cell { expected, observed: 0.0 }; bins];
    for u in ranks {
        cells[((u * bins as f64) as usize).min(bins - 1)].observed += 1.0;
    }
    let (statistic, freedom) = (g(&cells) / williams(&cells), bins as u32 - 1);
    Some((GTest { statistic, freedom, p: chi_square_survival(statistic, freedom) }, cells))
}

fn rank(support: &Support, v: f64) -> f64 {
    let token = support.sampled().token;
    let mut entries: Vec<(TokenId, f64)> = support.ids().iter().copied().zip(support.log_q().iter().copied()).collect();
    entries.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let before: f64 = entries.iter().take_while(|(id, _)| *id != token).map(|(_, log_q)| log_q.exp()).sum();
    before + v * support.sampled().log_q.exp()
}

fn g(cells: &[Cell]) -> f64 {
    let terms = cells.iter().filter(|cell| cell.observed > 0.0);
    2.0 * terms.map(|cell| cell.observed * (cell.observed / cell.expected).ln()).sum::<f64>()
}

fn williams(cells: &[Cell]) -> f64 {
    let n: f64 = cells.iter().map(|cell| cell.observed).sum();
    let inverse: f64 = cells.iter().map(|cell| n / cell.expected).sum();
    1.0 + (inverse - 1.0) / (6.0 * n * (cells.len() as f64 - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::unit;

    fn support(token: u32, q: &[f64]) -> Support {
        let ids = (0..q.len() as u32).map(TokenId).collect();
        Support::exact(TokenId(token), ids, q.iter().map(|q| q.ln()).collect()).unwrap()
    }

    fn draw(q: &[f64], u: f64) -> u32 {
        let mut below = 0.0;
        let inside = q.iter().take_while(|&&q| {
            below += q;
            below <= u
        });
        (inside.count() as u32).min(q.len() as u32 - 1)
    }

    fn test(truth: &[f64], reported: &[f64], seed: u64) -> GTest {
        let mut draws = Draws::default();
        (0..500).for_each(|n| draws.push(&support(draw(truth, unit(&[seed, n])), reported)));
        g_test(&[draws])
    }

    #[test]
    fn p_is_about_uniform_on_honest_draws_and_tiny_on_others() {
        let q = [0.5, 0.3, 0.15, 0.04, 0.006, 0.004];
        let below = |p: f64| (0..600).filter(|&seed| test(&q, &q, seed).p < p).count();
        let (one_in_ten, one_in_a_hundred) = (below(0.1), below(0.01));
        assert!((40..=85).contains(&one_in_ten), "{one_in_ten} of 600 below 0.1");
        assert!((0..=16).contains(&one_in_a_hundred), "{one_in_a_hundred} of 600 below 0.01");
        let cut = [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95];
        assert!((0..20).all(|seed| test(&cut, &q, seed).p < 1e-6));
    }

    #[test]
    fn draws_at_many_prefixes_are_judged_together() {
        let q = |n: u64| {
            let odds = [1.0, unit(&[n, 1]) + 0.1, unit(&[n, 2]) + 0.1];
            odds.map(|odd| odd / odds.iter().sum::<f64>())
        };
        let p = |seed: u64, count: u64, truth: fn([f64; 3]) -> [f64; 3]| {
            let drawn = |n| support(draw(&truth(q(n)), unit(&[seed, n])), &q(n));
            pooled((0..count).map(|n| (drawn(n), unit(&[seed, n, 7])))).unwrap().0.p
        };
        let below = (0..600).filter(|&seed| p(seed, 400, |q| q) < 0.01).count();
        assert!((0..=16).contains(&below), "{below} of 600 below 0.01");
        let sharper = |q: [f64; 3]| {
            let squares = q.map(|q| q * q);
            squares.map(|square| square / squares.iter().sum::<f64>())
        };
        assert!((0..20).all(|seed| p(seed, 4_000, sharper) < 1e-6));
        assert!(pooled((0..9).map(|n| (support(0, &q(n)), 0.5))).is_none());
    }

    #[test]
    fn small_cells_are_pooled() {
        let found = test(&[0.5, 0.499, 0.001], &[0.5, 0.499, 0.001], 1);
        assert_eq!(found.freedom, 1);
        assert_eq!(test(&[1.0], &[1.0], 1).freedom, 0);
    }

    #[test]
    fn reports_that_contradict_each_other_have_a_spread() {
        let mut draws = Draws::default();
        [0, 1, 0, 1].iter().for_each(|&token| draws.push(&Support::singleton(TokenId(token))));
        assert_eq!(draws.spread(), 0.5);
    }
}
