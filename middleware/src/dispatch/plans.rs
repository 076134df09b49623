//! The plans of a server: opened, filled from anywhere, sealed, given to trainers, reported back. Shared by every connection.
//!
//! *Driven*: the trainer opens a plan, its requests carry the ids, it seals the plan and reports what it trained on. *Pull*: it
//! asks for the next batch. Both are outcome-blind: what a plan holds was fixed when it was opened. Keeps no ledger and reads no
//! clock; whoever calls it does.

use lockstep_core::{
    Batch, BatchPlan, Dispatch, RewardBook, Rollout, RolloutId, ScoredBatch,
    dispatch::{Action, DispatchError, Event, Failure, Rules, lease::Leases},
    plan::PlanError,
    reward::{Outcome, RewardError},
    rollout::Request,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

/// A call that breaks a rule of the plans.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlansError {
    /// Out of turn.
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    /// A broken rule of membership.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A reward that cannot be joined.
    #[error(transparent)]
    Reward(#[from] RewardError),
    /// The plan cannot be completed.
    #[error("the plan ended: {0}")]
    Failed(#[from] Failure),
    /// A plan that was not sealed.
    #[error("plan {plan} waits for {missing} of {planned} rollouts and cannot have been trained on")]
    Unsealed {
        /// The plan.
        plan: u64,
        /// Rollouts missing.
        missing: usize,
        /// Rollouts planned.
        planned: usize,
    },
    /// The trainer trained on something else than it was given.
    #[error(
        "plan {plan}: {trained} rollouts were trained on, {given} were given; {} not trained on, {} of no such plan",
        name(.missing), name(.foreign)
    )]
    Difference {
        /// The plan.
        plan: u64,
        /// Rollouts reported.
        trained: usize,
        /// Rollouts of the plan, or of the rank's part of it.
        given: usize,
        /// Given, and not reported.
        missing: Vec<RolloutId>,
        /// Reported, and not given; or reported twice.
        foreign: Vec<RolloutId>,
    },
    /// The trainer says another length.
    #[error("rollout {rollout} was trained on with {trained} tokens, {sampled} were sampled")]
    Length {
        /// The rollout.
        rollout: RolloutId,
        /// Tokens reported.
        trained: u32,
        /// Tokens sampled.
        sampled: u32,
    },
    /// A rank that somebody else holds.
    #[error("rank {rank} of {ranks} is held by {holder} until its lease ends")]
    Held {
        /// The rank.
        rank: u32,
        /// Number of ranks.
        ranks: u32,
        /// Who holds it.
        holder: String,
    },
    /// A rank there is not.
    #[error("there is no rank {rank} of {ranks}; the consumers so far have {expected} ranks")]
    Rank {
        /// The rank.
        rank: u32,
        /// Its number of ranks.
        ranks: u32,
        /// The number of ranks there are.
        expected: u32,
    },
}

fn name(rollouts: &[RolloutId]) -> String {
    match rollouts {
        [] => "none".into(),
        [one] => one.to_string(),
        [first, .., last] => format!("{} ({first} to {last})", rollouts.len()),
    }
}

/// A complete batch, and of every rollout the reward it has, in dispatch order.
pub type Sealed = (Batch, Vec<Option<f64>>);

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

/// What a trainer reports of one rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trained {
    /// The rollout.
    pub rollout: RolloutId,
    /// Its sampled tokens, as the trainer counts them.
    pub tokens: u32,
    /// How many of them its mask kept.
    pub kept: u32,
}

#[derive(Debug)]
struct Places {
    /// Index of the group of every rollout.
    groups: Vec<u32>,
    /// What was asked, where it is known already.
    requests: Vec<Option<Request>>,
    rollouts: Vec<Option<Rollout>>,
    batch: Option<Batch>,
    scored: Option<ScoredBatch>,
    reported: BTreeSet<u32>,
}

#[derive(Debug)]
struct State {
    dispatch: Dispatch,
    plans: BTreeMap<u64, Places>,
    released: VecDeque<u64>,
    book: RewardBook,
    ranks: Option<u32>,
    holders: BTreeMap<u32, String>,
    leases: Leases<(u32, String)>,
}

