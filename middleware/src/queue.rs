//! What was generated and what was trained on, as a ledger tells it.

use crate::ledger::{self, LedgerError, Record};
use async_trait::async_trait;
use lockstep_core::{
    RolloutId,
    delta::FinishReason,
    ports::{Outcome, Outcomes, PortResult, Queue, QueueEntry},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// A ledger read as a queue.
#[derive(Debug, Clone, PartialEq)]
pub struct LedgerQueue {
    generated: Vec<QueueEntry>,
    consumed: Vec<Vec<QueueEntry>>,
    outcomes: Outcomes,
}

impl LedgerQueue {
    /// Reads the ledger of a directory.
    ///
    /// # Errors
    /// A ledger that cannot be read or is damaged.
    pub fn read(directory: &Path) -> Result<Self, LedgerError> {
        Ok(Self::of(&ledger::read(directory)?))
    }

    fn of(records: &[Record]) -> Self {
        let mut lengths = BTreeMap::<RolloutId, u32>::new();
        for record in records {
            match record {
                Record::PlanOpened { requests, .. } => lengths.extend(requests.iter().map(|request| (request.id, 0))),
                Record::Delta(delta) => *lengths.entry(delta.rollout).or_default() += delta.columns.tokens.len() as u32,
                _ => {}
            }
        }
        let entry = |rollout: &RolloutId| QueueEntry {
            rollout: *rollout,
            length: lengths.get(rollout).copied().unwrap_or_default(),
        };
        let consumed = records.iter().filter_map(|record| match record {
            Record::Consumed { rollouts, .. } => Some(rollouts.iter().map(entry).collect()),
            _ => None,
        });
        let outcomes = outcomes(records, &lengths);
        Self { generated: lengths.keys().map(entry).collect(), consumed: consumed.collect(), outcomes }
    }
}

/// What became of every rollout that was rewarded.
fn outcomes(records: &[Record], lengths: &BTreeMap<RolloutId, u32>) -> Outcomes {
    let (mut groups, mut cut) = (BTreeMap::new(), BTreeSet::new());
    let (mut all, mut trained) = (BTreeMap::new(), Vec::new());
    for record in records {
        match record {
            Record::PlanOpened { requests, .. } => {
                groups.extend(requests.iter().map(|request| (request.id, request.group)));
            }
            Record::Delta(delta) if delta.finish == Some(FinishReason::Length) => {
                cut.insert(delta.rollout);
            }
            Record::Reward { rollout, reward } => {
                let (group, length) = (groups.get(rollout).copied(), lengths.get(rollout).copied());
                let (rollout, cut) = (*rollout, cut.contains(rollout));
                if let Some((group, length)) = group.zip(length) {
                    all.insert(rollout, Outcome { rollout, group, length, cut, reward: *reward });
                }
            }
            Record::Consumed { rollouts, .. } => {
                trained.push(rollouts.iter().filter_map(|rollout| all.get(rollout).copied()).collect());
            }
            _ => {}
        }
    }
    Outcomes { generated: all.into_values().collect(), trained }
}

#[async_trait]
impl Queue for LedgerQueue {
    async fn generated(&self) -> PortResult<Vec<QueueEntry>> {
        Ok(self.generated.clone())
    }

    async fn consumed(&self) -> PortResult<Vec<Vec<QueueEntry>>> {
        Ok(self.consumed.clone())
    }

    async fn outcomes(&self) -> PortResult<Outcomes> {
        Ok(self.outcomes.clone())
    }
}
