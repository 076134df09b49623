//! Batch membership, fixed at dispatch: before length or reward exist.
//!
//! There is no way to take a rollout out of a plan. An answer cut by the token limit, an answer without reward, a group
//! without variance: all stay.

use crate::{
    rollout::{Request, Rollout},
    sampling::SamplingParams,
    token::{RolloutId, TokenId},
};
use std::ops::Range;

/// A prompt and the number of answers it gets.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptGroup {
    /// The prompt's ids.
    pub prompt: Vec<TokenId>,
    /// How each answer is sampled, one entry an answer.
    pub answers: Vec<SamplingParams>,
}

/// A broken rule of membership.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Requests that are not the plan's, in dispatch order.
    #[error("request {found} stands where plan {plan} has p{plan}.r{index}")]
    Order {
        /// The plan.
        plan: u64,
        /// Place in dispatch order.
        index: usize,
        /// What stands there.
        found: RolloutId,
    },
    /// Nothing to dispatch.
    #[error("plan {0} has no rollouts")]
    Empty(u64),
    /// A rollout the plan does not have.
    #[error("rollout {rollout} is not among the {planned} of plan {plan}")]
    Unplanned {
        /// The plan.
        plan: u64,
        /// The rollout.
        rollout: RolloutId,
        /// Size of the plan.
        planned: usize,
    },
    /// A rollout that answers another request.
    #[error("rollout {0} does not answer the request it was planned with")]
    OtherRequest(RolloutId),
    /// A rollout twice.
    #[error("rollout {0} arrived twice")]
    Twice(RolloutId),
    /// Rollouts that are not there yet.
    #[error("plan {plan} waits for {missing} of {planned} rollouts, the first is {first}")]
    Incomplete {
        /// The plan.
        plan: u64,
        /// How many are missing.
        missing: usize,
        /// Size of the plan.
        planned: usize,
        /// The first missing one.
        first: RolloutId,
    },
    /// More ranks than groups.
    #[error("plan {plan} has {groups} groups, too few for {ranks} ranks")]
    Ranks {
        /// The plan.
        plan: u64,
        /// Its groups.
        groups: usize,
        /// Ranks asked for.
        ranks: u32,
    },
}

/// Ids fixed at dispatch, and what has arrived of them.
#[derive(Debug)]
pub struct BatchPlan {
    number: u64,
    requests: Vec<Request>,
    arrived: Vec<Option<Rollout>>,
}

impl BatchPlan {
    /// Fixes the membership of one batch.
    ///
    /// # Errors
    /// A plan without rollouts.
    pub fn open(number: u64, groups: Vec<PromptGroup>) -> Result<Self, PlanError> {
        let mut requests = Vec::new();
        for (group, PromptGroup { prompt, answers }) in groups.into_iter().enumerate() {
            for params in answers {
                let id = RolloutId { plan: number, index: requests.len() as u32 };
                requests.push(Request { id, group: group as u32, prompt: prompt.clone(), params });
            }
        }
        Self::restore(number, requests)
    }

    /// A plan that was opened before, from its requests in dispatch order; nothing has arrived.
    ///
    /// # Errors
    /// No requests, or requests that are not numbered as [`BatchPlan::open`] does.
    pub fn restore(number: u64, requests: Vec<Request>) -> Result<Self, PlanError> {
        if requests.is_empty() {
            return Err(PlanError::Empty(number));
        }
        for (index, &Request { id: found, .. }) in requests.iter().enumerate() {
            if found != (RolloutId { plan: number, index: index as u32 }) {
                return Err(PlanError::Order { plan: number, index, found });
            }
        }
        let arrived = requests.iter().map(|_| None).collect();
        Ok(Self { number, requests, arrived })
    }

    /// Number of the plan.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The requests, in dispatch order.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Takes an answer in.
    ///
    /// # Errors
    /// An answer that was not planned, that answers another request, or that is there already.
    pub fn arrive(&mut self, rollout: Rollout) -> Result<(), PlanError> {
        let id = rollout.id();
        let planned = self.requests.len();
        let unplanned = PlanError::Unplanned { plan: self.number, rollout: id, planned };
        let index = id.index as usize;
        let request = self.requests.get(index).filter(|request| request.id == id).ok_or(unplanned)?;
        let same = rollout.prompt() == request.prompt && *rollout.params() == request.params;
        if !same || rollout.group() != request.group {
            return Err(PlanError::OtherRequest(id));
        }
        match &mut self.arrived[index] {
            Some(_) => Err(PlanError::Twice(id)),
            place => {
                *place = Some(rollout);
                Ok(())
            }
        }
    }

    /// Number of answers that have arrived.
    pub fn arrived(&self) -> usize {
        self.arrived.iter().flatten().count()
    }

    /// The complete batch, in dispatch order.
    ///
    /// # Errors
    /// An answer that is still missing.
    pub fn seal(self) -> Result<Batch, PlanError> {
        let missing: Vec<RolloutId> = self.missing().collect();
        if let Some(&first) = missing.first() {
            let (plan, planned) = (self.number, self.requests.len());
            return Err(PlanError::Incomplete { plan, missing: missing.len(), planned, first });
        }
        Ok(Batch { plan: self.number, rollouts: self.arrived.into_iter().flatten().collect() })
    }

    fn missing(&self) -> impl Iterator<Item = RolloutId> + '_ {
        let places = self.requests.iter().zip(&self.arrived);
        places.filter(|(_, place)| place.is_none()).map(|(request, _)| request.id)
    }
}