/// Every plan of a server.
#[derive(Debug)]
pub struct Plans {
    state: Mutex<State>,
    changed: Notify,
}

impl Plans {
    /// No plans yet; the first gets number `first`. A consumer's lease is `lease` milliseconds long.
    pub fn new(rules: Rules, first: u64, lease: u64) -> Self {
        let state = State {
            dispatch: Dispatch::new(rules, first),
            plans: BTreeMap::new(),
            released: VecDeque::new(),
            book: RewardBook::default(),
            ranks: None,
            holders: BTreeMap::new(),
            leases: Leases::new(lease),
        };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fixes the membership of a plan whose prompts come with its requests: `groups` prompts, `answers` to each. Gives its number
    /// and its ids in dispatch order, group 0's answers first.
    ///
    /// # Errors
    /// Too many open plans: the trainer first trains on one of those it has. A plan of nothing.
    pub fn open(&self, groups: u32, answers: u32) -> Result<(u64, Vec<RolloutId>), PlansError> {
        let groups: Vec<u32> = (0..groups).flat_map(|group| (0..answers).map(move |_| group)).collect();
        let requests = groups.iter().map(|_| None).collect();
        let plan = self.insert(groups, requests)?;
        let ids = self.state().plans.get(&plan).map_or(0, |places| places.groups.len());
        Ok((plan, (0..ids as u32).map(|index| RolloutId { plan, index }).collect()))
    }

    /// Fixes the membership of a plan whose requests are known. The number they carry must be [`Plans::next_number`].
    ///
    /// # Errors
    /// As [`Plans::open`], and a plan of another number.
    pub fn open_plan(&self, plan: &BatchPlan) -> Result<(), PlansError> {
        let requests = plan.requests();
        if let (Some(next), Some(first)) = (self.next_number(), requests.first())
            && first.id.plan != next
        {
            return Err(PlanError::Order { plan: next, index: 0, found: first.id }.into());
        }
        let groups = requests.iter().map(|request| request.group).collect();
        self.insert(groups, requests.iter().cloned().map(Some).collect()).map(drop)
    }

    /// The number the next plan gets, where one may be opened now.
    pub fn next_number(&self) -> Option<u64> {
        self.state().dispatch.may_open()
    }

    fn insert(&self, groups: Vec<u32>, requests: Vec<Option<Request>>) -> Result<u64, PlansError> {
        let mut state = self.state();
        let (plan, _) = state.dispatch.open(groups.len() as u32)?;
        let rollouts = groups.iter().map(|_| None).collect();
        let places = Places { groups, requests, rollouts, batch: None, scored: None, reported: BTreeSet::new() };
        state.plans.insert(plan, places);
        Ok(plan)
    }

    /// The group of a rollout of an open plan; what a request that carries the id is answered under.
    ///
    /// # Errors
    /// A rollout of no open plan.
    pub fn group(&self, rollout: RolloutId) -> Result<u32, PlansError> {
        let state = self.state();
        let group = state.plans.get(&rollout.plan).and_then(|places| places.groups.get(rollout.index as usize));
        group.copied().ok_or_else(|| DispatchError::NoRollout(rollout).into())
    }

    /// Takes a complete answer in.
    ///
    /// # Errors
    /// An answer of no open plan, of another group or request, or that is there already.
    pub fn arrive(&self, rollout: Rollout) -> Result<(), PlansError> {
        let id = rollout.id();
        let group = self.group(id)?;
        let mut state = self.state();
        let State { dispatch, plans, .. } = &mut *state;
        let places = plans.get_mut(&id.plan).ok_or(DispatchError::NoRollout(id))?;
        let planned = places.requests[id.index as usize].as_ref();
        if rollout.group() != group || planned.is_some_and(|planned| planned != rollout.request()) {
            return Err(PlanError::OtherRequest(id).into());
        }
        let actions = dispatch.on(Event::Arrived { rollout: id })?;
        places.rollouts[id.index as usize] = Some(rollout);
        let done = state.act(&actions);
        drop(state);
        self.changed.notify_waiters();
        done
    }

    /// Notes how judging a rollout came out; rewards that come before their batch is complete wait.
    ///
    /// # Errors
    /// A rollout of no open plan, a reward that is no number or contradicts an earlier one.
    pub fn judge(&self, rollout: RolloutId, outcome: &Outcome) -> Result<(), PlansError> {
        self.group(rollout)?;
        let mut state = self.state();
        state.book.record(rollout, outcome)?;
        let actions = state.dispatch.on(Event::Judged { rollout })?;
        let done = state.act(&actions);
        drop(state);
        self.changed.notify_waiters();
        done
    }

    /// Waits until every rollout of the plan is there; gives the batch, and of every rollout the reward it has.
    ///
    /// # Errors
    /// A plan that is not open, or that failed.
    pub async fn seal(&self, plan: u64) -> Result<Sealed, PlansError> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(sealed) = self.sealed(plan)? {
                return Ok(sealed);
            }
            changed.await;
        }
    }

    fn sealed(&self, plan: u64) -> Result<Option<Sealed>, PlansError> {
        let state = self.state();
        let places = state.plans.get(&plan).ok_or(DispatchError::NoPlan(plan))?;
        if let Some(failure) = state.dispatch.failure(plan) {
            return Err(failure.into());
        }
        let scored = places.scored.as_ref().map(|scored| scored.rewards().iter().copied().map(Some).collect());
        let rewards = |batch: &Batch| scored.unwrap_or_else(|| state.book.of(batch));
        Ok(places.batch.as_ref().map(|batch| (batch.clone(), rewards(batch))))
    }

    /// Waits for the next batch of a consumer: the first released plan of which its rank has not reported its part. Asking
    /// again gives the same part again. `now` in milliseconds.
    ///
    /// # Errors
    /// A rank that another consumer holds, a rank there is not, more ranks than groups, a plan that failed.
    pub async fn next(&self, consumer: &Consumer, now: u64) -> Result<ScoredBatch, PlansError> {
        self.heartbeat(consumer, now)?;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(batch) = self.ready(consumer)? {
                return Ok(batch);
            }
            changed.await;
        }
    }

    fn ready(&self, consumer: &Consumer) -> Result<Option<ScoredBatch>, PlansError> {
        let state = self.state();
        let part = |plan: &u64| {
            let places = state.plans.get(plan).filter(|places| !places.reported.contains(&consumer.rank));
            places.and_then(|places| places.scored.as_ref())
        };
        if let Some(scored) = state.released.iter().find_map(part) {
            let mut shards = scored.shards(consumer.ranks)?;
            return Ok(Some(shards.swap_remove(consumer.rank as usize)));
        }
        let failure = state.dispatch.plans().find_map(|plan| state.dispatch.failure(plan));
        failure.map_or(Ok(None), |failure| Err(failure.into()))
    }

    /// A sign of life of a consumer at `now`, in milliseconds. Without one for the length of a lease, another may take its rank
    /// and is given what this one was.
    ///
    /// # Errors
    /// A rank that another consumer holds, a rank there is not.
    pub fn heartbeat(&self, consumer: &Consumer, now: u64) -> Result<(), PlansError> {
        let mut state = self.state();
        let Consumer { name, rank, ranks } = consumer.clone();
        let over = state.leases.expire(now);
        over.iter().for_each(|(rank, _)| drop(state.holders.remove(rank)));
        if state.holders.is_empty() && state.plans.values().all(|places| places.reported.is_empty()) {
            state.ranks = None;
        }
        let expected = *state.ranks.get_or_insert(ranks);
        if rank >= ranks || ranks != expected {
            return Err(PlansError::Rank { rank, ranks, expected });
        }
        let holder = state.holders.entry(rank).or_insert_with(|| name.clone()).clone();
        if holder != name {
            return Err(PlansError::Held { rank, ranks, holder });
        }
        state.leases.renew((rank, name), now);
        Ok(())
    }

    /// Holds what a trainer trained on against what it was given: the whole plan, or the part of its rank. True when with this
    /// the whole plan was trained on; it is closed then.
    ///
    /// # Errors
    /// A plan that is not open, complete, or next; a difference in rollouts or lengths.
    pub fn report_consumed(&self, plan: u64, shard: (u32, u32), trained: &[Trained]) -> Result<bool, PlansError> {
        let mut state = self.state();
        let (rank, ranks) = shard;
        let places = state.plans.get(&plan).ok_or(DispatchError::NoPlan(plan))?;
        let planned = places.rollouts.len();
        let missing = places.rollouts.iter().filter(|place| place.is_none()).count();
        let batch = places.batch.as_ref().filter(|_| missing == 0);
        let batch = batch.ok_or(PlansError::Unsealed { plan, missing, planned })?;
        let range = batch.shards(ranks)?.into_iter().nth(rank as usize);
        let range = range.ok_or(PlansError::Rank { rank, ranks, expected: ranks })?;
        compare(plan, &batch.rollouts()[range], trained)?;
        // Whoever trained on a sealed plan has judged it; where its turn has not come, the step is refused.
        let ids = (0..planned as u32).map(|index| RolloutId { plan, index });
        let mut actions = Vec::new();
        for rollout in ids {
            actions.extend(state.dispatch.on(Event::Judged { rollout })?);
        }
        state.act(&actions)?;
        if !state.released.contains(&plan) {
            return Err(DispatchError::NotReleased(plan).into());
        }
        let reported = state.plans.get_mut(&plan).map(|places| {
            places.reported.insert(rank);
            places.reported.len()
        });
        if reported != Some(ranks as usize) {
            return Ok(false);
        }
        let actions = state.dispatch.on(Event::Consumed { plan })?;
        state.plans.remove(&plan);
        state.released.retain(|released| *released != plan);
        state.act(&actions)?;
        drop(state);
        self.changed.notify_waiters();
        Ok(true)
    }
}

