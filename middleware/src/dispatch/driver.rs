//! The state machine of dispatch against real samplers, the ledger and the clock.
//!
//! What a sampler says is durable before the machine hears of it; a sampler that breaks off, or says nothing for the length of
//! its lease, is lost, and its answers go on elsewhere from their recorded tokens.

use super::{
    calls::{Calls, Life, Said},
    error::DispatchError,
    history::History,
};
use crate::ledger::{Ledger, LedgerError, Record, SentAnswer, SentRecord};
use futures_util::stream::AbortHandle;
use lockstep_core::{
    Batch, BatchPlan, Delta, Dispatch, RewardBook, Rollout, RolloutId, ScoredBatch, TokenId, WeightVersion,
    dispatch::{Action, Event, Rules, SamplerId, lease::Leases},
    ports::{PortError, SampleRequest, Sampler, StepReport},
    reward::Outcome,
    rollout::FoldError,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    future::Future,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::time::Instant;

/// Judges an answer of a sealed batch.
pub type Judge = Arc<dyn Fn(&Rollout) -> Outcome + Send + Sync>;

/// A sampler, and how many answers it draws at a time.
#[expect(missing_debug_implementations, reason = "its port is a trait object without one")]
pub struct Station {
    /// Its name in the ledger.
    pub name: String,
    /// The sampler.
    pub sampler: Arc<dyn Sampler>,
    /// Answers at a time.
    pub slots: u32,
}

/// What bounds a driver.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Open plans, order of training, limits on attempts.
    pub rules: Rules,
    /// A sampler that owes answers and says nothing for so long is lost.
    pub lease: Duration,
    /// Number of the first plan of an empty ledger.
    pub first: u64,
}

struct Seat {
    station: Station,
    life: u32,
    joined: bool,
    /// Whether it said anything since it joined.
    spoke: bool,
    calls: Vec<AbortHandle>,
}

/// Fills plans and gives batches, in the order in which they may be trained on.
pub struct Driver {
    dispatch: Dispatch,
    seats: Vec<Seat>,
    ledger: Ledger,
    judge: Judge,
    book: RewardBook,
    plans: BTreeMap<u64, BatchPlan>,
    answers: BTreeMap<RolloutId, Vec<Delta>>,
    versions: BTreeMap<u64, BTreeSet<WeightVersion>>,
    sealed_before: BTreeSet<u64>,
    batches: BTreeMap<u64, Batch>,
    released: VecDeque<ScoredBatch>,
    calls: Calls,
    leases: Leases<SamplerId>,
    began: Instant,
    said_last: PortError,
}

impl Driver {
    /// Goes on from what a ledger says, with a trainer that goes on at `restored`; an empty history is a beginning.
    ///
    /// # Errors
    /// A history that contradicts itself or the trainer, a ledger that cannot be written.
    pub fn start(
        settings: Settings,
        stations: Vec<Station>,
        judge: Judge,
        (ledger, history, restored): (Ledger, History, WeightVersion),
    ) -> Result<Self, DispatchError> {
        let rules = settings.rules;
        let life = u32::from(!history.is_empty());
        let seat = |station| Seat { station, life, joined: false, spoke: false, calls: Vec::new() };
        let mut driver = Self {
            dispatch: Dispatch::new(rules, history.next_plan().max(settings.first)),
            seats: stations.into_iter().map(seat).collect(),
            ledger,
            judge,
            book: RewardBook::default(),
            plans: BTreeMap::new(),
            answers: BTreeMap::new(),
            versions: BTreeMap::new(),
            sealed_before: BTreeSet::new(),
            batches: BTreeMap::new(),
            released: VecDeque::new(),
            calls: Calls::default(),
            leases: Leases::new(settings.lease.as_millis() as u64),
            began: Instant::now(),
            said_last: PortError::Unavailable("no sampler was asked".into()),
        };
        let (max_open_plans, window) = (rules.max_open_plans, rules.window() as u32);
        driver.ledger.append(&Record::Dispatch { max_open_plans, window })?;
        driver.recover(history, restored)?;
        driver.ledger.sync()?;
        Ok(driver)
    }

    /// Lets the samplers draw; until then what is open waits, so that they can be given their weights first.
    ///
    /// # Errors
    /// As [`Driver::next`].
    pub fn draw(&mut self) -> Result<(), DispatchError> {
        let waiting: Vec<usize> = (0..self.seats.len()).filter(|&at| !self.seats[at].joined).collect();
        waiting.into_iter().try_for_each(|at| self.join(at))
    }

