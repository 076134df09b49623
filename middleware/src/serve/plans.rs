//! Who belongs to which plan: fixed when a plan is opened, before anything of it is sampled. Holds what has arrived until the
//! batch is complete, and the reward that waits for it.
//!
//! A request that names no rollout is a plan of its own, known here as long as it can be resumed.

use super::{draw::Order, refusal::Refusal};
use crate::ledger::TrainedOn;
use lockstep_core::{
    Batch, BatchPlan, Delta, RewardBook, Rollout, RolloutId, SamplingParams, TokenId, rollout::Request,
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::watch;

/// Most rollouts in a plan.
pub const MAX_ROLLOUTS: u64 = 1 << 20;
/// Requests of no plan that are remembered for their rewards.
const REMEMBERED: usize = 65_536;
/// Tokens of broken answers of no plan that are kept to be resumed.
const KEPT_TOKENS: usize = 1 << 20;

/// A rollout of a plan that drives the loop itself.
#[derive(Debug)]
enum Slot {
    Open,
    Drawing(Request),
    Broken(Request, Vec<Arc<Delta>>),
    Done(Rollout),
}

#[derive(Debug)]
struct Driven {
    answers: u32,
    slots: Vec<Slot>,
    sealed: Option<Arc<Batch>>,
    rewards: Rewards,
    consumed: bool,
    changed: watch::Sender<usize>,
}

/// Rewards that wait for their batch; only a sealed batch opens them.
#[derive(Debug, Default)]
struct Rewards {
    book: RewardBook,
    posted: BTreeMap<RolloutId, f64>,
}

impl Rewards {
    fn post(&mut self, id: RolloutId, reward: f64) -> Result<(), Refusal> {
        self.book.post(id, reward).map_err(|error| Refusal::conflict(error.to_string()))?;
        self.posted.insert(id, reward);
        Ok(())
    }

    fn of(&self, batch: &Batch) -> Vec<Option<f64>> {
        batch.rollouts().iter().map(|rollout| self.posted.get(&rollout.id()).copied()).collect()
    }
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    driven: BTreeMap<u64, Driven>,
    loose: VecDeque<(u64, u32)>,
    broken: VecDeque<(Request, Vec<Arc<Delta>>)>,
    kept_tokens: usize,
}

/// All plans of this gateway.
#[derive(Debug, Default)]
pub struct Plans(Mutex<Inner>);

/// A batch, and one reward a rollout where it was posted.
#[derive(Debug, Clone)]
pub struct Sealed {
    /// The batch.
    pub batch: Arc<Batch>,
    /// Rewards in dispatch order.
    pub rewards: Vec<Option<f64>>,
    /// Whether it was complete for the first time.
    pub first: bool,
}

impl Plans {
    /// Numbers of plans begin here.
    pub fn from_number(next: u64) -> Self {
        Self(Mutex::new(Inner { next, ..Inner::default() }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a plan: so many prompts, so many answers to each. Gives its number and its rollouts in dispatch order.
    ///
    /// # Errors
    /// A plan without rollouts, or with more than [`MAX_ROLLOUTS`].
    pub fn open(&self, groups: u32, answers: u32) -> Result<(u64, Vec<RolloutId>), Refusal> {
        let size = u64::from(groups) * u64::from(answers);
        if size == 0 || size > MAX_ROLLOUTS {
            let message =
                format!("a plan of {groups} groups with {answers} answers each has {size} rollouts, not 1..=");
            return Err(Refusal::request(format!("{message}{MAX_ROLLOUTS}")));
        }
        let mut inner = self.inner();
        let plan = inner.next;
        inner.next += 1;
        inner.driven.insert(plan, Driven::new(size as usize, answers));
        Ok((plan, (0..size as u32).map(|index| RolloutId { plan, index }).collect()))
    }

    /// A plan that was opened before a restart.
    pub(super) fn reopen(&self, plan: u64, groups: u32, answers: u32) {
        let size = groups as usize * answers as usize;
        self.inner().driven.insert(plan, Driven::new(size, answers));
    }

    /// The requests of a client that names no rollout: a plan of its own. `params` has one entry an answer.
    pub fn loose(
        &self,
        prompts: &[Vec<TokenId>],
        params: impl Fn(RolloutId) -> Result<SamplingParams, Refusal>,
        n: u32,
    ) -> Result<Vec<Request>, Refusal> {
        let mut inner = self.inner();
        let plan = inner.next;
        let answers =
            prompts.iter().enumerate().flat_map(|(group, prompt)| (0..n).map(move |_| (group as u32, prompt)));
        let requests = answers.enumerate().map(|(index, (group, prompt))| {
            let id = RolloutId { plan, index: index as u32 };
            Ok(Request { id, group, prompt: prompt.clone(), params: params(id)? })
        });
        let requests = requests.collect::<Result<Vec<_>, Refusal>>()?;
        inner.next += 1;
        if inner.loose.len() == REMEMBERED {
            inner.loose.pop_front();
        }
        inner.loose.push_back((plan, requests.len() as u32));
        Ok(requests)
    }

    /// The order for a rollout a client names: new, or resumed where it broke off, or told again where it is finished.
    ///
    /// # Errors
    /// A rollout nobody planned, that is being drawn, or that was asked with another prompt or other parameters; a prompt
    /// that is not its siblings'.
    pub fn take(&self, id: RolloutId, prompt: &[TokenId], params: SamplingParams) -> Result<Order, Refusal> {
        let mut inner = self.inner();
        if !inner.driven.contains_key(&id.plan) {
            return inner.take_broken(id, prompt, &params);
        }
        let unknown = || Refusal::unknown(format!("rollout {id} is of no open plan"));
        let driven = inner.driven.get_mut(&id.plan).ok_or_else(unknown)?;
        let planned = driven.slots.len();
        if id.index as usize >= planned {
            return Err(Refusal::unknown(format!("rollout {id} is not among the {planned} of plan {}", id.plan)));
        }
        if driven.sealed.is_some() {
            return Err(Refusal::conflict(format!("plan {} is sealed; rollout {id} stays as it is", id.plan)));
        }
        let group = id.index / driven.answers;
        driven.check_siblings(id, prompt)?;
        let asked = Request { id, group, prompt: prompt.to_vec(), params };
        driven.take(asked)
    }

    /// An answer has ended, or broken off with what there is of it.
    pub fn ended(&self, request: &Request, deltas: Vec<Arc<Delta>>) {
        let mut inner = self.inner();
        let finished = deltas.last().is_some_and(|delta| delta.finish.is_some());
        if let Some(driven) = inner.driven.get_mut(&request.id.plan) {
            driven.ended(request, deltas);
        } else if !finished && !deltas.is_empty() {
            inner.keep(request.clone(), deltas);
        }
    }

    /// Notes a reward.
    ///
    /// # Errors
    /// An unknown rollout, a reward that is not finite or contradicts an earlier one.
    pub fn reward(&self, id: RolloutId, reward: f64) -> Result<(), Refusal> {
        if !reward.is_finite() {
            return Err(Refusal::field("reward", format!("reward {reward} of rollout {id} is not a finite number")));
        }
        let mut inner = self.inner();
        if let Some(driven) = inner.driven.get_mut(&id.plan).filter(|driven| (id.index as usize) < driven.slots.len()) {
            return driven.rewards.post(id, reward);
        }
        let loose = inner.loose.binary_search_by_key(&id.plan, |&(plan, _)| plan).ok();
        let answers = loose.and_then(|at| inner.loose.get(at)).map_or(0, |&(_, answers)| answers);
        if id.index < answers { Ok(()) } else { Err(Refusal::unknown(format!("rollout {id} is not known here"))) }
    }

    /// The batch of a plan, when every rollout is there.
    ///
    /// # Errors
    /// An unknown plan, a plan that was consumed, or one that still waits for rollouts.
    pub fn seal(&self, plan: u64) -> Result<Sealed, Refusal> {
        let mut inner = self.inner();
        let driven = inner.driven.get_mut(&plan).ok_or_else(|| no_plan(plan))?;
        if driven.consumed {
            return Err(Refusal::conflict(format!("plan {plan} was consumed already")));
        }
        let first = driven.sealed.is_none();
        let batch = match &driven.sealed {
            Some(batch) => batch.clone(),
            None => driven.seal(plan)?,
        };
        let rewards = driven.rewards.of(&batch);
        Ok(Sealed { batch, rewards, first })
    }

    /// What changes with every rollout of a plan that arrives.
    ///
    /// # Errors
    /// An unknown plan, or one that was consumed.
    pub fn arrivals(&self, plan: u64) -> Result<watch::Receiver<usize>, Refusal> {
        let inner = self.inner();
        let driven = inner.driven.get(&plan).ok_or_else(|| no_plan(plan))?;
        if driven.consumed {
            return Err(Refusal::conflict(format!("plan {plan} was consumed already")));
        }
        Ok(driven.changed.subscribe())
    }

    /// Waits until every rollout of a plan is there.
    ///
    /// # Errors
    /// An unknown plan, or one that was consumed.
    pub async fn seal_when_complete(&self, plan: u64) -> Result<Sealed, Refusal> {
        let mut arrivals = self.arrivals(plan)?;
        let planned = self.size(plan)?;
        let gone = || Refusal::conflict(format!("plan {plan} was closed while it was waited for"));
        arrivals.wait_for(|arrived| *arrived == planned).await.map_err(|_| gone())?;
        self.seal(plan)
    }

    fn size(&self, plan: u64) -> Result<usize, Refusal> {
        self.inner().driven.get(&plan).map(|driven| driven.slots.len()).ok_or_else(|| no_plan(plan))
    }

    /// Holds what a trainer trained on against its plan. A plan that fits is closed, and its batch let go.
    ///
    /// # Errors
    /// A plan that is not sealed, and every difference: the first one is named with both sides.
    pub fn consumed(&self, plan: u64, rollouts: &[TrainedOn]) -> Result<(), Refusal> {
        let mut inner = self.inner();
        let driven = inner.driven.get_mut(&plan).ok_or_else(|| no_plan(plan))?;
        if driven.consumed {
            return Err(Refusal::conflict(format!("plan {plan} was consumed already")));
        }
        let unsealed =
            || Refusal::conflict(format!("plan {plan} is not sealed, so nothing of it can have been trained on"));
        let batch = driven.sealed.as_ref().ok_or_else(unsealed)?;
        difference(batch, rollouts).map_or(Ok(()), |difference| Err(Refusal::conflict(difference)))?;
        driven.consumed = true;
        driven.sealed = None;
        driven.rewards = Rewards::default();
        driven.slots = Vec::new();
        Ok(())
    }

    /// Plans that are open or sealed.
    pub fn open_plans(&self) -> usize {
        self.inner().driven.values().filter(|driven| !driven.consumed).count()
    }
}

fn no_plan(plan: u64) -> Refusal {
    Refusal::unknown(format!("there is no plan {plan} that was opened here"))
}

/// The first difference between a batch and what was trained on.
fn difference(batch: &Batch, rollouts: &[TrainedOn]) -> Option<String> {
    let plan = batch.plan();
    let mut said = BTreeMap::new();
    for consumed in rollouts {
        if said.insert(consumed.rollout, consumed).is_some() {
            return Some(format!("plan {plan}: rollout {} was trained on twice", consumed.rollout));
        }
    }
    let planned = batch.rollouts().len();
    for rollout in batch.rollouts() {
        let (id, sampled) = (rollout.id(), rollout.len() as u32);
        let Some(TrainedOn { tokens, masked_in, .. }) = said.remove(&id) else {
            let trained = rollouts.len();
            return Some(format!("plan {plan} has {planned} rollouts, {trained} were trained on: {id} is missing"));
        };
        if *tokens != sampled {
            return Some(format!("rollout {id} has {sampled} sampled tokens, but was trained on with {tokens}"));
        }
        if *masked_in != sampled {
            return Some(format!("rollout {id} has {sampled} sampled tokens, but the mask kept {masked_in}"));
        }
    }
    said.keys().next().map(|id| format!("rollout {id} was trained on, but is not among the {planned} of plan {plan}"))
}

impl Driven {
    fn new(size: usize, answers: u32) -> Self {
        let slots = std::iter::repeat_with(|| Slot::Open).take(size).collect();
        let changed = watch::Sender::new(0);
        Self { answers, slots, sealed: None, rewards: Rewards::default(), consumed: false, changed }
    }

    fn check_siblings(&self, id: RolloutId, prompt: &[TokenId]) -> Result<(), Refusal> {
        let first = (id.index / self.answers * self.answers) as usize;
        let group = &self.slots[first..(first + self.answers as usize).min(self.slots.len())];
        for slot in group {
            let (other, sibling) = match slot {
                Slot::Open => continue,
                Slot::Drawing(request) | Slot::Broken(request, _) => (request.id, &*request.prompt),
                Slot::Done(rollout) => (rollout.id(), rollout.prompt()),
            };
            if other != id && sibling != prompt {
                return Err(Refusal::conflict(format!(
                    "rollouts {other} and {id} answer one prompt of the plan, but were sent different ones of {} and {} ids",
                    sibling.len(),
                    prompt.len()
                )));
            }
        }
        Ok(())
    }

    fn take(&mut self, asked: Request) -> Result<Order, Refusal> {
        let id = asked.id;
        let other =
            || Refusal::conflict(format!("rollout {id} was asked before, with another prompt or other parameters"));
        let slot = &mut self.slots[id.index as usize];
        let have = match slot {
            Slot::Open => Vec::new(),
            Slot::Drawing(_) => return Err(Refusal::conflict(format!("rollout {id} is being drawn"))),
            Slot::Broken(request, _) if *request != asked => return Err(other()),
            Slot::Broken(_, deltas) => std::mem::take(deltas),
            Slot::Done(rollout) if *rollout.request() != asked => return Err(other()),
            Slot::Done(rollout) => {
                let have = crate::wire::batch::split(rollout).map(Arc::new).collect();
                return Ok(Order { request: asked, have, planned: true, stops: None, permit: None });
            }
        };
        *slot = Slot::Drawing(asked.clone());
        Ok(Order { request: asked, have, planned: true, stops: None, permit: None })
    }

    fn ended(&mut self, request: &Request, deltas: Vec<Arc<Delta>>) {
        let Some(slot) = self.slots.get_mut(request.id.index as usize) else { return };
        if matches!(slot, Slot::Done(_)) {
            return;
        }
        let finished = deltas.last().is_some_and(|delta| delta.finish.is_some());
        *slot = match finished.then(|| Rollout::fold(request.clone(), deltas.iter().map(|delta| (**delta).clone()))) {
            Some(Ok(rollout)) => Slot::Done(rollout),
            Some(Err(error)) => {
                tracing::error!(rollout = %request.id, %error, "deltas that passed every check do not fold");
                Slot::Broken(request.clone(), Vec::new())
            }
            None => Slot::Broken(request.clone(), deltas),
        };
        let arrived = self.slots.iter().filter(|slot| matches!(slot, Slot::Done(_))).count();
        self.changed.send_replace(arrived);
    }

    fn seal(&mut self, plan: u64) -> Result<Arc<Batch>, Refusal> {
        let done = |slot: &Slot| matches!(slot, Slot::Done(_));
        let (planned, missing) = (self.slots.len(), self.slots.iter().filter(|slot| !done(slot)).count());
        if let Some(first) = self.slots.iter().position(|slot| !done(slot)) {
            let first = RolloutId { plan, index: first as u32 };
            let incomplete = lockstep_core::plan::PlanError::Incomplete { plan, missing, planned, first };
            return Err(Refusal::conflict(incomplete.to_string()));
        }
        let rollouts: Vec<Rollout> = self.slots.iter_mut().filter_map(Slot::give).collect();
        let refused = |error: lockstep_core::plan::PlanError| Refusal::internal(error.to_string());
        let requests = rollouts.iter().map(|rollout| rollout.request().clone()).collect();
        let mut open = BatchPlan::restore(plan, requests).map_err(refused)?;
        rollouts.into_iter().try_for_each(|rollout| open.arrive(rollout)).map_err(refused)?;
        let batch = Arc::new(open.seal().map_err(refused)?);
        self.sealed = Some(batch.clone());
        Ok(batch)
    }
}

impl Slot {
    fn give(&mut self) -> Option<Rollout> {
        match std::mem::replace(self, Self::Open) {
            Self::Done(rollout) => Some(rollout),
            other => {
                *self = other;
                None
            }
        }
    }
}

fn tokens(deltas: &[Arc<Delta>]) -> usize {
    deltas.iter().map(|delta| delta.behavior.len()).sum()
}

impl Inner {
    /// Keeps a broken answer; the oldest ones make room.
    fn keep(&mut self, request: Request, deltas: Vec<Arc<Delta>>) {
        self.kept_tokens += tokens(&deltas);
        self.broken.push_back((request, deltas));
        while self.kept_tokens > KEPT_TOKENS && self.broken.len() > 1 {
            let oldest = self.broken.pop_front();
            self.kept_tokens -= oldest.map_or(0, |(_, deltas)| tokens(&deltas));
        }
    }

    fn take_broken(&mut self, id: RolloutId, prompt: &[TokenId], params: &SamplingParams) -> Result<Order, Refusal> {
        let unknown =
            || Refusal::unknown(format!("rollout {id} is of no open plan, and nothing of it waits to be resumed"));
        let at = self.broken.iter().position(|(request, _)| request.id == id).ok_or_else(unknown)?;
        let same =
            self.broken.get(at).is_some_and(|(request, _)| request.prompt == prompt && request.params == *params);
        if !same {
            let message = format!("rollout {id} was asked before, with another prompt or other parameters");
            return Err(Refusal::conflict(message));
        }
        let (request, have) = self.broken.remove(at).ok_or_else(unknown)?;
        self.kept_tokens -= tokens(&have);
        Ok(Order { request, have, planned: false, stops: None, permit: None })
    }
}
