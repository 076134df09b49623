//! What a ledger says of plans that are open: where a run goes on that was ended from outside.

use crate::{
    ledger::{Record, TrainedOn},
    session::SessionRecord,
};
use lockstep_core::{
    BatchPlan, Delta, Rollout, RolloutId, SamplerProfile, WeightVersion,
    behavior::BehaviorError,
    dispatch::Recovered,
    plan::{Batch, PlanError},
    rollout::{FoldError, Request},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Requests of no plan are numbered from here, so that the numbers of plans follow each other.
pub const FIRST_LOOSE: u64 = 1 << 40;

/// What a ledger says, sorted by plan and rollout.
#[derive(Debug, Default)]
pub struct History {
    pub(super) requests: BTreeMap<u64, Vec<Request>>,
    pub(super) deltas: BTreeMap<RolloutId, Vec<Delta>>,
    pub(super) attempts: BTreeMap<RolloutId, u32>,
    pub(super) rewards: BTreeMap<RolloutId, f64>,
    pub(super) sealed: BTreeSet<u64>,
    /// Groups, and answers to each, of plans whose requests came later, if they did.
    pub(super) reserved: BTreeMap<u64, (u32, u32)>,
    pub(super) dispatched: BTreeMap<RolloutId, Request>,
    pub(super) trained: BTreeMap<u64, Vec<Vec<TrainedOn>>>,
    /// Turns of conversations, in their order.
    pub sessions: Vec<SessionRecord>,
    next_loose: Option<u64>,
    /// Plan, and the weights before and after its step, in the order of training.
    consumed: Vec<(u64, WeightVersion, WeightVersion)>,
}

/// A ledger that cannot be gone on from.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// Columns that contradict themselves.
    #[error("a delta of rollout {rollout} cannot be read back: {source}")]
    Delta {
        /// The rollout.
        rollout: RolloutId,
        /// What is wrong.
        #[source]
        source: BehaviorError,
    },
    /// A delta without profile.
    #[error("a delta of rollout {rollout} names profile {profile}, {known} are known")]
    Profile {
        /// The rollout.
        rollout: RolloutId,
        /// The number.
        profile: u32,
        /// Profiles there are.
        known: usize,
    },
    /// Answers that do not fold.
    #[error(transparent)]
    Fold(#[from] FoldError),
    /// Requests that are no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A trainer that would use a version for the second time.
    #[error(
        "the trainer restarted at {restored}, but the ledger has a step to {made} already; it must open a new epoch"
    )]
    Epoch {
        /// Where it restarted.
        restored: WeightVersion,
        /// A version it made before.
        made: WeightVersion,
    },
    /// A trainer that knows more than the ledger.
    #[error("the trainer goes on from step {restored}, but the ledger has only {steps} steps")]
    Ahead {
        /// Where it goes on.
        restored: u64,
        /// Steps in the ledger.
        steps: u64,
    },
}

impl History {
    /// Sorts the records of a ledger.
    ///
    /// # Errors
    /// Deltas that cannot be read back.
    pub fn of(records: Vec<Record>) -> Result<Self, HistoryError> {
        let (mut history, mut profiles) = (Self::default(), Vec::<Arc<SamplerProfile>>::new());
        for record in records {
            match record {
                Record::Profile(profile) => profiles.push(Arc::new(profile)),
                Record::PlanOpened { plan, .. } if plan >= FIRST_LOOSE => history.next_loose = Some(plan + 1),
                Record::Delta(delta) if delta.rollout.plan >= FIRST_LOOSE => {}
                Record::PlanOpened { plan, requests } => drop(history.requests.insert(plan, requests)),
                Record::Delta(delta) => {
                    let (rollout, profile, known) = (delta.rollout, delta.profile, profiles.len());
                    let unknown = HistoryError::Profile { rollout, profile, known };
                    let profile = profiles.get(profile as usize).cloned().ok_or(unknown)?;
                    let delta = delta.delta(profile).map_err(|source| HistoryError::Delta { rollout, source })?;
                    history.deltas.entry(rollout).or_default().push(delta);
                }
                Record::PlanSealed { plan } => drop(history.sealed.insert(plan)),
                Record::Reward { rollout, reward } | Record::RewardFailed { rollout, counts_as: reward, .. } => {
                    history.rewards.entry(rollout).or_insert(reward);
                }
                Record::Consumed { plan, before, after, .. } => history.consumed.push((plan, before, after)),
                Record::Sent(sent) => {
                    for answer in &sent.answers {
                        history.attempts.insert(answer.rollout, answer.attempt);
                        if answer.tokens == 0 {
                            history.deltas.remove(&answer.rollout);
                        }
                    }
                }
                Record::Resumed { restored, .. } => {
                    history.consumed.retain(|(_, before, _)| before.step < restored.step)
                }
                Record::PlanReserved { plan, groups, answers } => {
                    history.reserved.insert(plan, (groups, answers));
                }
                Record::Dispatched(request) => drop(history.dispatched.insert(request.id, request)),
                Record::Trained { plan, rollouts } => history.trained.entry(plan).or_default().push(rollouts),
                Record::Session(record) => history.sessions.push(record),
                Record::Resync(_)
                | Record::Dispatch { .. }
                | Record::Arrived { .. }
                | Record::Misreported { .. }
                | Record::Synchronisation(_) => {}
            }
        }
        Ok(history)
    }

