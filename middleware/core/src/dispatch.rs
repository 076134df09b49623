//! Dispatch as a state machine: events in, actions out. Decides who samples what, and when a plan may be trained on.
//!
//! Sees names, counts of tokens and failures; neither a token nor the value of a reward, and so cannot select by them. Does no
//! IO and knows no clock: a lease that runs out is an event. A plan is *open* from its opening until it was trained on; at
//! most [`Rules::max_open_plans`] are, which bounds the lag by construction, so that nothing is ever dropped for its age.

pub mod lease;
mod release;
#[cfg(test)]
mod tests;
mod words;

use crate::token::RolloutId;
use std::collections::{BTreeMap, BTreeSet};

pub use words::{Action, DispatchError, Event, Failure, Mode, Recovered, Rules, SamplerId};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Drawn(SamplerId),
    Finished,
}

#[derive(Debug, Clone, Copy)]
struct Answer {
    tokens: u32,
    attempts: u32,
    interruptions: u32,
    stage: Stage,
    judged: bool,
}

const NEW: Answer = Answer { tokens: 0, attempts: 1, interruptions: 0, stage: Stage::Waiting, judged: false };

#[derive(Debug)]
struct Open {
    answers: Vec<Answer>,
    unfinished: usize,
    unjudged: usize,
    released: bool,
    failure: Option<Failure>,
}

#[derive(Debug)]
struct Bench {
    slots: u32,
    resumes: bool,
    drawing: BTreeSet<RolloutId>,
}

impl Bench {
    fn free(&self) -> u32 {
        self.slots - self.drawing.len() as u32
    }
}

/// The machine.
#[derive(Debug)]
pub struct Dispatch {
    rules: Rules,
    next: u64,
    plans: BTreeMap<u64, Open>,
    samplers: BTreeMap<SamplerId, Bench>,
    /// Waiting answers, in dispatch order: without tokens, and with.
    fresh: BTreeSet<RolloutId>,
    partial: BTreeSet<RolloutId>,
}

impl Dispatch {
    /// A machine whose first plan has this number.
    pub fn new(rules: Rules, first: u64) -> Self {
        Self {
            rules,
            next: first,
            plans: BTreeMap::new(),
            samplers: BTreeMap::new(),
            fresh: BTreeSet::new(),
            partial: BTreeSet::new(),
        }
    }

    /// The rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The number the next plan gets, where one may be opened now.
    pub fn may_open(&self) -> Option<u64> {
        (self.plans.len() < self.rules.max_open_plans.max(1) as usize).then_some(self.next)
    }

    /// The number of the next plan; every smaller one was opened.
    pub fn next_number(&self) -> u64 {
        self.next
    }

    /// Fixes the membership of the next plan: so many answers, named by the plan and their place.
    ///
    /// # Errors
    /// Too many open plans, a plan of nothing.
    pub fn open(&mut self, answers: u32) -> Result<(u64, Vec<Action>), DispatchError> {
        let (open, max) = (self.plans.len(), self.rules.max_open_plans.max(1));
        let plan = self.may_open().ok_or(DispatchError::Full { open, max })?;
        let actions = self.insert(plan, vec![NEW; answers as usize])?;
        Ok((plan, actions))
    }

    /// A plan that was opened before and not trained on, as the ledger tells it; in the order of their numbers. An answer that
    /// was sent and of which nothing was recorded has lost its tokens.
    ///
    /// # Errors
    /// A plan of nothing.
    pub fn recover(&mut self, plan: u64, answers: &[Recovered]) -> Result<Vec<Action>, DispatchError> {
        let recovered = answers.iter().map(|found| Answer {
            tokens: found.tokens,
            attempts: found.attempts + u32::from(found.tokens == 0),
            stage: if found.finished { Stage::Finished } else { Stage::Waiting },
            judged: found.judged,
            ..NEW
        });
        self.insert(plan, recovered.collect())
    }

    fn insert(&mut self, plan: u64, answers: Vec<Answer>) -> Result<Vec<Action>, DispatchError> {
        if answers.is_empty() {
            return Err(DispatchError::Empty(plan));
        }
        for (index, answer) in (0..).zip(&answers).filter(|(_, answer)| answer.stage == Stage::Waiting) {
            let waiting = if answer.tokens == 0 { &mut self.fresh } else { &mut self.partial };
            waiting.insert(RolloutId { plan, index });
        }
        let unfinished = answers.iter().filter(|answer| answer.stage != Stage::Finished).count();
        let unjudged = answers.iter().filter(|answer| !answer.judged).count();
        self.plans.insert(plan, Open { answers, unfinished, unjudged, released: false, failure: None });
        self.next = self.next.max(plan + 1);
        let mut actions = Vec::new();
        if unfinished == 0 {
            actions.push(Action::Seal { plan });
        }
        self.release(&mut actions);
        self.assign(&mut actions);
        Ok(actions)
    }

