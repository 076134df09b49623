//! A set of plan numbers, kept as ranges: plans are numbered in a row, so a long run is one range.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Numbers by the first and the last of each unbroken range.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Intervals(BTreeMap<u64, u64>);

impl Intervals {
    pub(super) fn contains(&self, number: u64) -> bool {
        self.0.range(..=number).next_back().is_some_and(|(_, &last)| number <= last)
    }

    pub(super) fn insert(&mut self, number: u64) {
        if self.contains(number) {
            return;
        }
        let before = number.checked_sub(1).and_then(|end| self.0.range(..=end).next_back());
        let first = before.filter(|&(_, &last)| last + 1 == number).map_or(number, |(&first, _)| first);
        let after = number.checked_add(1).and_then(|next| self.0.remove(&next));
        self.0.insert(first, after.unwrap_or(number));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|(&first, &last)| first..=last)
    }

    pub(super) fn extend(&mut self, other: &Self) {
        other.iter().for_each(|number| self.insert(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_any_order_join_into_ranges() {
        let mut set = Intervals::default();
        [5, 3, u64::MAX, 4, 9, 0, 4, 1].into_iter().for_each(|number| set.insert(number));
        assert_eq!(set.0, BTreeMap::from([(0, 1), (3, 5), (9, 9), (u64::MAX, u64::MAX)]));
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 1, 3, 4, 5, 9, u64::MAX]);
        let inside: Vec<u64> = (0..12).filter(|&number| set.contains(number)).collect();
        assert_eq!(inside, [0, 1, 3, 4, 5, 9]);
    }
}