/// Every rollout of a plan, arrived. Knows no reward.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    plan: u64,
    rollouts: Vec<Rollout>,
}

impl Batch {
    /// Number of the plan.
    pub fn plan(&self) -> u64 {
        self.plan
    }

    /// The rollouts, in dispatch order.
    pub fn rollouts(&self) -> &[Rollout] {
        &self.rollouts
    }

    /// Number of sampled tokens.
    pub fn tokens(&self) -> usize {
        self.rollouts.iter().map(Rollout::len).sum()
    }

    /// Where to cut the batch for data-parallel ranks: one range of rollouts a rank, of whole groups, in dispatch order; with G
    /// groups and R ranks, the group at place g goes to rank `floor(g R / G)`.
    ///
    /// # Errors
    /// More ranks than groups, or none.
    pub fn shards(&self, ranks: u32) -> Result<Vec<Range<usize>>, PlanError> {
        shards(self.plan, &self.rollouts.iter().map(Rollout::group).collect::<Vec<_>>(), ranks)
    }

    /// The part of the batch that a range of [`Batch::shards`] names.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        Self { plan: self.plan, rollouts: self.rollouts[range].to_vec() }
    }
}

/// Ranges of whole groups, one a rank, from the group of every rollout in dispatch order: see [`Batch::shards`].
///
/// # Errors
/// More ranks than groups, or none.
pub fn shards(plan: u64, groups: &[u32], ranks: u32) -> Result<Vec<Range<usize>>, PlanError> {
    let runs: Vec<usize> = groups.chunk_by(|one, other| one == other).map(<[u32]>::len).collect();
    if ranks == 0 || runs.len() < ranks as usize {
        return Err(PlanError::Ranks { plan, groups: runs.len(), ranks });
    }
    let (mut ranges, mut start) = (vec![0..0; ranks as usize], 0);
    for (place, run) in runs.iter().enumerate() {
        let range = &mut ranges[place * ranks as usize / runs.len()];
        if range.start == range.end {
            range.start = start;
        }
        start += run;
        range.end = start;
    }
    Ok(ranges)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::rollout::tests::{delta, last, request};
    use proptest::prelude::*;

    pub(crate) fn plan(groups: u32, answers: u32) -> BatchPlan {
        let Request { prompt, params, .. } = request(0, 0);
        let group = PromptGroup { prompt, answers: vec![params; answers as usize] };
        BatchPlan::open(0, vec![group; groups as usize]).unwrap()
    }

    pub(crate) fn answer(request: &Request, tokens: &[u32]) -> Rollout {
        Rollout::fold(request.clone(), [last(delta(request.id.index, 0, tokens, 0))]).unwrap()
    }

    #[test]
    fn a_plan_waits_for_the_slowest_and_says_for_whom() {
        let mut plan = plan(2, 2);
        let requests = plan.requests().to_vec();
        [0, 1, 3].iter().for_each(|&at: &usize| plan.arrive(answer(&requests[at], &[4])).unwrap());
        let waiting = plan.seal().unwrap_err().to_string();
        assert_eq!(waiting, "plan 0 waits for 1 of 4 rollouts, the first is p0.r2");
    }

    #[test]
    fn unplanned_doubled_and_swapped_answers_are_refused() {
        let mut plan = plan(1, 2);
        let requests = plan.requests().to_vec();
        plan.arrive(answer(&requests[0], &[4])).unwrap();
        assert_eq!(plan.arrive(answer(&requests[0], &[4])), Err(PlanError::Twice(requests[0].id)));
        let mut other = requests[1].clone();
        other.prompt = vec![TokenId(3)];
        assert_eq!(plan.arrive(answer(&other, &[4])), Err(PlanError::OtherRequest(other.id)));
        let beyond = answer(&request(7, 0), &[4]);
        assert!(matches!(plan.arrive(beyond), Err(PlanError::Unplanned { planned: 2, .. })));
    }

    #[test]
    fn ranks_get_whole_groups_and_together_everything() {
        let groups = [0, 0, 0, 1, 1, 2, 2, 2, 3, 4];
        assert_eq!(shards(7, &groups, 1).unwrap()[0], 0..10);
        assert_eq!(shards(7, &groups, 2), Ok(vec![0..8, 8..10]));
        assert_eq!(shards(7, &groups, 5), Ok(vec![0..3, 3..5, 5..8, 8..9, 9..10]));
        let refused = |ranks| shards(7, &groups, ranks).unwrap_err().to_string();
        assert_eq!(refused(6), "plan 7 has 5 groups, too few for 6 ranks");
        assert_eq!(refused(0), "plan 7 has 5 groups, too few for 0 ranks");
    }

    proptest! {
        /// Neither the order of arrival nor the lengths change who is in the batch, or in which place.
        #[test]
        fn membership_is_a_function_of_dispatch_alone(
            order in Just((0..12usize).collect::<Vec<_>>()).prop_shuffle(),
            lengths in proptest::collection::vec(1..9usize, 12),
        ) {
            let mut plan = plan(3, 4);
            let requests = plan.requests().to_vec();
            for &at in &order {
                plan.arrive(answer(&requests[at], &vec![5; lengths[at]])).unwrap();
            }
            let batch = plan.seal().unwrap();
            let ids: Vec<RolloutId> = batch.rollouts().iter().map(Rollout::id).collect();
            prop_assert_eq!(ids, requests.iter().map(|request| request.id).collect::<Vec<_>>());
        }
    }
}