    fn recover(&mut self, mut history: History, restored: WeightVersion) -> Result<(), DispatchError> {
        if history.is_empty() {
            return Ok(());
        }
        history.check(restored)?;
        let open: Vec<u64> = history.open(restored.step).collect();
        let (mut resumed, mut resampled) = (Vec::new(), Vec::new());
        for &plan in &open {
            for (index, found) in (0..).zip(history.recovered(plan)).filter(|(_, found)| !found.finished) {
                match found.tokens {
                    0 if found.attempts > 0 => resampled.push(RolloutId { plan, index }),
                    0 => {}
                    tokens => resumed.push((RolloutId { plan, index }, tokens)),
                }
            }
        }
        let again = history.again(restored.step);
        self.ledger.append(&Record::Resumed { restored, again, resumed, resampled })?;
        self.sealed_before = std::mem::take(&mut history.sealed);
        for plan in open {
            let recovered = history.recovered(plan);
            let (empty, requests) = (history.plan(plan)?, history.requests.remove(&plan).unwrap_or_default());
            for id in requests.iter().map(|request| request.id) {
                let deltas = history.deltas.remove(&id).unwrap_or_default();
                deltas.iter().for_each(|delta| self.note_version(delta));
                self.answers.insert(id, deltas);
                if let Some(reward) = history.rewards.remove(&id) {
                    self.book.post(id, reward)?;
                }
            }
            self.plans.insert(plan, empty);
            let actions = self.dispatch.recover(plan, &recovered)?;
            self.act(actions)?;
        }
        Ok(())
    }

    /// The number the next plan gets, where one may be opened now.
    pub fn may_open(&self) -> Option<u64> {
        self.dispatch.may_open()
    }

    /// Opens a plan in the ledger, and has it sampled as far as there are slots.
    ///
    /// # Errors
    /// A plan of another number than [`Driver::may_open`] says, a ledger that cannot keep it.
    pub fn open(&mut self, plan: BatchPlan) -> Result<(), DispatchError> {
        let (number, answers) = (plan.number(), plan.requests().len() as u32);
        self.ledger.append(&Record::PlanOpened { plan: number, requests: plan.requests().to_vec() })?;
        self.ledger.sync()?;
        self.plans.insert(number, plan);
        let (_, actions) = self.dispatch.open(answers)?;
        self.act(actions)
    }

    /// Waits for the next batch that may be trained on.
    ///
    /// # Errors
    /// A sampler that refuses, a limit on attempts, a ledger that cannot keep what arrives, no open plan.
    pub async fn next(&mut self) -> Result<ScoredBatch, DispatchError> {
        loop {
            if let Some(batch) = self.released.pop_front() {
                return Ok(batch);
            }
            if self.plans.is_empty() {
                return Err(DispatchError::NothingOpen);
            }
            self.pump().await?;
        }
    }

