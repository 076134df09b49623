//! The plans of a server: opened, filled from anywhere, sealed, given to trainers, reported back. Shared by every connection.
//!
//! *Driven*: the trainer opens a plan, its requests carry the ids, it seals the plan and reports what it trained on. *Pull*: it
//! asks for the next batch. Both are outcome-blind: what a plan holds was fixed when it was opened. Keeps no ledger and reads no
//! clock; whoever calls it does.

mod consumers;
mod error;
mod place;
mod recover;
mod report;

pub use consumers::Consumer;
pub use error::PlansError;
pub use place::Taken;
pub use report::Reported;

use crate::ledger::TrainedOn;
use consumers::Consumers;
use lockstep_core::{
    Batch, BatchPlan, Delta, Dispatch, RolloutId, SamplingParams, TokenId,
    dispatch::{Action, DispatchError, Event, Rules},
    plan::PlanError,
    reward::{Outcome, RewardError},
    rollout::Request,
};
use place::Places;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

/// Most rollouts in a plan.
pub const MAX_ROLLOUTS: u64 = 1 << 20;
/// Closed plans whose reports are remembered, so that a report that is sent again is known.
const REMEMBERED: usize = 64;

/// A complete batch, or a rank's part of it.
#[derive(Debug, Clone)]
pub struct Sealed {
    /// The batch.
    pub batch: Arc<Batch>,
    /// Of every rollout the reward it has, in dispatch order.
    pub rewards: Vec<Option<f64>>,
    /// Whether it is given for the first time.
    pub first: bool,
}

/// An open plan, as far as it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Its number.
    pub plan: u64,
    /// Rollouts it has.
    pub rollouts: usize,
    /// Rollouts that are complete.
    pub arrived: usize,
    /// Rollouts whose reward is known.
    pub judged: usize,
}

#[derive(Debug)]
struct State {
    dispatch: Dispatch,
    plans: BTreeMap<u64, Places>,
    released: VecDeque<u64>,
    consumers: Consumers,
    /// The last plans that were trained on, each with its reports.
    closed: VecDeque<(u64, Vec<Vec<TrainedOn>>)>,
    /// Whether plans are opened here, from prompts, until there are no more.
    feeding: bool,
    /// Why nothing more will come, where that is a fault.
    stopped: Option<String>,
}

/// Every plan of a server.
#[derive(Debug)]
pub struct Plans {
    state: Mutex<State>,
    changed: Notify,
}

/// A plan that was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// Its number.
    pub plan: u64,
    /// Its ids in dispatch order.
    pub rollouts: Vec<RolloutId>,
    /// Whether it was open already.
    pub again: bool,
}

impl Plans {
    /// No plans yet; the first gets number `first`. A consumer's lease is `lease` milliseconds long.
    pub fn new(rules: Rules, first: u64, lease: u64) -> Self {
        let state = State {
            dispatch: Dispatch::new(rules, first),
            plans: BTreeMap::new(),
            released: VecDeque::new(),
            consumers: Consumers::new(lease),
            closed: VecDeque::new(),
            feeding: false,
            stopped: None,
        };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something, and lets everybody who waits look again.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> Result<T, PlansError>) -> Result<T, PlansError> {
        let changed = change(&mut self.state());
        self.changed.notify_waiters();
        changed
    }

