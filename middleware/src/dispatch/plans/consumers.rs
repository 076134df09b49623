//! The trainers that ask for batches: one a data-parallel rank, each on a lease.

use super::PlansError;
use lockstep_core::dispatch::lease::Leases;
use std::collections::BTreeMap;

/// A trainer process: its name, and which data-parallel rank of how many it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Consumer {
    /// Who it is.
    pub name: String,
    /// From 0.
    pub rank: u32,
    /// At least 1.
    pub ranks: u32,
}

#[derive(Debug)]
pub(super) struct Consumers {
    ranks: Option<u32>,
    holders: BTreeMap<u32, String>,
    leases: Leases<(u32, String)>,
}

impl Consumers {
    pub(super) fn new(lease: u64) -> Self {
        Self { ranks: None, holders: BTreeMap::new(), leases: Leases::new(lease) }
    }

    /// Begins a lease or makes it longer. `begun`: some ranks have reported their part of a plan, and others have not, so that
    /// the number of ranks stays.
    pub(super) fn renew(&mut self, consumer: &Consumer, now: u64, begun: bool) -> Result<(), PlansError> {
        let Consumer { name, rank, ranks } = consumer.clone();
        let over = self.leases.expire(now);
        over.iter().for_each(|(rank, _)| drop(self.holders.remove(rank)));
        if self.holders.is_empty() && !begun {
            self.ranks = None;
        }
        let expected = self.ranks.unwrap_or(ranks);
        if rank >= ranks || ranks != expected {
            return Err(PlansError::Rank { rank, ranks, expected });
        }
        self.ranks = Some(ranks);
        self.holders.entry(rank).or_insert_with(|| name.clone());
        self.holds(consumer)?;
        self.leases.renew((rank, name), now);
        Ok(())
    }

    /// Number of ranks, as far as any has come.
    pub(super) fn ranks(&self) -> u32 {
        self.ranks.unwrap_or(1)
    }

    /// Whether a consumer holds its rank.
    pub(super) fn holds(&self, consumer: &Consumer) -> Result<(), PlansError> {
        let &Consumer { rank, ranks, .. } = consumer;
        match self.holders.get(&rank) {
            Some(holder) if *holder == consumer.name => Ok(()),
            Some(holder) => Err(PlansError::Held { rank, ranks, holder: holder.clone() }),
            None => Err(PlansError::Held { rank, ranks, holder: "nobody".into() }),
        }
    }
}
