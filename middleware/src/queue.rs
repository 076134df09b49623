//! What was generated and what was trained on, as a ledger tells it.

use crate::ledger::{LedgerError, Record, Records};
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
        let mut lengths = BTreeMap::<RolloutId, u32>::new();
        let mut consumed = Vec::<(u64, Vec<RolloutId>)>::new();
        for record in Records::of(directory)? {
            match record? {
                Record::PlanOpened { requests, .. } => lengths.extend(requests.iter().map(|request| (request.id, 0))),
                Record::Delta(delta) => *lengths.entry(delta.rollout).or_default() += delta.columns.tokens.len() as u32,
                Record::Consumed { rollouts, before, .. } => consumed.push((before.step, rollouts)),
                // Steps that were lost with the trainer are made again.
                Record::Resumed { restored, .. } => consumed.retain(|(before, _)| *before < restored.step),
                _ => {}
            }
        }
        let entry = |rollout: &RolloutId| QueueEntry {
            rollout: *rollout,
            length: lengths.get(rollout).copied().unwrap_or_default(),
        };
        let consumed = consumed.iter().map(|(_, rollouts)| rollouts.iter().map(entry).collect()).collect();
        Ok(Self { generated: lengths.keys().map(entry).collect(), consumed })
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
