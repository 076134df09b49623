//! What was generated and what was trained on, as a ledger tells it.

use crate::{
    dispatch::FIRST_LOOSE,
    ledger::{LedgerError, Record, Records},
};
use async_trait::async_trait;
use lockstep_core::{
    RolloutId,
    delta::FinishReason,
    ports::{Outcome, Outcomes, PortResult, Queue, QueueEntry},
};
use std::{collections::BTreeMap, path::Path};

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
        let mut told = Told::default();
        for record in Records::of(directory)? {
            told.take(record?);
        }
        Ok(told.queue())
    }
}

/// What the records say of a rollout.
#[derive(Debug, Clone, Copy, Default)]
struct Facts {
    group: u32,
    length: u32,
    cut: bool,
    reward: Option<f64>,
}

#[derive(Debug, Default)]
struct Told {
    rollouts: BTreeMap<RolloutId, Facts>,
    /// The steps behind the weights of each update, and what it was made of.
    consumed: Vec<(u64, Vec<RolloutId>)>,
    /// What trainers that drive the loop, or pull, say they trained on.
    driven: Vec<Vec<RolloutId>>,
}

impl Told {
    fn of(&mut self, rollout: RolloutId) -> &mut Facts {
        self.rollouts.entry(rollout).or_default()
    }

    fn take(&mut self, record: Record) {
        match record {
            Record::PlanOpened { plan, .. } if plan >= FIRST_LOOSE => {}
            Record::Delta(delta) if delta.rollout.plan >= FIRST_LOOSE => {}
            Record::PlanReserved { plan, groups, answers } => {
                for index in 0..groups * answers {
                    self.of(RolloutId { plan, index }).group = index / answers.max(1);
                }
            }
            Record::Trained { rollouts, .. } | Record::Misreported { rollouts, .. } => {
                self.driven.push(rollouts.iter().map(|trained| trained.rollout).collect());
            }
            Record::PlanOpened { requests, .. } => {
                for request in requests {
                    self.of(request.id).group = request.group;
                }
            }
            Record::Delta(delta) => {
                let facts = self.of(delta.rollout);
                facts.length += delta.columns.tokens.len() as u32;
                facts.cut |= delta.finish == Some(FinishReason::Length);
            }
            Record::Reward { rollout, reward } | Record::RewardFailed { rollout, counts_as: reward, .. } => {
                self.of(rollout).reward = Some(reward);
            }
            Record::Consumed { rollouts, before, .. } => self.consumed.push((before.step, rollouts)),
            // Steps that were lost with the trainer are made again.
            Record::Resumed { restored, .. } => self.consumed.retain(|(before, _)| *before < restored.step),
            _ => {}
        }
    }

    fn entry(&self, rollout: RolloutId) -> QueueEntry {
        QueueEntry { rollout, length: self.rollouts.get(&rollout).map_or(0, |facts| facts.length) }
    }

    /// What became of a rollout, once it was rewarded.
    fn outcome(&self, rollout: RolloutId) -> Option<Outcome> {
        let Facts { group, length, cut, reward } = *self.rollouts.get(&rollout)?;
        Some(Outcome { rollout, group, length, cut, reward: reward? })
    }

    fn queue(self) -> LedgerQueue {
        let ids = || self.rollouts.keys().copied();
        let consumed = || self.consumed.iter().map(|(_, rollouts)| rollouts).chain(&self.driven);
        let batches = || consumed().map(|rollouts| rollouts.iter().copied());
        LedgerQueue {
            generated: ids().map(|id| self.entry(id)).collect(),
            consumed: batches().map(|batch| batch.map(|id| self.entry(id)).collect()).collect(),
            outcomes: Outcomes {
                generated: ids().filter_map(|id| self.outcome(id)).collect(),
                trained: batches().map(|batch| batch.filter_map(|id| self.outcome(id)).collect()).collect(),
            },
        }
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

    async fn outcomes(&self) -> PortResult<Outcomes> {
        Ok(self.outcomes.clone())
    }
}
