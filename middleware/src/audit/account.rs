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
}

/// A run.
#[derive(Debug, Clone, PartialEq)]
pub struct Account {
    /// Plans that may be open at a time, where that is known.
    pub max_open_plans: Option<u64>,
    /// Width of the window in which a plan may overtake older ones; 1 is strict.
    pub window: u64,
    /// Every rollout dispatched.
    pub rollouts: BTreeMap<RolloutId, RolloutFacts>,
    /// Every plan, in the order of their opening.
    pub plans: Vec<PlanFacts>,
    /// Every batch, in the order of training.
    pub batches: Vec<BatchFacts>,
}

/// Plans whose trainer drives the loop, and the place of their batch.
type Driven = BTreeMap<u64, usize>;

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
        let mut account =
            Self { max_open_plans: None, window: 1, rollouts: BTreeMap::new(), plans: vec![], batches: vec![] };
        let (mut arrivals, mut driven) = (0, Driven::default());
        for record in records.iter().filter(|record| !is_loose(record)) {
            match record {
                Record::Trained { plan, rollouts } => account.trained_on(*plan, rollouts, &mut driven),
                Record::Misreported { plan, rollouts } => account.batch(*plan, rollouts),
                _ => account.take(record, &mut arrivals),
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
    fn batch(&mut self, plan: u64, rollouts: &[TrainedOn]) {
        let trained = rollouts.iter().map(|it| (it.rollout, it.masked_in)).collect();
        self.batches.push(BatchFacts { plan: Some(plan), trained, before: None, any_order: true });
    }

    /// Ranks report their parts one after the other: together they are one batch.
    fn trained_on(&mut self, plan: u64, rollouts: &[TrainedOn], driven: &mut Driven) {
        if let Some(batch) = driven.get(&plan).and_then(|&at| self.batches.get_mut(at)) {
            batch.trained.extend(rollouts.iter().map(|it| (it.rollout, it.masked_in)));
            return;
        }
        driven.insert(plan, self.batches.len());
        self.batch(plan, rollouts);
    }

    /// The ids of everything trained on.
    pub fn trained(&self) -> BTreeSet<RolloutId> {
        self.batches.iter().flat_map(|batch| &batch.trained).map(|&(id, _)| id).collect()
    }

    fn of_rollout(&mut self, id: RolloutId) -> &mut RolloutFacts {
        self.rollouts.entry(id).or_insert_with(|| RolloutFacts::new(id, 0))
    }

    fn take(&mut self, record: &Record, arrivals: &mut u64) {
        match record {
            Record::PlanOpened { plan, requests } => {
                let early = requests.iter().map(|request| request.id);
                let sampled_before = early.clone().find(|id| self.rollouts.get(id).is_some_and(|it| it.tokens > 0));
                for request in requests {
                    self.of_rollout(request.id).group = request.group;
                }
                let after = self.batches.len();
                self.plans.push(PlanFacts { plan: *plan, rollouts: early.collect(), after, sampled_before });
            }
            Record::PlanReserved { plan, groups, answers } => {
                let ids = (0..groups * answers).map(|index| RolloutId { plan: *plan, index });
                let sampled_before = ids.clone().find(|id| self.rollouts.get(id).is_some_and(|it| it.tokens > 0));
                ids.clone().for_each(|id| self.of_rollout(id).group = id.index / answers.max(&1));
                let after = self.batches.len();
                self.plans.push(PlanFacts { plan: *plan, rollouts: ids.collect(), after, sampled_before });
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
                    rollout.arrival = Some(*arrivals);
                    *arrivals += 1;
                }
            }
            Record::Reward { rollout, reward } | Record::RewardFailed { rollout, counts_as: reward, .. } => {
                self.of_rollout(*rollout).reward.get_or_insert(*reward);
            }
            Record::Consumed { plan, rollouts, before, .. } => {
                let trained = rollouts.iter().map(|&id| (id, 0)).collect();
                self.batches.push(BatchFacts { plan: Some(*plan), trained, before: Some(*before), any_order: false });
            }
            Record::Dispatch { max_open_plans, window } => {
                (self.max_open_plans, self.window) = (Some(u64::from(*max_open_plans)), u64::from(*window));
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
