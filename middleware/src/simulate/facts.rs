//! What happened to every answer of a schedule, as it is written down.

use super::{Disturbance, Scenario, random};
use crate::audit::{Account, BatchFacts, PlanFacts, RolloutFacts};
use lockstep_core::{RolloutId, WeightVersion};
use std::collections::BTreeMap;

/// A number of training steps.
pub(super) type Step = u64;

#[derive(Debug)]
pub(super) struct Facts {
    pub(super) rollouts: BTreeMap<RolloutId, RolloutFacts>,
    plans: Vec<PlanFacts>,
    batches: Vec<BatchFacts>,
    arrivals: u64,
    arrived_at_step: BTreeMap<RolloutId, Step>,
}

fn version(step: Step) -> WeightVersion {
    WeightVersion { epoch: 0, step }
}

impl Facts {
    pub(super) fn new() -> Self {
        Self {
            rollouts: BTreeMap::new(),
            plans: Vec::new(),
            batches: Vec::new(),
            arrivals: 0,
            arrived_at_step: BTreeMap::new(),
        }
    }

    pub(super) fn open(&mut self, scenario: &Scenario, plan: u64) {
        for index in 0..scenario.planned() {
            let id = RolloutId { plan, index };
            self.rollouts.insert(id, RolloutFacts::new(id, index / scenario.answers));
        }
        let rollouts = (0..scenario.planned()).map(|index| RolloutId { plan, index }).collect();
        let (after, max_open_plans) = (self.batches.len(), Some(u64::from(scenario.rules.max_open_plans)));
        self.plans.push(PlanFacts { plan, rollouts, after, max_open_plans, sampled_before: None });
    }

    pub(super) fn of(&mut self, rollout: RolloutId) -> &mut RolloutFacts {
        self.rollouts.entry(rollout).or_insert_with(|| RolloutFacts::new(rollout, 0))
    }

    pub(super) fn sent(&mut self, rollout: RolloutId, (by, attempt): (u32, u32), now: u64) {
        let facts = self.of(rollout);
        facts.sent_at.get_or_insert(now);
        facts.attempts = attempt;
        facts.sampler = Some(format!("sampler-{by}"));
    }

    pub(super) fn drawn(&mut self, rollout: RolloutId, tokens: u32, step: Step) {
        if tokens > 0 {
            let facts = self.of(rollout);
            facts.tokens += tokens;
            facts.first_version.get_or_insert(version(step));
        }
    }

    pub(super) fn arrived(&mut self, scenario: &Scenario, rollout: RolloutId, (now, step): (u64, Step)) {
        self.arrived_at_step.insert(rollout, step);
        let place = self.arrivals;
        self.arrivals += 1;
        let facts = self.of(rollout);
        (facts.arrival, facts.arrived_at) = (Some(place), Some(now));
        facts.reward = Some(judged(scenario, rollout, facts.tokens));
    }

    /// Tokens that were recorded and are not part of the answer; `said` when the ledger says that they are gone.
    pub(super) fn discard(&mut self, rollout: RolloutId, said: bool) {
        let facts = self.of(rollout);
        facts.discarded += if said { 0 } else { facts.tokens };
        (facts.tokens, facts.first_version) = (0, None);
    }

    pub(super) fn trained(&mut self, scenario: &Scenario, batch: &[RolloutId], step: Step) {
        let trained = batch.iter().map(|&rollout| (rollout, self.tokens(rollout))).collect();
        let (before, window) = (Some(version(step)), scenario.rules.window());
        self.batches.push(BatchFacts { plan: None, trained, before, any_order: false, window });
    }

    pub(super) fn tokens(&self, rollout: RolloutId) -> u32 {
        self.rollouts.get(&rollout).map_or(0, |facts| facts.tokens)
    }

    pub(super) fn reward(&self, rollout: RolloutId) -> f64 {
        self.rollouts.get(&rollout).and_then(|facts| facts.reward).unwrap_or(f64::NAN)
    }

    pub(super) fn first_step(&self, rollout: RolloutId) -> Step {
        self.rollouts.get(&rollout).and_then(|facts| facts.first_version).map_or(0, |version| version.step)
    }

    /// Steps made between the first token of an answer and its last.
    pub(super) fn age(&self, rollout: RolloutId) -> Step {
        let arrived = self.arrived_at_step.get(&rollout).copied().unwrap_or(0);
        arrived.saturating_sub(self.first_step(rollout))
    }

    pub(super) fn account(self) -> Account {
        Account { rollouts: self.rollouts, plans: self.plans, batches: self.batches }
    }
}

/// Longer answers are right less often; a failure counts as 0.
fn judged(scenario: &Scenario, rollout: RolloutId, tokens: u32) -> f64 {
    let RolloutId { plan, index } = rollout;
    let salt = if let Disturbance::Rewards(salt) = scenario.disturbance { salt } else { 0 };
    let draw = |what: u64| random::unit(&[scenario.seed, salt, plan, u64::from(index), what]);
    let hardness = f64::from(tokens) / scenario.lengths.median;
    let right = draw(21) < scenario.judging.right / hardness.max(0.5).sqrt() && draw(22) >= scenario.judging.fails;
    f64::from(u8::from(right))
}
