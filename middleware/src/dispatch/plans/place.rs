//! The places of a plan: what was asked of each, what is there of it, and what was made of them.

use super::{Consumer, PlansError, Progress, Sealed};
use crate::ledger::TrainedOn;
use lockstep_core::{
    Batch, BatchPlan, Delta, RewardBook, Rollout, RolloutId, SamplingParams, TokenId, plan::PlanError, rollout::Request,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// A rollout that was taken to be drawn.
#[derive(Debug, Clone)]
pub struct Taken {
    /// What was asked.
    pub request: Request,
    /// What is there already.
    pub have: Vec<Arc<Delta>>,
    /// 1, and one more for every time its tokens were lost.
    pub attempt: u32,
    /// Whether it is asked for the first time.
    pub first: bool,
}

#[derive(Debug)]
pub(super) enum Place {
    /// Nothing is known but its name.
    Open,
    /// It waits to be drawn, or to go on, with what there is of it; whether the ledger has its request.
    Waiting(Request, Vec<Arc<Delta>>, bool),
    Drawing(Request),
    Done(Box<Rollout>),
}

impl Place {
    fn request(&self) -> Option<&Request> {
        match self {
            Self::Open => None,
            Self::Waiting(request, ..) | Self::Drawing(request) => Some(request),
            Self::Done(rollout) => Some(rollout.request()),
        }
    }
}

/// A plan.
#[derive(Debug)]
pub(super) struct Places {
    plan: u64,
    /// Index of the group of every rollout.
    groups: Vec<u32>,
    /// Empty once the batch is made.
    places: Vec<Place>,
    batch: Option<Arc<Batch>>,
    /// Whether the ledger knows that it is sealed.
    pub(super) told: bool,
    pub(super) book: RewardBook,
    pub(super) rewards: BTreeMap<u32, f64>,
    /// How often judging a place has failed.
    pub(super) failures: BTreeMap<u32, u32>,
    /// Places that a trainer has reported.
    pub(super) consumed: BTreeSet<u32>,
    /// The reports, as they were taken.
    pub(super) reports: Vec<Vec<TrainedOn>>,
}

/// Index of the group of every rollout, in dispatch order.
fn shape(groups: u32, answers: u32) -> impl Iterator<Item = u32> {
    (0..groups).flat_map(move |group| (0..answers).map(move |_| group))
}

impl Places {
    pub(super) fn has_shape(&self, groups: u32, answers: u32) -> bool {
        self.groups.iter().copied().eq(shape(groups, answers))
    }

    pub(super) fn of(plan: u64, groups: u32, answers: u32) -> Self {
        let groups: Vec<u32> = shape(groups, answers).collect();
        let places = groups.iter().map(|_| Place::Open).collect();
        Self::new(plan, groups, places)
    }

    pub(super) fn planned(plan: u64, requests: Vec<Request>) -> Self {
        let groups = requests.iter().map(|request| request.group).collect();
        let places = requests.into_iter().map(|request| Place::Waiting(request, Vec::new(), false)).collect();
        Self::new(plan, groups, places)
    }

    fn new(plan: u64, groups: Vec<u32>, places: Vec<Place>) -> Self {
        let (batch, told, book, rewards, failures, consumed, reports) = Default::default();
        Self { plan, groups, places, batch, told, book, rewards, failures, consumed, reports }
    }

    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    pub(super) fn batch(&self) -> Option<&Arc<Batch>> {
        self.batch.as_ref()
    }

    /// Whether the plan has this rollout.
    pub(super) fn check(&self, rollout: RolloutId) -> Result<u32, PlansError> {
        let (plan, planned) = (self.plan, self.len());
        let group = self.groups.get(rollout.index as usize).copied();
        group.ok_or_else(|| PlanError::Unplanned { plan, rollout, planned }.into())
    }

    pub(super) fn request(&self, rollout: RolloutId) -> Option<Request> {
        self.places.get(rollout.index as usize).and_then(Place::request).cloned()
    }

    /// Puts what a ledger has of a rollout in its place.
    pub(super) fn put(&mut self, index: u32, place: Place) {
        self.places[index as usize] = place;
    }

    pub(super) fn reward(&self, rollout: RolloutId) -> Option<f64> {
        self.rewards.get(&rollout.index).copied()
    }

    pub(super) fn take(
        &mut self,
        id: RolloutId,
        prompt: &[TokenId],
        params: SamplingParams,
    ) -> Result<Taken, PlansError> {
        let group = self.check(id)?;
        let asked = Request { id, group, prompt: prompt.to_vec(), params };
        if let Some(batch) = &self.batch {
            return told(&batch.rollouts()[id.index as usize], asked);
        }
        self.check_siblings(&asked)?;
        let place = &mut self.places[id.index as usize];
        if place.request().is_some_and(|request| *request != asked) {
            return Err(PlansError::Asked(id));
        }
        let (have, first) = match place {
            Place::Open => (Vec::new(), true),
            Place::Waiting(_, have, asked) => (std::mem::take(have), !*asked),
            Place::Drawing(_) => return Err(PlansError::Drawing(id)),
            Place::Done(rollout) => return told(rollout, asked),
        };
        *place = Place::Drawing(asked.clone());
        Ok(Taken { request: asked, have, attempt: 1, first })
    }

    fn check_siblings(&self, asked: &Request) -> Result<(), PlansError> {
        let own = |group: &&u32| **group == asked.group;
        let before = self.groups.iter().take_while(|group| !own(group)).count();
        let group = &self.places[before..before + self.groups[before..].iter().take_while(own).count()];
        let mut siblings = group.iter().filter_map(Place::request).filter(|sibling| sibling.id != asked.id);
        match siblings.find(|sibling| sibling.prompt != asked.prompt) {
            None => Ok(()),
            Some(sibling) => {
                let (rollout, first, second) = (asked.id, sibling.prompt.len(), asked.prompt.len());
                Err(PlansError::Siblings { sibling: sibling.id, rollout, first, second })
            }
        }
    }

    /// Takes an answer back; whether with this it is complete.
    pub(super) fn ended(&mut self, request: &Request, deltas: Vec<Arc<Delta>>) -> Result<bool, PlansError> {
        self.check(request.id)?;
        let Some(place) = self.places.get_mut(request.id.index as usize) else { return Ok(false) };
        if matches!(place, Place::Done(_)) {
            return Ok(false);
        }
        if deltas.last().is_none_or(|delta| delta.finish.is_none()) {
            let begun = !deltas.is_empty();
            *place = Place::Waiting(request.clone(), deltas, begun);
            return Ok(false);
        }
        // What does not fold is drawn anew, rather than never.
        *place = Place::Waiting(request.clone(), Vec::new(), true);
        let rollout = Rollout::fold(request.clone(), deltas.into_iter().map(Arc::unwrap_or_clone))?;
        *place = Place::Done(Box::new(rollout));
        Ok(true)
    }

    pub(super) fn unanswered(&self) -> Vec<Request> {
        let waits = |place: &&Place| matches!(place, Place::Waiting(..));
        self.places.iter().filter(waits).filter_map(Place::request).cloned().collect()
    }

    pub(super) fn unjudged(&self) -> Vec<RolloutId> {
        let indices = (0..self.len() as u32).filter(|index| !self.rewards.contains_key(index));
        indices.map(|index| RolloutId { plan: self.plan, index }).collect()
    }

    fn arrived(&self) -> usize {
        match self.batch {
            Some(_) => self.len(),
            None => self.places.iter().filter(|place| matches!(place, Place::Done(_))).count(),
        }
    }

    pub(super) fn missing(&self) -> usize {
        self.len() - self.arrived()
    }

    pub(super) fn progress(&self, plan: u64) -> Progress {
        Progress { plan, rollouts: self.len(), arrived: self.arrived(), judged: self.rewards.len() }
    }

    /// Makes the batch, of everybody.
    pub(super) fn seal(&mut self, plan: u64) -> Result<(), PlansError> {
        let done = std::mem::take(&mut self.places).into_iter();
        let rollouts: Vec<Rollout> = done
            .filter_map(|place| match place {
                Place::Done(rollout) => Some(*rollout),
                _ => None,
            })
            .collect();
        let requests = rollouts.iter().map(|rollout| rollout.request().clone()).collect();
        let mut complete = BatchPlan::restore(plan, requests)?;
        rollouts.into_iter().try_for_each(|rollout| complete.arrive(rollout))?;
        self.batch = Some(Arc::new(complete.seal()?));
        Ok(())
    }

    pub(super) fn sealed(&mut self) -> Option<Sealed> {
        let batch = self.batch.clone()?;
        let first = !std::mem::replace(&mut self.told, true);
        Some(Sealed { rewards: self.book.of(&batch), batch, first })
    }

    /// The part of a consumer's rank, unless it has reported it.
    pub(super) fn part(&self, consumer: &Consumer) -> Result<Option<Sealed>, PlansError> {
        let Some(batch) = self.batch.clone() else { return Ok(None) };
        let sealed = Sealed { rewards: self.book.of(&batch), batch, first: false };
        if consumer.ranks == 1 && self.consumed.is_empty() {
            return Ok(Some(sealed));
        }
        let range = sealed.batch.shards(consumer.ranks)?.into_iter().nth(consumer.rank as usize).unwrap_or_default();
        if range.clone().all(|index| self.consumed.contains(&(index as u32))) {
            return Ok(None);
        }
        let batch = Arc::new(sealed.batch.part(range.clone()));
        Ok(Some(Sealed { batch, rewards: sealed.rewards[range].to_vec(), first: false }))
    }
}

/// A complete answer, told again.
fn told(rollout: &Rollout, asked: Request) -> Result<Taken, PlansError> {
    if *rollout.request() != asked {
        return Err(PlansError::Asked(asked.id));
    }
    let have = crate::wire::batch::split(rollout).map(Arc::new).collect();
    Ok(Taken { request: asked, have, attempt: 1, first: false })
}
