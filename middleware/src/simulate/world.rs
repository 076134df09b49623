//! The virtual clock, the fake engine and the trainer around the state machine.

use super::{
    Disturbance, Scenario, Simulated,
    facts::Facts,
    policy::{Maker, Policy, taken_up},
    random,
};
use lockstep_core::{
    Dispatch, RolloutId,
    dispatch::{Action, Event, Failure, Rules, SamplerId},
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// The end of an answer, unless its assignment is over.
    End {
        rollout: RolloutId,
        assignment: u64,
    },
    Judged {
        rollout: RolloutId,
    },
    Crash {
        sampler: u32,
        count: u64,
    },
    Back {
        sampler: u32,
        count: u64,
    },
    Trained,
}

#[derive(Debug)]
struct Drawing {
    sampler: SamplerId,
    assignment: u64,
    /// When drawing would have begun, had nothing paused it.
    since: u64,
    /// Of this assignment; counted into the facts already.
    counted: u32,
    /// Tokens the facts had when the assignment began.
    before: u32,
    started: u64,
}

pub(super) struct World<'a> {
    scenario: &'a Scenario,
    dispatch: Dispatch,
    facts: Facts,
    maker: Maker,
    clock: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    now: u64,
    number: u64,
    drawing: BTreeMap<RolloutId, Drawing>,
    unjudged: BTreeSet<RolloutId>,
    ready: VecDeque<(Option<u64>, Vec<RolloutId>)>,
    training: Option<(Option<u64>, Vec<RolloutId>)>,
    step: u64,
    opened: u64,
    largest_lag: u64,
    busy: u64,
    measured_from: Option<u64>,
    failure: Option<Failure>,
}

impl<'a> World<'a> {
    pub(super) fn new(scenario: &'a Scenario) -> Self {
        // The broken rules have no plans; what bounds them is the number of batches, in `admit`.
        let max_open_plans = if scenario.policy.is_planned() { scenario.rules.max_open_plans } else { u32::MAX };
        Self {
            scenario,
            dispatch: Dispatch::new(Rules { max_open_plans, ..scenario.rules }, 0),
            facts: Facts::new(),
            maker: Maker::default(),
            clock: BinaryHeap::new(),
            now: 0,
            number: 0,
            drawing: BTreeMap::new(),
            unjudged: BTreeSet::new(),
            ready: VecDeque::new(),
            training: None,
            step: 0,
            opened: 0,
            largest_lag: 0,
            busy: 0,
            measured_from: None,
            failure: None,
        }
    }

    pub(super) fn run(mut self) -> Simulated {
        for sampler in 0..self.scenario.samplers {
            self.join(sampler, 0);
        }
        self.admit();
        while self.step < self.scenario.steps && self.failure.is_none() {
            let Some(Reverse((now, _, happening))) = self.clock.pop() else { break };
            self.now = now;
            self.happen(happening);
            self.train();
            self.admit();
        }
        let from = self.measured_from.unwrap_or(0);
        let still: u64 = self.drawing.values().map(|drawing| self.now - drawing.started.max(from)).sum();
        let slots = u64::from(self.scenario.samplers * self.scenario.slots) * (self.now - from).max(1);
        Simulated {
            idle_share: 1.0 - (self.busy + still) as f64 / slots as f64,
            largest_lag: self.largest_lag,
            ticks: self.now,
            failure: self.failure,
            account: self.facts.account(),
        }
    }