    /// Whether anything was dispatched.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Number of the first plan that was never opened.
    pub fn next_plan(&self) -> u64 {
        let last = self.requests.keys().next_back().max(self.reserved.keys().next_back());
        last.map_or(0, |plan| plan + 1)
    }

    /// Number of the first request of no plan that was never made.
    pub fn next_loose(&self) -> u64 {
        self.next_loose.unwrap_or(FIRST_LOOSE)
    }

    /// Versions that drew tokens of plans which are not trained on at step `restored`, or will be again.
    pub fn live_versions(&self, restored: u64) -> Vec<WeightVersion> {
        let open: BTreeSet<u64> = self.open(restored).collect();
        let deltas = self.deltas.iter().filter(|(id, _)| open.contains(&id.plan)).flat_map(|(_, deltas)| deltas);
        let versions: BTreeSet<WeightVersion> = deltas.filter_map(|delta| delta.stamp.version()).collect();
        versions.into_iter().collect()
    }

    /// Holds the trainer's state against the ledger.
    ///
    /// # Errors
    /// A trainer that reuses versions, or that made steps the ledger does not have.
    pub fn check(&self, restored: WeightVersion) -> Result<(), HistoryError> {
        if let Some(&(_, _, made)) = self.consumed.iter().find(|(_, _, after)| after.epoch >= restored.epoch) {
            return Err(HistoryError::Epoch { restored, made });
        }
        let steps = self.consumed.iter().map(|(_, _, after)| after.step).max().unwrap_or(0);
        if restored.step > steps {
            return Err(HistoryError::Ahead { restored: restored.step, steps });
        }
        Ok(())
    }

    /// Plans whose step is lost with the trainer's later weights.
    pub(super) fn again(&self, restored: u64) -> Vec<u64> {
        self.consumed.iter().filter(|(_, before, _)| before.step >= restored).map(|(plan, _, _)| *plan).collect()
    }

    /// Plans that are not trained on yet, or again.
    pub(super) fn open(&self, restored: u64) -> impl Iterator<Item = u64> + '_ {
        let kept = self.consumed.iter().filter(move |(_, before, _)| before.step < restored);
        let kept: BTreeSet<u64> = kept.map(|(plan, _, _)| *plan).collect();
        self.requests.keys().copied().filter(move |plan| !kept.contains(plan))
    }

    /// The plans, in order.
    pub fn plans(&self) -> BTreeSet<u64> {
        let driven = self.dispatched.keys().map(|id| id.plan).filter(|plan| *plan < FIRST_LOOSE);
        self.requests.keys().copied().chain(driven).collect()
    }

    /// The answers of a plan; `None` where one is missing or unfinished.
    ///
    /// # Errors
    /// Answers that do not fold, requests that are no plan.
    pub fn batch(&self, number: u64) -> Result<Option<Batch>, HistoryError> {
        let whole = RolloutId { plan: number, index: 0 }..RolloutId { plan: number + 1, index: 0 };
        let driven = || self.dispatched.range(whole).map(|(_, request)| request.clone()).collect();
        let requests: Vec<Request> = self.requests.get(&number).cloned().unwrap_or_else(driven);
        let reserved = self.reserved.get(&number).map(|(groups, answers)| (groups * answers) as usize);
        if reserved.is_some_and(|reserved| reserved != requests.len()) {
            return Ok(None);
        }
        let mut plan = BatchPlan::restore(number, requests)?;
        for request in plan.requests().to_vec() {
            let deltas = self.deltas.get(&request.id).cloned().unwrap_or_default();
            if deltas.last().is_none_or(|delta| delta.finish.is_none()) {
                return Ok(None);
            }
            plan.arrive(Rollout::fold(request, deltas)?)?;
        }
        Ok(Some(plan.seal()?))
    }

    /// The plan again, nothing arrived.
    pub(super) fn plan(&self, plan: u64) -> Result<BatchPlan, HistoryError> {
        Ok(BatchPlan::restore(plan, self.requests.get(&plan).cloned().unwrap_or_default())?)
    }

    /// What the state machine needs to know of the answers of a plan.
    pub(super) fn recovered(&self, plan: u64) -> Vec<Recovered> {
        let requests = self.requests.get(&plan).into_iter().flatten();
        let recovered = requests.map(|request| {
            let deltas = self.deltas.get(&request.id).map_or(&[][..], Vec::as_slice);
            let tokens = deltas.iter().map(|delta| delta.behavior.len() as u32).sum();
            // A ledger of an older build has no record of what was sent; tokens prove that something was.
            let sent = self.attempts.get(&request.id).copied().unwrap_or(0);
            Recovered {
                tokens,
                attempts: if tokens > 0 { sent.max(1) } else { sent },
                finished: deltas.last().is_some_and(|delta| delta.finish.is_some()),
                judged: self.rewards.contains_key(&request.id),
            }
        });
        recovered.collect()
    }
}
