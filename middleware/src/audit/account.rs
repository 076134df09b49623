//! What a run did, without its tokens: which plans were opened, what became of every rollout, what was trained on.

use crate::{
    dispatch::FIRST_LOOSE,
    ledger::{Record, SentRecord, TrainedOn},
};
use lockstep_core::{RolloutId, WeightVersion};
use std::collections::{BTreeMap, BTreeSet};

/// What became of a rollout.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutFacts {
    /// Its name.
    pub id: RolloutId,
    /// Index of its group within the plan.
    pub group: u32,
    /// Sampled tokens that were recorded and are part of it.
    pub tokens: u32,
    /// Tokens that were recorded and thrown away, although the ledger does not say that they were lost.
    pub discarded: u32,
    /// Its reward, when it has one.
    pub reward: Option<f64>,
    /// Place in the order of arrival, when it is complete.
    pub arrival: Option<u64>,
    /// When it was first sent to a sampler, in milliseconds of any clock.
    pub sent_at: Option<u64>,
    /// When it was complete, on the same clock.
    pub arrived_at: Option<u64>,
    /// How often it was sampled from its first token.
    pub attempts: u32,
    /// The weights behind its first token.
    pub first_version: Option<WeightVersion>,
    /// Who drew it last.
    pub sampler: Option<String>,
}

impl RolloutFacts {
    /// A rollout of which nothing is known but its place.
    pub fn new(id: RolloutId, group: u32) -> Self {
        Self {
            id,
            group,
            tokens: 0,
            discarded: 0,
            reward: None,
            arrival: None,
            sent_at: None,
            arrived_at: None,
            attempts: 1,
            first_version: None,
            sampler: None,
        }
    }
}

/// A plan as it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanFacts {
    /// Its number.
    pub plan: u64,
    /// Its rollouts, in dispatch order.
    pub rollouts: Vec<RolloutId>,
    /// Batches trained on before it was opened.
    pub after: usize,
    /// Plans that might be open at a time when it was opened, where that is known.
    pub max_open_plans: Option<u64>,
    /// A rollout of it that had tokens before it was opened, if there is one.
    pub sampled_before: Option<RolloutId>,
}

/// What a step trained on.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchFacts {
    /// The plan it says it is; the simulator's broken rules have none.
    pub plan: Option<u64>,
    /// Its rollouts in order, with the tokens trained on.
    pub trained: Vec<(RolloutId, u32)>,
    /// The weights before the update; a trainer that drives the loop does not say.
    pub before: Option<WeightVersion>,
    /// Whether the order within the batch is the trainer's own.
    pub any_order: bool,
    /// Width of the window in which it might overtake older plans; 1 is strict.
    pub window: u64,
}

/// A run.
#[derive(Debug, Clone, PartialEq)]
pub struct Account {
    /// Every rollout dispatched.
    pub rollouts: BTreeMap<RolloutId, RolloutFacts>,
    /// Every plan, in the order of their opening.
    pub plans: Vec<PlanFacts>,
    /// Every batch, in the order of training.
    pub batches: Vec<BatchFacts>,
}

/// What is known on the way through a ledger.
#[derive(Debug)]
struct Reading {
    /// Answers complete so far.
    arrivals: u64,
    /// Plans whose trainer drives the loop, and the place of their batch.
    driven: BTreeMap<u64, usize>,
    /// The bounds in force, which a restart may change.
    max_open_plans: Option<u64>,
    window: u64,
}

/// Whether a record is of a request of no plan, which nobody trains on.
fn is_loose(record: &Record) -> bool {
    let plan = match record {
        Record::PlanOpened { plan, .. } => *plan,
        Record::Delta(delta) => delta.rollout.plan,
        Record::Reward { rollout, .. } | Record::RewardFailed { rollout, .. } => rollout.plan,
        _ => 0,
    };
    plan >= FIRST_LOOSE
}

/// A ledger that tells no account.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// No step.
    #[error("{plans} plans were opened, none was trained on: there is nothing to audit")]
    NothingTrained {
        /// Plans opened.
        plans: usize,
    },
}

impl Account {
    /// The account a ledger gives. Steps that were lost with a trainer and made again after a resume count once.
    ///
    /// # Errors
    /// A ledger without a step.
    pub fn of(records: &[Record]) -> Result<Self, AccountError> {
        let mut account = Self { rollouts: BTreeMap::new(), plans: vec![], batches: vec![] };
        let mut reading = Reading { arrivals: 0, driven: BTreeMap::new(), max_open_plans: None, window: 1 };
        for record in records.iter().filter(|record| !is_loose(record)) {
            match record {
                Record::Trained { plan, rollouts } => account.trained_on(*plan, rollouts, &mut reading),
                Record::Misreported { plan, rollouts } => account.batch(*plan, rollouts, reading.window),
                _ => account.take(record, &mut reading),
            }
        }
        if account.batches.is_empty() {
            return Err(AccountError::NothingTrained { plans: account.plans.len() });
        }
        let lengths: BTreeMap<RolloutId, u32> =
            account.rollouts.iter().map(|(&id, rollout)| (id, rollout.tokens)).collect();
        let told = account.batches.iter_mut().filter(|batch| !batch.any_order);
        for (id, tokens) in told.flat_map(|batch| &mut batch.trained) {
            *tokens = lengths.get(id).copied().unwrap_or(*tokens);
        }
        Ok(account)
    }

