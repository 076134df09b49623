//! Leases: whoever holds something says so again before the time is up. The clock comes as an argument.

use std::collections::BTreeMap;

/// Who holds a lease, and until when.
#[derive(Debug, Clone)]
pub struct Leases<H> {
    length: u64,
    ends: BTreeMap<H, u64>,
}

impl<H: Ord + Clone> Leases<H> {
    /// Leases of `length` milliseconds.
    pub fn new(length: u64) -> Self {
        Self { length, ends: BTreeMap::new() }
    }

    /// A sign of life at `now`, in milliseconds: begins a lease or makes it longer.
    pub fn renew(&mut self, holder: H, now: u64) {
        self.ends.insert(holder, now.saturating_add(self.length));
    }

    /// Gives a lease back.
    pub fn end(&mut self, holder: &H) {
        self.ends.remove(holder);
    }

    /// Whether a lease runs at `now`.
    pub fn runs(&self, holder: &H, now: u64) -> bool {
        self.ends.get(holder).is_some_and(|&end| now < end)
    }

    /// Ends the leases that are over at `now`, and says whose they were.
    pub fn expire(&mut self, now: u64) -> Vec<H> {
        let over = |end: &u64| *end <= now;
        let holders = self.ends.iter().filter(|(_, end)| over(end)).map(|(holder, _)| holder.clone()).collect();
        self.ends.retain(|_, end| !over(end));
        holders
    }

    /// When the next lease ends.
    pub fn next(&self) -> Option<u64> {
        self.ends.values().min().copied()
    }
}