    /// Looks again at every change, until there is something to give.
    async fn when<T>(&self, look: impl Fn(&mut State) -> Result<Option<T>, PlansError>) -> Result<T, PlansError> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let found = look(&mut self.state())?;
            match found {
                Some(found) => return Ok(found),
                None => changed.await,
            }
        }
    }

    /// Fixes the membership of a plan whose prompts come with its requests: `groups` prompts, `answers` to each. Gives its ids in
    /// dispatch order, group 0's answers first. Who says which number it must get may ask again: a plan of that number and
    /// shape that is open is given once more.
    ///
    /// # Errors
    /// Too many open plans: the trainer first trains on one of those it has. A plan of nothing, of more than
    /// [`MAX_ROLLOUTS`], or of another number than the one asked for.
    pub fn open(&self, groups: u32, answers: u32, asked: Option<u64>) -> Result<Opened, PlansError> {
        let rollouts = u64::from(groups) * u64::from(answers);
        if rollouts > MAX_ROLLOUTS {
            return Err(PlansError::TooMany { groups, answers, rollouts });
        }
        let (plan, again) = self.change(|state| {
            if let Some(plan) = asked.filter(|&asked| asked != state.dispatch.next_number()) {
                let same = state.plans.get(&plan).is_some_and(|places| places.has_shape(groups, answers));
                let next = state.dispatch.next_number();
                return if same { Ok((plan, true)) } else { Err(PlansError::Number { plan, groups, answers, next }) };
            }
            let (plan, _) = state.dispatch.open(rollouts as u32)?;
            state.plans.insert(plan, Places::of(plan, groups, answers));
            Ok((plan, false))
        })?;
        Ok(Opened { plan, rollouts: (0..rollouts as u32).map(|index| RolloutId { plan, index }).collect(), again })
    }

    /// Fixes the membership of a plan whose requests are known. The number they carry must be [`Plans::next_number`].
    ///
    /// # Errors
    /// As [`Plans::open`], and a plan of another number.
    pub fn open_plan(&self, plan: &BatchPlan) -> Result<(), PlansError> {
        self.change(|state| {
            let requests = plan.requests();
            if let (Some(next), Some(first)) = (state.dispatch.may_open(), requests.first())
                && first.id.plan != next
            {
                return Err(PlanError::Order { plan: next, index: 0, found: first.id }.into());
            }
            let (number, _) = state.dispatch.open(requests.len() as u32)?;
            state.plans.insert(number, Places::planned(number, requests.to_vec()));
            Ok(())
        })
    }

    /// The number the next plan gets, where one may be opened now.
    pub fn next_number(&self) -> Option<u64> {
        self.state().dispatch.may_open()
    }

    /// Waits until a plan may be opened, and gives its number.
    pub async fn room(&self) -> u64 {
        // Looking for room finds no error.
        self.when(|state| Ok(state.dispatch.may_open())).await.unwrap_or_default()
    }

    /// Whether plans are opened here, from prompts: until this is switched off again, a plan that is not there yet is waited for.
    pub fn feed(&self, feeding: bool) {
        self.state().feeding = feeding;
        self.changed.notify_waiters();
    }

    /// Nothing more will come, and whoever waits is told why.
    pub fn stop(&self, why: String) {
        self.state().stopped = Some(why);
        self.changed.notify_waiters();
    }

    /// Takes a rollout to draw it: new, or from where it broke off, or as it is where it is complete.
    ///
    /// # Errors
    /// A rollout of no open plan, that is being drawn, or that was asked with another prompt or other parameters; a prompt
    /// that is not its siblings'.
    pub fn take(&self, id: RolloutId, prompt: &[TokenId], params: SamplingParams) -> Result<Taken, PlansError> {
        let mut state = self.state();
        let next = state.dispatch.next_number();
        let taken = state.places(id.plan, next)?.take(id, prompt, params)?;
        Ok(Taken { attempt: state.dispatch.attempts(id).unwrap_or(taken.attempt), ..taken })
    }

    /// An answer has ended, or broken off with what there is of it.
    ///
    /// # Errors
    /// An answer of no open plan, one that is there already, deltas that do not fold.
    pub fn ended(&self, request: &Request, deltas: Vec<Arc<Delta>>) -> Result<(), PlansError> {
        self.change(|state| {
            let rollout = request.id;
            let places = state.plans.get_mut(&rollout.plan).ok_or(DispatchError::NoRollout(rollout))?;
            if !places.ended(request, deltas)? {
                return Ok(());
            }
            let actions = state.dispatch.on(Event::Arrived { rollout })?;
            state.act(&actions)
        })
    }

    /// An answer that is drawn from here broke off, and goes on; too often ends its plan.
    ///
    /// # Errors
    /// The limit, and an answer of no open plan.
    pub fn broke(&self, rollout: RolloutId) -> Result<(), PlansError> {
        self.change(|state| {
            let actions = state.dispatch.on(Event::Broke { rollout })?;
            state.act(&actions)
        })
    }

    /// The requests of a plan that are not answered yet, in dispatch order.
    pub fn unanswered(&self, plan: u64) -> Vec<Request> {
        self.state().plans.get(&plan).map_or_else(Vec::new, Places::unanswered)
    }

    /// Whether an outcome may be noted: false where it is already.
    ///
    /// # Errors
    /// A rollout of no open plan, a reward that is no number or contradicts an earlier one.
    pub fn may_judge(&self, rollout: RolloutId, outcome: &Outcome) -> Result<bool, PlansError> {
        let mut state = self.state();
        let next = state.dispatch.next_number();
        let places = state.places(rollout.plan, next)?;
        places.check(rollout)?;
        let reward = outcome.reward();
        if !reward.is_finite() {
            return Err(RewardError::NotFinite { rollout, reward }.into());
        }
        match places.reward(rollout) {
            Some(first) if first != reward => Err(RewardError::Contradicts { rollout, first, second: reward }.into()),
            first => Ok(first.is_none()),
        }
    }

    /// Notes how judging a rollout came out; rewards that come before their batch is complete wait.
    ///
    /// # Errors
    /// As [`Plans::may_judge`].
    pub fn judge(&self, rollout: RolloutId, outcome: &Outcome) -> Result<(), PlansError> {
        self.may_judge(rollout, outcome)?;
        self.change(|state| {
            let places = state.plans.get_mut(&rollout.plan).ok_or(DispatchError::NoRollout(rollout))?;
            places.book.record(rollout, outcome)?;
            places.rewards.insert(rollout.index, outcome.reward());
            let actions = state.dispatch.on(Event::Judged { rollout })?;
            state.act(&actions)
        })
    }

    /// Judging a rollout failed; gives how often it has.
    ///
    /// # Errors
    /// A rollout of no open plan.
    pub fn judging_failed(&self, rollout: RolloutId) -> Result<u32, PlansError> {
        let mut state = self.state();
        let next = state.dispatch.next_number();
        let places = state.places(rollout.plan, next)?;
        places.check(rollout)?;
        let failures = places.failures.entry(rollout.index).or_default();
        *failures += 1;
        Ok(*failures)
    }

    /// Rollouts of a plan whose reward is not known, in dispatch order.
    pub fn unjudged(&self, plan: u64) -> Vec<RolloutId> {
        self.state().plans.get(&plan).map_or_else(Vec::new, Places::unjudged)
    }

    /// Waits until every rollout of a plan is judged, or the plan is not open any more.
    pub async fn judged(&self, plan: u64) {
        let judged = |state: &mut State| {
            let open = state.plans.get(&plan);
            Ok(open.is_none_or(|places| places.unjudged().is_empty()).then_some(()))
        };
        // Looking finds no error.
        self.when(judged).await.unwrap_or_default();
    }

    /// Waits until every rollout of the plan is there; gives the batch, and of every rollout the reward it has.
    ///
    /// # Errors
    /// A plan that is not open, or that failed.
    pub async fn seal(&self, plan: u64) -> Result<Sealed, PlansError> {
        self.when(|state| state.sealed(plan)).await
    }

    /// Waits for the next batch of a consumer: the first released plan of which its rank has not reported its part. Asking
    /// again gives the same part again. None when no more will come. `now` in milliseconds.
    ///
    /// # Errors
    /// A rank that another consumer holds, a rank there is not, more ranks than groups, a plan that failed.
    pub async fn next(&self, consumer: &Consumer, now: u64) -> Result<Option<Sealed>, PlansError> {
        self.heartbeat(consumer, now)?;
        self.when(|state| state.ready(consumer)).await
    }

    /// A sign of life of a consumer at `now`, in milliseconds. Without one for the length of a lease, another may take its rank
    /// and is given what this one was.
    ///
    /// # Errors
    /// A rank that another consumer holds, a rank there is not.
    pub fn heartbeat(&self, consumer: &Consumer, now: u64) -> Result<(), PlansError> {
        self.change(|state| {
            let begun = state.plans.values().any(|places| !places.consumed.is_empty());
            state.consumers.renew(consumer, now, begun)
        })
    }

    /// Every open plan, oldest first.
    pub fn open_plans(&self) -> Vec<Progress> {
        self.state().plans.iter().map(|(&plan, places)| places.progress(plan)).collect()
    }
}