    /// A batch, as the trainer that drives the loop tells it.
    fn batch(&mut self, plan: u64, rollouts: &[TrainedOn], window: u64) {
        let trained = rollouts.iter().map(|it| (it.rollout, it.masked_in)).collect();
        self.batches.push(BatchFacts { plan: Some(plan), trained, before: None, any_order: true, window });
    }

    /// Ranks report their parts one after the other: together they are one batch.
    fn trained_on(&mut self, plan: u64, rollouts: &[TrainedOn], reading: &mut Reading) {
        if let Some(batch) = reading.driven.get(&plan).and_then(|&at| self.batches.get_mut(at)) {
            batch.trained.extend(rollouts.iter().map(|it| (it.rollout, it.masked_in)));
            return;
        }
        reading.driven.insert(plan, self.batches.len());
        self.batch(plan, rollouts, reading.window);
    }

    /// The ids of everything trained on.
    pub fn trained(&self) -> BTreeSet<RolloutId> {
        self.batches.iter().flat_map(|batch| &batch.trained).map(|&(id, _)| id).collect()
    }

    fn of_rollout(&mut self, id: RolloutId) -> &mut RolloutFacts {
        self.rollouts.entry(id).or_insert_with(|| RolloutFacts::new(id, 0))
    }

    /// A plan of rollouts, each with its group.
    fn opened(&mut self, plan: u64, rollouts: Vec<(RolloutId, u32)>, max_open_plans: Option<u64>) {
        let mut ids = rollouts.iter().map(|&(id, _)| id);
        let sampled_before = ids.find(|id| self.rollouts.get(id).is_some_and(|it| it.tokens > 0));
        rollouts.iter().for_each(|&(id, group)| self.of_rollout(id).group = group);
        let rollouts = rollouts.into_iter().map(|(id, _)| id).collect();
        self.plans.push(PlanFacts { plan, rollouts, after: self.batches.len(), max_open_plans, sampled_before });
    }

    fn take(&mut self, record: &Record, reading: &mut Reading) {
        match record {
            Record::PlanOpened { plan, requests } => {
                let rollouts = requests.iter().map(|request| (request.id, request.group));
                self.opened(*plan, rollouts.collect(), reading.max_open_plans);
            }
            Record::PlanReserved { plan, groups, answers } => {
                let rollout = |index| (RolloutId { plan: *plan, index }, index / answers.max(&1));
                let rollouts = (0..groups * answers).map(rollout);
                self.opened(*plan, rollouts.collect(), reading.max_open_plans);
            }
            Record::Delta(delta) => {
                let rollout = self.of_rollout(delta.rollout);
                if delta.start < rollout.tokens {
                    rollout.discarded += rollout.tokens - delta.start;
                    rollout.tokens = delta.start;
                }
                rollout.tokens += delta.columns.tokens.len() as u32;
                if rollout.first_version.is_none() || delta.start == 0 {
                    rollout.first_version = delta.stamp.version();
                }
                if delta.finish.is_some() {
                    rollout.arrival = Some(reading.arrivals);
                    reading.arrivals += 1;
                }
            }
            Record::Reward { rollout, reward } | Record::RewardFailed { rollout, counts_as: reward, .. } => {
                self.of_rollout(*rollout).reward.get_or_insert(*reward);
            }
            Record::Consumed { plan, rollouts, before, .. } => {
                let trained = rollouts.iter().map(|&id| (id, 0)).collect();
                let (plan, before, window) = (Some(*plan), Some(*before), reading.window);
                self.batches.push(BatchFacts { plan, trained, before, any_order: false, window });
            }
            Record::Dispatch { max_open_plans, window } => {
                (reading.max_open_plans, reading.window) = (Some(u64::from(*max_open_plans)), u64::from(*window));
            }
            Record::Sent(sent) => self.sent(sent),
            Record::Arrived { rollout, at } => self.of_rollout(*rollout).arrived_at = Some(*at),
            Record::Resumed { restored, .. } => {
                self.batches.retain(|batch| batch.before.is_none_or(|before| before.step < restored.step));
            }
            Record::Profile(_)
            | Record::PlanSealed { .. }
            | Record::Resync(_)
            | Record::Dispatched(_)
            | Record::Session(_)
            | Record::Misreported { .. }
            | Record::Synchronisation(_)
            | Record::Trained { .. } => {}
        }
    }

    fn sent(&mut self, sent: &SentRecord) {
        for answer in &sent.answers {
            let rollout = self.of_rollout(answer.rollout);
            rollout.sent_at.get_or_insert(sent.at);
            rollout.attempts = answer.attempt;
            rollout.sampler = Some(sent.sampler.clone());
        }
    }
}
