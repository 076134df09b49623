//! Plans after a restart, from the ledger: what was opened stays open, what arrived is there, what broke off is resumed.

use super::{
    Plans, PlansError,
    place::{Place, Places},
};
use crate::{dispatch::History, ledger::TrainedOn};
use lockstep_core::{
    Rollout, RolloutId,
    dispatch::{Recovered, Rules},
};
use std::{collections::BTreeSet, sync::Arc};

impl Plans {
    /// The plans of a ledger that were not trained on, as they were.
    ///
    /// # Errors
    /// A history that contradicts itself.
    pub fn recover(rules: Rules, lease: u64, history: &mut History) -> Result<Self, PlansError> {
        let plans = Self::new(rules, history.next_plan(), lease);
        let numbers: BTreeSet<u64> = history.requests.keys().chain(history.reserved.keys()).copied().collect();
        for plan in numbers {
            let mut places = match history.reserved.get(&plan) {
                Some(&(groups, answers)) => Places::of(plan, groups, answers),
                None => Places::planned(plan, history.requests.remove(&plan).unwrap_or_default()),
            };
            places.reports = history.trained.remove(&plan).unwrap_or_default();
            places.consumed = places.reports.iter().flatten().map(|trained| trained.rollout.index).collect();
            if places.consumed.len() == places.len() {
                plans.remember(plan, places.reports);
                continue;
            }
            places.told = history.sealed.contains(&plan);
            let recovered = (0..places.len() as u32).map(|index| fill(&mut places, RolloutId { plan, index }, history));
            let recovered = recovered.collect::<Result<Vec<Recovered>, PlansError>>()?;
            plans.change(|state| {
                state.plans.insert(plan, places);
                let actions = state.dispatch.recover(plan, &recovered)?;
                state.act(&actions)
            })?;
        }
        Ok(plans)
    }

    fn remember(&self, plan: u64, reports: Vec<Vec<TrainedOn>>) {
        let mut state = self.state();
        if state.closed.len() == super::REMEMBERED {
            state.closed.pop_front();
        }
        state.closed.push_back((plan, reports));
    }
}

/// Puts what the ledger has of a rollout in its place.
fn fill(places: &mut Places, id: RolloutId, history: &mut History) -> Result<Recovered, PlansError> {
    let deltas = history.deltas.remove(&id).unwrap_or_default();
    let finished = deltas.last().is_some_and(|delta| delta.finish.is_some());
    let tokens: u32 = deltas.iter().map(|delta| delta.behavior.len() as u32).sum();
    if let Some(&reward) = history.rewards.get(&id) {
        places.book.post(id, reward)?;
        places.rewards.insert(id.index, reward);
    }
    let known = history.dispatched.remove(&id).or_else(|| places.request(id).filter(|_| tokens > 0));
    if let Some(request) = known {
        let place = if finished {
            Place::Done(Box::new(Rollout::fold(request, deltas)?))
        } else {
            Place::Waiting(request, deltas.into_iter().map(Arc::new).collect(), true)
        };
        places.put(id.index, place);
    }
    let attempts = history.attempts.get(&id).copied().unwrap_or(u32::from(tokens > 0));
    Ok(Recovered { tokens, attempts, finished, judged: places.rewards.contains_key(&id.index) })
}