    /// Goes on filling plans while something else is done.
    ///
    /// # Errors
    /// As [`Driver::next`].
    pub async fn during<T>(&mut self, work: impl Future<Output = T>) -> Result<T, DispatchError> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                pumped = self.pump() => pumped?,
            }
        }
    }

    /// The trainer made its step on a batch: the plan is closed.
    ///
    /// # Errors
    /// A ledger that cannot keep it, a plan that was not released.
    pub fn consumed(&mut self, batch: &ScoredBatch, report: &StepReport) -> Result<(), DispatchError> {
        let rollouts = batch.batch().rollouts().iter().map(Rollout::id).collect();
        let (plan, before, after) = (batch.batch().plan(), report.before, report.after);
        self.write(&Record::Consumed { plan, rollouts, before, after })?;
        self.versions.remove(&plan);
        let actions = self.dispatch.on(Event::Consumed { plan })?;
        self.act(actions)
    }

    /// Writes a record, durably.
    ///
    /// # Errors
    /// A ledger that cannot keep it.
    pub fn write(&mut self, record: &Record) -> Result<(), LedgerError> {
        self.ledger.append(record)?;
        self.ledger.sync()
    }

    /// The versions that drew tokens of plans which are not trained on yet.
    pub fn live_versions(&self) -> BTreeSet<WeightVersion> {
        self.versions.values().flatten().copied().collect()
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Waits for the samplers' next words, and takes them in.
    async fn pump(&mut self) -> Result<(), DispatchError> {
        let due = self.leases.next().map(|end| self.began + Duration::from_millis(end));
        let expired = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        let said = tokio::select! {
            biased;
            said = self.calls.next() => said,
            () = expired => {
                let now = self.now();
                for SamplerId(station) in self.leases.expire(now) {
                    let silent = "it owes answers and said nothing for the length of its lease";
                    self.lose(station as usize, PortError::Unavailable(silent.into()))?;
                }
                return Ok(());
            }
        };
        match said {
            Some(said) => self.hear(said),
            None => std::future::pending().await,
        }
    }

    /// Makes durable what was said, then lets the machine know.
    fn hear(&mut self, said: Vec<(Life, Said)>) -> Result<(), DispatchError> {
        let (mut deltas, mut broken, mut ended) = (Vec::new(), Vec::new(), Vec::new());
        for (life, said) in said {
            if self.seats[life.station].life != life.count {
                continue;
            }
            match said {
                Said::Delta(delta) if self.dispatch.holds(SamplerId(life.station as u32), delta.rollout) => {
                    deltas.push((life.station, *delta));
                }
                Said::Delta(delta) => {
                    tracing::warn!(rollout = %delta.rollout, "tokens nobody asked for are not recorded")
                }
                Said::Broke(error) => broken.push((life, error)),
                Said::Ended(rollouts) => ended.push((life, rollouts)),
            }
        }
        let at = milliseconds_since_1970();
        for (_, delta) in &deltas {
            self.ledger.append_delta(delta)?;
            if delta.finish.is_some() {
                self.ledger.append(&Record::Arrived { rollout: delta.rollout, at })?;
            }
        }
        self.ledger.sync()?;
        for (station, delta) in deltas {
            self.acknowledge(station, delta)?;
        }
        for (life, error) in broken {
            if self.seats[life.station].life == life.count {
                self.lose(life.station, error)?;
            }
        }
        ended.into_iter().try_for_each(|(life, rollouts)| self.end(life, &rollouts))
    }

    /// A call is over: every answer of it must be complete.
    fn end(&self, life: Life, rollouts: &[RolloutId]) -> Result<(), DispatchError> {
        let sampler = SamplerId(life.station as u32);
        let held = |rollout: &&RolloutId| self.dispatch.holds(sampler, **rollout);
        match rollouts.iter().find(held).filter(|_| self.seats[life.station].life == life.count) {
            None => Ok(()),
            Some(&rollout) => {
                let deltas = self.answers.get(&rollout).into_iter().flatten();
                let tokens = deltas.map(|delta| delta.behavior.len()).sum();
                Err(FoldError::Unfinished { rollout, tokens }.into())
            }
        }
    }

    fn note_version(&mut self, delta: &Delta) {
        self.versions.entry(delta.rollout.plan).or_default().extend(delta.stamp.version());
    }

    fn acknowledge(&mut self, station: usize, delta: Delta) -> Result<(), DispatchError> {
        let (sampler, rollout, finished) = (SamplerId(station as u32), delta.rollout, delta.finish.is_some());
        let tokens = delta.behavior.len() as u32;
        self.seats[station].spoke = true;
        self.leases.renew(sampler, self.now());
        self.note_version(&delta);
        self.answers.entry(rollout).or_default().push(delta);
        let mut actions = self.dispatch.on(Event::Recorded { sampler, rollout, tokens })?;
        if finished {
            actions.extend(self.dispatch.on(Event::Finished { sampler, rollout })?);
        }
        self.act(actions)?;
        if !self.dispatch.draws(sampler) {
            self.leases.end(&sampler);
        }
        Ok(())
    }

    /// A sampler is gone, or will never do what it was asked.
    fn lose(&mut self, station: usize, error: PortError) -> Result<(), DispatchError> {
        if !matches!(error, PortError::Unavailable(_)) {
            let plan = self.dispatch.plans().next().unwrap_or(0);
            let planned = self.plans.get(&plan).map_or(0, |plan| plan.requests().len());
            let finished = |deltas: &&Vec<Delta>| deltas.last().is_some_and(|delta| delta.finish.is_some());
            let of_plan = self.answers.range(RolloutId { plan, index: 0 }..RolloutId { plan: plan + 1, index: 0 });
            let arrived = of_plan.map(|(_, deltas)| deltas).filter(finished).count();
            return Err(DispatchError::Sampler { plan, arrived, planned, source: error });
        }
        let sampler = SamplerId(station as u32);
        let seat = &mut self.seats[station];
        tracing::warn!(sampler = seat.station.name, %error, "resuming what the sampler broke off");
        self.said_last = error;
        seat.life += 1;
        seat.joined = false;
        let spoke = std::mem::take(&mut seat.spoke);
        seat.calls.drain(..).for_each(|call| call.abort());
        self.leases.end(&sampler);
        let actions = self.dispatch.on(Event::Lost { sampler })?;
        self.act(actions)?;
        // One that only ever breaks off must not use up the attempts of answers that others could draw.
        if spoke {
            self.join(station)?;
        }
        if self.seats.iter().all(|seat| !seat.joined) {
            for station in 0..self.seats.len() {
                self.join(station)?;
            }
        }
        Ok(())
    }

    fn join(&mut self, station: usize) -> Result<(), DispatchError> {
        let seat = &mut self.seats[station];
        seat.joined = true;
        let resumes = seat.station.sampler.capabilities().resumes;
        let (sampler, slots) = (SamplerId(station as u32), seat.station.slots);
        let actions = self.dispatch.on(Event::Joined { sampler, slots, resumes })?;
        self.act(actions)
    }

    fn act(&mut self, actions: Vec<Action>) -> Result<(), DispatchError> {
        let mut sends = BTreeMap::<(SamplerId, u64), Vec<SentAnswer>>::new();
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Sample { sampler, rollout, tokens, attempt } => {
                    sends.entry((sampler, rollout.plan)).or_default().push(SentAnswer { rollout, attempt, tokens });
                }
                Action::Cancel { sampler, rollout } => {
                    let sampler = self.seats[sampler.0 as usize].station.sampler.clone();
                    tokio::spawn(async move { sampler.cancel(&[rollout]).await });
                }
                Action::Seal { plan } => actions.extend(self.seal(plan)?),
                Action::Release { plan } => self.release(plan)?,
                Action::Fail(failure) => {
                    return Err(DispatchError::Failed { failure, source: self.said_last.clone() });
                }
            }
        }
        sends.into_iter().try_for_each(|((sampler, _), answers)| self.send(sampler, answers))
    }

    fn send(&mut self, sampler: SamplerId, answers: Vec<SentAnswer>) -> Result<(), DispatchError> {
        let requests: Vec<SampleRequest> = answers.iter().filter_map(|answer| self.request(answer)).collect();
        let now = self.now();
        let station = sampler.0 as usize;
        let seat = &mut self.seats[station];
        let name = seat.station.name.clone();
        self.ledger.append(&Record::Sent(SentRecord { sampler: name, at: milliseconds_since_1970(), answers }))?;
        self.ledger.sync()?;
        let life = Life { station, count: seat.life };
        seat.calls.retain(|call| !call.is_aborted());
        seat.calls.push(self.calls.begin(life, seat.station.sampler.clone(), requests));
        self.leases.renew(sampler, now);
        Ok(())
    }

    fn request(&mut self, answer: &SentAnswer) -> Option<SampleRequest> {
        let plan = self.plans.get(&answer.rollout.plan)?;
        let mut request = plan.requests().get(answer.rollout.index as usize)?.clone();
        request.params = request.params.for_attempt(answer.attempt);
        let deltas = self.answers.entry(answer.rollout).or_default();
        if answer.tokens == 0 {
            deltas.clear();
        }
        let resumed: Vec<TokenId> = deltas.iter().flat_map(|delta| delta.behavior.tokens().iter().copied()).collect();
        Some(SampleRequest { request, resumed })
    }

    /// Everybody is there: the batch is made, and reward enters for the first time.
    fn seal(&mut self, number: u64) -> Result<Vec<Action>, DispatchError> {
        let Some(mut plan) = self.plans.remove(&number) else { return Ok(Vec::new()) };
        for request in plan.requests().to_vec() {
            let deltas = self.answers.remove(&request.id).unwrap_or_default();
            let attempts = self.dispatch.attempts(request.id).unwrap_or(1);
            plan.arrive(Rollout::fold(request, deltas)?.with_attempts(attempts))?;
        }
        let batch = plan.seal()?;
        if !self.sealed_before.contains(&number) {
            self.ledger.append(&Record::PlanSealed { plan: number })?;
        }
        let mut actions = Vec::new();
        for rollout in batch.rollouts().iter().filter(|rollout| !self.book.has(rollout.id())).collect::<Vec<_>>() {
            let (id, outcome) = (rollout.id(), (self.judge)(rollout));
            self.book.record(id, &outcome)?;
            self.ledger.append(&match outcome {
                Outcome::Reward(reward) => Record::Reward { rollout: id, reward },
                Outcome::Failed { reason, counts_as } => Record::RewardFailed { rollout: id, reason, counts_as },
            })?;
            actions.extend(self.dispatch.on(Event::Judged { rollout: id })?);
        }
        self.ledger.sync()?;
        self.batches.insert(number, batch);
        Ok(actions)
    }

    fn release(&mut self, plan: u64) -> Result<(), DispatchError> {
        if let Some(batch) = self.batches.remove(&plan) {
            self.released.push_back(batch.with_rewards(&mut self.book)?);
        }
        Ok(())
    }
}

pub(crate) fn milliseconds_since_1970() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let samplers: Vec<&str> = self.seats.iter().map(|seat| &*seat.station.name).collect();
        f.debug_struct("Driver").field("samplers", &samplers).field("dispatch", &self.dispatch).finish_non_exhaustive()
    }
}