impl State {
    fn places(&mut self, plan: u64, next: u64) -> Result<&mut Places, PlansError> {
        let missing = if plan < next { PlansError::Closed(plan) } else { DispatchError::NoPlan(plan).into() };
        self.plans.get_mut(&plan).ok_or(missing)
    }

    fn act(&mut self, actions: &[Action]) -> Result<(), PlansError> {
        for action in actions {
            match *action {
                Action::Seal { plan } => {
                    self.plans.get_mut(&plan).map(|places| places.seal(plan)).transpose()?;
                }
                Action::Release { plan } => self.released.push_back(plan),
                Action::Fail(failure) => return Err(failure.into()),
                Action::Sample { .. } | Action::Cancel { .. } => {}
            }
        }
        Ok(())
    }

    fn sealed(&mut self, plan: u64) -> Result<Option<Sealed>, PlansError> {
        let next = self.dispatch.next_number();
        if plan >= next && self.feeding {
            return Ok(None);
        }
        if let Some(failure) = self.dispatch.failure(plan) {
            return Err(failure.into());
        }
        Ok(self.places(plan, next)?.sealed())
    }

    fn ready(&self, consumer: &Consumer) -> Result<Option<Option<Sealed>>, PlansError> {
        self.consumers.holds(consumer)?;
        for plan in &self.released {
            let Some(places) = self.plans.get(plan) else { continue };
            let Some(sealed) = places.part(consumer)? else { continue };
            return Ok(Some(Some(sealed)));
        }
        if let Some(why) = &self.stopped {
            return Err(PlansError::Stopped(why.clone()));
        }
        if let Some(failure) = self.dispatch.plans().find_map(|plan| self.dispatch.failure(plan)) {
            return Err(failure.into());
        }
        let waits = self.feeding || self.dispatch.plans().any(|plan| !self.released.contains(&plan));
        Ok((!waits).then_some(None))
    }
}

#[cfg(test)]
mod tests;
