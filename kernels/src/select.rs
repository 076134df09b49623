//! A row ranked by (value descending, id ascending), sorted only as far as somebody looked.

use crate::truncate::Logit;
use std::cmp::Ordering;

/// Finite entries of a row; the first `sorted` are the largest, in order.
pub(crate) struct Ranked {
    entries: Vec<(f64, u32)>,
    sorted: usize,
}

/// The house order: larger value first, ties to the lower id. Total, because NaN never gets here.
fn rank(a: &(f64, u32), b: &(f64, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

impl Ranked {
    /// Takes the entries of `row` that are at least `floor`; negative infinity is never an entry.
    pub(crate) fn above<T: Logit>(row: &[T], floor: f64) -> Self {
        let values = row.iter().enumerate().map(|(id, x)| (x.to_f64() + 0.0, id as u32));
        let entries = values.filter(|(x, _)| *x >= floor && *x > f64::NEG_INFINITY).collect();
        Self { entries, sorted: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The first `n` entries in order, sorting no more than needed.
    pub(crate) fn first(&mut self, n: usize) -> &[(f64, u32)] {
        let n = n.min(self.entries.len());
        if n > self.sorted {
            self.part(n);
            self.entries[self.sorted..n].sort_unstable_by(rank);
            self.sorted = n;
        }
        &self.entries[..n]
    }

    /// The first `n` entries in no particular order.
    pub(crate) fn set(&mut self, n: usize) -> &mut [(f64, u32)] {
        let n = n.min(self.entries.len());
        if n > self.sorted {
            self.part(n);
        }
        &mut self.entries[..n]
    }

    fn part(&mut self, n: usize) {
        let rest = &mut self.entries[self.sorted..];
        let k = n - self.sorted;
        if k < rest.len() {
            rest.select_nth_unstable_by(k - 1, rank);
        }
    }
}