impl State {
    fn act(&mut self, actions: &[Action]) -> Result<(), PlansError> {
        for action in actions {
            match *action {
                Action::Seal { plan } => self.seal(plan)?,
                Action::Release { plan } => {
                    self.released.push_back(plan);
                    self.score(plan)?;
                }
                Action::Fail(failure) => return Err(failure.into()),
                Action::Sample { .. } | Action::Cancel { .. } => {}
            }
        }
        Ok(())
    }

    fn seal(&mut self, plan: u64) -> Result<(), PlansError> {
        let Some(places) = self.plans.get_mut(&plan) else { return Ok(()) };
        let rollouts: Vec<Rollout> = places.rollouts.iter().flatten().cloned().collect();
        let requests = rollouts.iter().map(|rollout| rollout.request().clone()).collect();
        let mut complete = BatchPlan::restore(plan, requests)?;
        rollouts.into_iter().try_for_each(|rollout| complete.arrive(rollout))?;
        places.batch = Some(complete.seal()?);
        Ok(())
    }

    /// Joins the rewards of a released plan, where Lockstep has them; a driven trainer may keep its own.
    fn score(&mut self, plan: u64) -> Result<(), PlansError> {
        let Some(places) = self.plans.get_mut(&plan) else { return Ok(()) };
        if let Some(batch) = &places.batch
            && batch.rollouts().iter().all(|rollout| self.book.has(rollout.id()))
        {
            places.scored = Some(batch.clone().with_rewards(&mut self.book)?);
        }
        Ok(())
    }
}

/// Ids and lengths of what was trained on against what was given; the order is the trainer's own.
fn compare(plan: u64, given: &[Rollout], trained: &[Trained]) -> Result<(), PlansError> {
    let lengths: BTreeMap<RolloutId, u32> = given.iter().map(|rollout| (rollout.id(), rollout.len() as u32)).collect();
    let mut seen = BTreeSet::new();
    let mut foreign = Vec::new();
    for &Trained { rollout, tokens, .. } in trained {
        match lengths.get(&rollout) {
            Some(&sampled) if sampled != tokens => {
                return Err(PlansError::Length { rollout, trained: tokens, sampled });
            }
            Some(_) if seen.insert(rollout) => {}
            _ => foreign.push(rollout),
        }
    }
    let missing: Vec<RolloutId> = lengths.keys().copied().filter(|rollout| !seen.contains(rollout)).collect();
    if missing.is_empty() && foreign.is_empty() {
        return Ok(());
    }
    Err(PlansError::Difference { plan, trained: trained.len(), given: given.len(), missing, foreign })
}

#[cfg(test)]
mod tests;
