//! What a trainer says it trained on, held against what it was given.

use super::{Plans, PlansError, REMEMBERED, State};
use crate::ledger::TrainedOn;
use lockstep_core::{
    Batch, Rollout, RolloutId,
    dispatch::{DispatchError, Event},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// What a report came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reported {
    /// A part of the plan; other ranks have not reported.
    Part,
    /// With this the whole plan was trained on; it is closed.
    Whole,
    /// The same report was taken before.
    Again,
}

impl Plans {
    /// Holds what a trainer trained on against what it was given: the whole plan, or a rank's part of it. The same report again
    /// changes nothing, and nothing at all changes unless it `counts`: what is to be written down first is looked at first.
    ///
    /// # Errors
    /// A plan that is not open, complete, or next; a difference in rollouts, lengths or masks.
    pub fn report_consumed(&self, plan: u64, trained: &[TrainedOn], counts: bool) -> Result<Reported, PlansError> {
        self.change(|state| state.report(plan, trained, counts))
    }
}

impl State {
    fn report(&mut self, plan: u64, trained: &[TrainedOn], counts: bool) -> Result<Reported, PlansError> {
        let next = self.dispatch.next_number();
        let closed = self.closed.iter().find(|(number, _)| *number == plan);
        let taken = |reports: &[Vec<TrainedOn>]| {
            reports.iter().any(|report| same(report, trained)) || same(&reports.concat(), trained)
        };
        if closed.is_some_and(|(_, reports)| taken(reports)) {
            return Ok(Reported::Again);
        }
        let ranks = self.consumers.ranks();
        let places = self.places(plan, next)?;
        let (planned, missing) = (places.len(), places.missing());
        let batch = places.batch().cloned().ok_or(PlansError::Unsealed { plan, missing, planned })?;
        let range = reported(&batch, ranks, trained);
        compare(plan, &batch.rollouts()[range.clone()], trained)?;
        if range.clone().all(|index| places.consumed.contains(&(index as u32))) {
            return Ok(Reported::Again);
        }
        let whole = places.consumed.len() + range.len() >= planned;
        self.judge_all(plan, planned)?;
        if !self.released.contains(&plan) {
            return Err(DispatchError::NotReleased(plan).into());
        }
        if !counts {
            return Ok(if whole { Reported::Whole } else { Reported::Part });
        }
        let places = self.places(plan, next)?;
        places.consumed.extend(range.map(|index| index as u32));
        places.reports.push(trained.to_vec());
        if places.consumed.len() < planned {
            return Ok(Reported::Part);
        }
        let reports = std::mem::take(&mut places.reports);
        self.close(plan, reports)?;
        Ok(Reported::Whole)
    }

    /// Whoever trained on a sealed plan has judged it; where its turn has not come, the step is refused.
    fn judge_all(&mut self, plan: u64, planned: usize) -> Result<(), PlansError> {
        for index in 0..planned as u32 {
            let actions = self.dispatch.on(Event::Judged { rollout: RolloutId { plan, index } })?;
            self.act(&actions)?;
        }
        Ok(())
    }

    fn close(&mut self, plan: u64, reports: Vec<Vec<TrainedOn>>) -> Result<(), PlansError> {
        let actions = self.dispatch.on(Event::Consumed { plan })?;
        self.plans.remove(&plan);
        self.released.retain(|released| *released != plan);
        if self.closed.len() == REMEMBERED {
            self.closed.pop_front();
        }
        self.closed.push_back((plan, reports));
        self.act(&actions)
    }
}

/// The order is the trainer's own.
fn same(one: &[TrainedOn], other: &[TrainedOn]) -> bool {
    one.len() == other.len() && other.iter().all(|row| one.contains(row))
}

/// The part of a batch a report is about: all of it, or the part of the rank that has its first rollout.
fn reported(batch: &Batch, ranks: u32, trained: &[TrainedOn]) -> Range<usize> {
    let (all, first) = (0..batch.rollouts().len(), trained.first().map(|one| one.rollout.index as usize));
    if ranks == 1 || trained.len() >= all.len() {
        return all;
    }
    let shards = batch.shards(ranks).unwrap_or_default();
    shards.into_iter().find(|shard| first.is_some_and(|first| shard.contains(&first))).unwrap_or(all)
}

/// Ids, lengths and masks of what was trained on against what was given; the order is the trainer's own.
fn compare(plan: u64, given: &[Rollout], trained: &[TrainedOn]) -> Result<(), PlansError> {
    let lengths: BTreeMap<RolloutId, u32> = given.iter().map(|rollout| (rollout.id(), rollout.len() as u32)).collect();
    let mut seen = BTreeSet::new();
    let mut foreign = Vec::new();
    for &TrainedOn { rollout, tokens, masked_in: kept } in trained {
        match lengths.get(&rollout) {
            Some(&sampled) if sampled != tokens => {
                return Err(PlansError::Length { rollout, trained: tokens, sampled });
            }
            Some(&sampled) if sampled != kept => return Err(PlansError::Masked { rollout, kept, sampled }),
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
