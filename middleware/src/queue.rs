//! What was generated and what was trained on, as a ledger tells it.

use crate::ledger::{self, LedgerError, Record};
use async_trait::async_trait;
use lockstep_core::{
    RolloutId,
    ports::{PortResult, Queue, QueueEntry},
};
use std::{collections::BTreeMap, path::Path};

/// A ledger read as a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerQueue {
    generated: Vec<QueueEntry>,
    consumed: Vec<Vec<QueueEntry>>,
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
        let mut consumed = Vec::<(u64, Vec<QueueEntry>)>::new();
        for record in records {
            match record {
                Record::Consumed { rollouts, before, .. } => {
                    consumed.push((before.step, rollouts.iter().map(entry).collect()));
                }
                // Steps that were lost with the trainer are made again.
                Record::Resumed { restored, .. } => consumed.retain(|(before, _)| *before < restored.step),
                _ => {}
            }
        }
        let consumed = consumed.into_iter().map(|(_, batch)| batch);
        Self { generated: lengths.keys().map(entry).collect(), consumed: consumed.collect() }
    }
}

#[async_trait]
impl Queue for LedgerQueue {
    async fn generated(&self) -> PortResult<Vec<QueueEntry>> {
        Ok(self.generated.clone())
    }

    async fn consumed(&self) -> PortResult<Vec<Vec<QueueEntry>>> {
        Ok(self.consumed.clone())
    }
}