    fn at(&mut self, time: u64, happening: Happening) {
        self.number += 1;
        self.clock.push(Reverse((time, self.number, happening)));
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::End { rollout, assignment } => self.end(rollout, assignment),
            Happening::Judged { rollout } => {
                self.unjudged.remove(&rollout);
                self.tell(Event::Judged { rollout });
                let batch = self.maker.ready(self.scenario, rollout);
                self.ready.extend(batch.map(|batch| (None, batch)));
            }
            Happening::Crash { sampler, count } => self.crash(sampler, count),
            Happening::Back { sampler, count } => self.join(sampler, count),
            Happening::Trained => self.trained(),
        }
    }

    /// Opens what may be opened.
    fn admit(&mut self) {
        while self.failure.is_none() && self.room() {
            let Ok((plan, actions)) = self.dispatch.open(self.scenario.planned()) else { return };
            self.opened += 1;
            self.facts.open(self.scenario, plan);
            self.unjudged.extend((0..self.scenario.planned()).map(|index| RolloutId { plan, index }));
            self.act(actions);
        }
    }

    fn room(&self) -> bool {
        if self.scenario.policy.is_planned() {
            return self.dispatch.may_open().is_some();
        }
        self.opened - self.step < u64::from(self.scenario.rules.max_open_plans)
            || (self.scenario.policy == Policy::RefillZeroVariance && self.dry())
    }

    /// Everything opened so far is drawn and judged, and still there is no batch.
    fn dry(&self) -> bool {
        self.unjudged.is_empty() && self.ready.is_empty() && self.training.is_none()
    }

    fn tell(&mut self, event: Event) {
        // The world keeps its own account of who draws what, so that a refusal is a fault of this file.
        match self.dispatch.on(event) {
            Ok(actions) => self.act(actions),
            Err(error) => unreachable!("{event:?}: {error}"),
        }
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Sample { sampler, rollout, attempt, .. } => self.draw(sampler, rollout, attempt),
                Action::Cancel { rollout, .. } => self.stop(rollout),
                Action::Seal { .. } => {}
                Action::Release { plan } => self.released(plan),
                Action::Fail(failure) => self.failure = Some(failure),
            }
        }
    }

    fn released(&mut self, plan: u64) {
        let planned = self.scenario.policy.is_planned();
        let batch = self.maker.released(self.scenario, &self.facts, plan);
        self.ready.extend(batch.map(|batch| (planned.then_some(plan), batch)));
        if !planned {
            self.tell(Event::Consumed { plan });
        }
    }

    /// Tokens of an answer, by its attempt.
    fn length(&self, rollout: RolloutId, attempt: u32) -> u32 {
        let Scenario { seed, lengths, .. } = *self.scenario;
        let name = [seed, rollout.plan, u64::from(rollout.index), u64::from(attempt), 11];
        let mut length = random::log_normal(lengths.median, lengths.sigma, &name);
        if let Disturbance::Lengths(salt) = self.scenario.disturbance {
            length *= 8f64.powf(random::unit(&[salt, name[1], name[2], 12]));
        }
        (length as u32).clamp(1, lengths.longest)
    }

    /// Ticks by which an answer comes late.
    fn delay(&self, rollout: RolloutId) -> u64 {
        match self.scenario.disturbance {
            Disturbance::Delays(salt)
                if random::keyed(&[salt, rollout.plan, u64::from(rollout.index)]).is_multiple_of(3) =>
            {
                random::pick(2000, &[salt, rollout.plan, u64::from(rollout.index), 13])
            }
            _ => 0,
        }
    }

    fn draw(&mut self, sampler: SamplerId, rollout: RolloutId, attempt: u32) {
        self.facts.sent(rollout, (sampler.0, attempt), self.now);
        let before = self.facts.tokens(rollout);
        let left = u64::from(self.length(rollout, attempt).saturating_sub(before)) + self.delay(rollout);
        self.number += 1;
        let assignment = self.number;
        let drawing = Drawing { sampler, assignment, since: self.now, counted: 0, before, started: self.now };
        self.drawing.insert(rollout, drawing);
        self.at(self.now + left, Happening::End { rollout, assignment });
    }

    /// Takes an answer out of its slot.
    fn stop(&mut self, rollout: RolloutId) {
        let from = self.measured_from;
        if let (Some(drawing), Some(from)) = (self.drawing.remove(&rollout), from) {
            self.busy += self.now - drawing.started.max(from);
        }
    }

    /// Tokens an answer has drawn in this assignment until now, in whole deltas where its sampler dies.
    fn progress(&self, rollout: RolloutId, flush: u32) -> u32 {
        let Some(drawing) = self.drawing.get(&rollout) else { return 0 };
        let attempt = self.facts.rollouts.get(&rollout).map_or(1, |facts| facts.attempts);
        let most = self.length(rollout, attempt).saturating_sub(drawing.before);
        let drawn = (self.now.saturating_sub(drawing.since) as u32).min(most);
        drawn / flush * flush
    }

    /// Counts what was drawn since the last time at the weights held until now.
    fn count(&mut self, rollout: RolloutId, drawn: u32) {
        let step = self.step;
        let Some(drawing) = self.drawing.get_mut(&rollout) else { return };
        let new = drawn.saturating_sub(drawing.counted);
        drawing.counted += new;
        let sampler = drawing.sampler;
        self.facts.drawn(rollout, new, step);
        if new > 0 {
            self.tell(Event::Recorded { sampler, rollout, tokens: new });
        }
    }

    fn end(&mut self, rollout: RolloutId, assignment: u64) {
        let Some(drawing) = self.drawing.get(&rollout).filter(|drawing| drawing.assignment == assignment) else {
            return;
        };
        let paused = drawing.since - drawing.started;
        let attempt = self.facts.rollouts.get(&rollout).map_or(1, |facts| facts.attempts);
        let left = u64::from(self.length(rollout, attempt).saturating_sub(drawing.before)) + self.delay(rollout);
        let due = drawing.started + paused + left;
        if due > self.now {
            return self.at(due, Happening::End { rollout, assignment });
        }
        let sampler = drawing.sampler;
        self.count(rollout, self.progress(rollout, 1));
        self.stop(rollout);
        self.facts.arrived(self.scenario, rollout, (self.now, self.step));
        self.tell(Event::Finished { sampler, rollout });
        let name = [self.scenario.seed, rollout.plan, u64::from(rollout.index), 14];
        let judged = random::log_normal(self.scenario.judging.delay, 1.0, &name) as u64;
        self.at(self.now + judged, Happening::Judged { rollout });
    }

    fn join(&mut self, sampler: u32, count: u64) {
        self.tell(Event::Joined { sampler: SamplerId(sampler), slots: self.scenario.slots, resumes: true });
        if let Some(crashes) = self.scenario.crashes {
            let after = random::exponential(crashes.every, &[self.scenario.seed, u64::from(sampler), count, 15]);
            self.at(self.now + 1 + after as u64, Happening::Crash { sampler, count });
        }
    }

    fn crash(&mut self, sampler: u32, count: u64) {
        let id = SamplerId(sampler);
        let hit: Vec<RolloutId> =
            self.drawing.iter().filter(|(_, drawing)| drawing.sampler == id).map(|(&rollout, _)| rollout).collect();
        for &rollout in &hit {
            self.count(rollout, self.progress(rollout, self.scenario.flush));
        }
        let lost: Vec<RolloutId> = hit.iter().copied().filter(|&rollout| self.loses(rollout, count)).collect();
        for &rollout in &lost {
            let said = self.scenario.policy == Policy::Planned;
            self.facts.discard(rollout, said);
        }
        for &rollout in &hit {
            self.stop(rollout);
        }
        let gone = lost.iter().map(|&rollout| Event::Gone { rollout });
        // While the sampler is still known its slots are taken, so that nothing is given to it in between.
        match self.dispatch.on(Event::Lost { sampler: id }) {
            Ok(actions) => {
                self.act(actions);
                gone.for_each(|event| self.tell_of_loss(event));
            }
            Err(error) => unreachable!("{error}"),
        }
        let down = self.scenario.crashes.map_or(0, |crashes| crashes.down);
        self.at(self.now + down, Happening::Back { sampler, count: count + 1 });
    }

    /// Tokens are gone; an answer that another sampler took up meanwhile is stopped there.
    fn tell_of_loss(&mut self, event: Event) {
        let Event::Gone { rollout } = event else { return };
        self.stop(rollout);
        match self.dispatch.on(event) {
            Ok(actions) => {
                let begun = actions.into_iter().filter(|action| !matches!(action, Action::Cancel { .. }));
                self.act(begun.collect());
            }
            Err(error) => unreachable!("{error}"),
        }
    }

    /// Whether a crash costs an answer its recorded tokens.
    fn loses(&self, rollout: RolloutId, count: u64) -> bool {
        let Some(drawing) = self.drawing.get(&rollout) else { return false };
        let tokens = self.facts.tokens(rollout);
        let chance = self.scenario.crashes.map_or(0.0, |crashes| crashes.loses_tokens);
        let unlucky = random::unit(&[self.scenario.seed, rollout.plan, u64::from(rollout.index), count, 16]) < chance;
        tokens > 0
            && match self.scenario.policy {
                Policy::ResampleFailures => true,
                Policy::EmptyPartials => drawing.before > 0,
                _ => unlucky,
            }
    }

    /// Takes up the next batch where the trainer is free.
    fn train(&mut self) {
        if self.training.is_some() {
            return;
        }
        if let Some((plan, batch)) = self.ready.pop_front() {
            let batch = taken_up(self.scenario, &self.facts, batch);
            let lag = batch.iter().map(|&rollout| self.step - self.facts.first_step(rollout)).max();
            self.largest_lag = self.largest_lag.max(lag.unwrap_or(0));
            self.training = Some((plan, batch));
            self.at(self.now + self.scenario.train, Happening::Trained);
        }
    }

    /// The step is made: its plan is closed, and the samplers get the new weights.
    fn trained(&mut self) {
        let Some((plan, batch)) = self.training.take() else { return };
        self.facts.trained(self.scenario, &batch, self.step);
        let drawing: Vec<RolloutId> = self.drawing.keys().copied().collect();
        for &rollout in &drawing {
            self.count(rollout, self.progress(rollout, 1));
        }
        self.step += 1;
        self.drawing.values_mut().for_each(|drawing| drawing.since += self.scenario.update);
        if self.step >= self.scenario.steps.div_ceil(4) {
            self.measured_from.get_or_insert(self.now);
        }
        if let Some(plan) = plan {
            self.tell(Event::Consumed { plan });
        }
    }
}