    /// Numbers of the open plans, oldest first.
    pub fn plans(&self) -> impl Iterator<Item = u64> + '_ {
        self.plans.keys().copied()
    }

    /// Why a plan failed, when it did.
    pub fn failure(&self, plan: u64) -> Option<Failure> {
        self.plans.get(&plan).and_then(|open| open.failure)
    }

    /// How often an answer of an open plan was sampled from its first token.
    pub fn attempts(&self, rollout: RolloutId) -> Option<u32> {
        self.answer(rollout).map(|answer| answer.attempts)
    }

    /// Whether an answer is being drawn by a sampler; tokens of any other are late, and must not be recorded.
    pub fn holds(&self, sampler: SamplerId, rollout: RolloutId) -> bool {
        self.answer(rollout).is_some_and(|answer| answer.stage == Stage::Drawn(sampler))
    }

    /// Whether a sampler draws anything.
    pub fn draws(&self, sampler: SamplerId) -> bool {
        self.samplers.get(&sampler).is_some_and(|bench| !bench.drawing.is_empty())
    }

    /// Answers being drawn, and slots there are.
    pub fn busy(&self) -> (usize, usize) {
        let drawing = self.samplers.values().map(|bench| bench.drawing.len()).sum();
        (drawing, self.samplers.values().map(|bench| bench.slots as usize).sum())
    }

    /// Takes one event in.
    ///
    /// # Errors
    /// An event that contradicts what is known; nothing has changed then.
    pub fn on(&mut self, event: Event) -> Result<Vec<Action>, DispatchError> {
        let mut actions = Vec::new();
        match event {
            Event::Joined { sampler, slots, resumes } => {
                self.join(sampler, Bench { slots, resumes, drawing: BTreeSet::new() })?
            }
            Event::Recorded { sampler, rollout, tokens } => self.held(sampler, rollout)?.tokens += tokens,
            Event::Finished { sampler, rollout } => {
                self.held(sampler, rollout)?;
                self.finish(rollout, &mut actions);
            }
            Event::Arrived { rollout } => self.arrive(rollout, &mut actions)?,
            Event::Lost { sampler } => self.lose(sampler, &mut actions)?,
            Event::Gone { rollout } => self.gone(rollout, &mut actions)?,
            Event::Broke { rollout } => self.broke(rollout, &mut actions)?,
            Event::Judged { rollout } => self.judge(rollout)?,
            Event::Consumed { plan } => self.consume(plan)?,
        }
        self.release(&mut actions);
        self.assign(&mut actions);
        Ok(actions)
    }

    fn answer(&self, rollout: RolloutId) -> Option<&Answer> {
        self.plans.get(&rollout.plan)?.answers.get(rollout.index as usize)
    }

    fn find(&mut self, rollout: RolloutId) -> Result<&mut Answer, DispatchError> {
        let open = self.plans.get_mut(&rollout.plan);
        open.and_then(|open| open.answers.get_mut(rollout.index as usize)).ok_or(DispatchError::NoRollout(rollout))
    }

    fn held(&mut self, sampler: SamplerId, rollout: RolloutId) -> Result<&mut Answer, DispatchError> {
        let answer = self.find(rollout)?;
        match answer.stage {
            Stage::Drawn(by) if by == sampler => Ok(answer),
            Stage::Finished => Err(DispatchError::Twice(rollout)),
            _ => Err(DispatchError::NotHeld { sampler, rollout }),
        }
    }

    fn join(&mut self, sampler: SamplerId, bench: Bench) -> Result<(), DispatchError> {
        if self.samplers.contains_key(&sampler) {
            return Err(DispatchError::SamplerTwice(sampler));
        }
        self.samplers.insert(sampler, bench);
        Ok(())
    }

    /// An answer that no sampler of this machine draws.
    fn elsewhere(&mut self, rollout: RolloutId) -> Result<&mut Answer, DispatchError> {
        let answer = self.find(rollout)?;
        match answer.stage {
            Stage::Waiting => Ok(answer),
            Stage::Finished => Err(DispatchError::Twice(rollout)),
            Stage::Drawn(sampler) => Err(DispatchError::NotHeld { sampler, rollout }),
        }
    }

    fn arrive(&mut self, rollout: RolloutId, actions: &mut Vec<Action>) -> Result<(), DispatchError> {
        self.elsewhere(rollout)?;
        self.finish(rollout, actions);
        Ok(())
    }

    fn broke(&mut self, rollout: RolloutId, actions: &mut Vec<Action>) -> Result<(), DispatchError> {
        let limit = self.rules.max_interruptions;
        let answer = self.elsewhere(rollout)?;
        answer.interruptions += 1;
        if answer.interruptions > limit {
            self.fail(Failure::Interruptions { rollout, limit }, actions);
        }
        Ok(())
    }

    /// Takes an answer from wherever it is: a sampler or a queue.
    fn detach(&mut self, rollout: RolloutId) {
        if let Some(&Answer { stage: Stage::Drawn(sampler), .. }) = self.answer(rollout)
            && let Some(bench) = self.samplers.get_mut(&sampler)
        {
            bench.drawing.remove(&rollout);
        }
        self.fresh.remove(&rollout);
        self.partial.remove(&rollout);
    }

    fn finish(&mut self, rollout: RolloutId, actions: &mut Vec<Action>) {
        self.detach(rollout);
        if let Some(open) = self.plans.get_mut(&rollout.plan) {
            open.answers[rollout.index as usize].stage = Stage::Finished;
            open.unfinished -= 1;
            if open.unfinished == 0 {
                actions.push(Action::Seal { plan: rollout.plan });
            }
        }
    }

    fn lose(&mut self, sampler: SamplerId, actions: &mut Vec<Action>) -> Result<(), DispatchError> {
        let bench = self.samplers.remove(&sampler).ok_or(DispatchError::NoSampler(sampler))?;
        for rollout in bench.drawing {
            let limit = self.rules.max_interruptions;
            let Ok(answer) = self.find(rollout) else { continue };
            answer.stage = Stage::Waiting;
            answer.interruptions += 1;
            let broken_off = answer.interruptions > limit;
            if broken_off {
                self.fail(Failure::Interruptions { rollout, limit }, actions);
            } else {
                self.wait(rollout, actions);
            }
        }
        Ok(())
    }

    fn gone(&mut self, rollout: RolloutId, actions: &mut Vec<Action>) -> Result<(), DispatchError> {
        let answer = self.find(rollout)?;
        if answer.stage == Stage::Finished {
            return Err(DispatchError::Twice(rollout));
        }
        let stage = answer.stage;
        self.detach(rollout);
        let answer = self.find(rollout)?;
        (answer.tokens, answer.stage) = (0, Stage::Waiting);
        if let Stage::Drawn(sampler) = stage {
            actions.push(Action::Cancel { sampler, rollout });
        }
        self.wait(rollout, actions);
        Ok(())
    }

    /// Queues an answer again: it goes on from its tokens, and begins anew only where there are none.
    fn wait(&mut self, rollout: RolloutId, actions: &mut Vec<Action>) {
        let limit = self.rules.max_attempts;
        if self.failure(rollout.plan).is_some() {
            return;
        }
        let Ok(answer) = self.find(rollout) else { return };
        if answer.tokens > 0 {
            self.partial.insert(rollout);
            return;
        }
        answer.attempts += 1;
        if answer.attempts > limit {
            self.fail(Failure::Attempts { rollout, limit }, actions);
        } else {
            self.fresh.insert(rollout);
        }
    }

    /// Ends a plan, whole.
    fn fail(&mut self, failure: Failure, actions: &mut Vec<Action>) {
        let plan = failure.rollout().plan;
        let Some(open) = self.plans.get_mut(&plan).filter(|open| open.failure.is_none()) else { return };
        open.failure = Some(failure);
        let stages: Vec<Stage> = open.answers.iter().map(|answer| answer.stage).collect();
        for (index, stage) in (0..).zip(stages) {
            let rollout = RolloutId { plan, index };
            if let Stage::Drawn(sampler) = stage
                && self.samplers.contains_key(&sampler)
            {
                actions.push(Action::Cancel { sampler, rollout });
            }
            self.detach(rollout);
            if let Ok(answer) = self.find(rollout)
                && answer.stage != Stage::Finished
            {
                answer.stage = Stage::Waiting;
            }
        }
        actions.push(Action::Fail(failure));
    }

    /// Gives free slots to waiting answers, in dispatch order.
    fn assign(&mut self, actions: &mut Vec<Action>) {
        loop {
            let to_any = self.roomiest(|_| true).zip(self.fresh.first().copied());
            let to_resuming = self.roomiest(|bench| bench.resumes).zip(self.partial.first().copied());
            let first = to_any.into_iter().chain(to_resuming).min_by_key(|&(_, rollout)| rollout);
            let Some((sampler, rollout)) = first else { break };
            self.detach(rollout);
            let Ok(answer) = self.find(rollout) else { break };
            answer.stage = Stage::Drawn(sampler);
            let (tokens, attempt) = (answer.tokens, answer.attempts);
            if let Some(bench) = self.samplers.get_mut(&sampler) {
                bench.drawing.insert(rollout);
            }
            actions.push(Action::Sample { sampler, rollout, tokens, attempt });
        }
        self.strand(actions);
    }

    /// Where samplers are there and none of them resumes, an answer with tokens has no way on.
    fn strand(&mut self, actions: &mut Vec<Action>) {
        let (samplers, resume) = (self.samplers.len(), self.samplers.values().any(|bench| bench.resumes));
        if samplers > 0
            && !resume
            && let Some(&rollout) = self.partial.first()
        {
            let tokens = self.answer(rollout).map_or(0, |answer| answer.tokens);
            self.fail(Failure::NobodyResumes { rollout, tokens, samplers }, actions);
        }
    }

    fn roomiest(&self, fit: impl Fn(&Bench) -> bool) -> Option<SamplerId> {
        let free = self.samplers.iter().filter(|(_, bench)| fit(bench) && bench.free() > 0);
        free.max_by_key(|&(&id, bench)| (bench.free(), std::cmp::Reverse(id))).map(|(&id, _)| id)
    }
}
