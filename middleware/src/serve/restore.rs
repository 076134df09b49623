//! Plans after a restart, from the ledger: what was opened stays open, what arrived is there, what broke off is resumed.

use super::plans::Plans;
use crate::{
    ledger::{DeltaRecord, Record},
    session::SessionRecord,
};
use lockstep_core::{Delta, RolloutId, SamplerProfile, rollout::Request};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// A ledger whose records do not make plans.
#[derive(Debug, thiserror::Error)]
#[error("the ledger cannot be taken up again: {0}")]
pub struct RestoreError(String);

#[derive(Default)]
struct Found {
    next: u64,
    profiles: Vec<Arc<SamplerProfile>>,
    plans: BTreeMap<u64, (u32, u32)>,
    requests: BTreeMap<RolloutId, Request>,
    deltas: BTreeMap<RolloutId, Vec<DeltaRecord>>,
    rewards: Vec<(RolloutId, f64)>,
    trained: BTreeSet<u64>,
    sessions: Vec<SessionRecord>,
}

impl Found {
    fn take(&mut self, record: Record) {
        match record {
            Record::Profile(profile) => self.profiles.push(Arc::new(profile)),
            Record::PlanOpened { plan, .. } => self.next = self.next.max(plan + 1),
            Record::PlanReserved { plan, groups, answers } => {
                self.next = self.next.max(plan + 1);
                self.plans.insert(plan, (groups, answers));
            }
            Record::Dispatched(request) => {
                self.requests.insert(request.id, request);
            }
            Record::Delta(delta) if self.plans.contains_key(&delta.rollout.plan) => {
                self.deltas.entry(delta.rollout).or_default().push(delta);
            }
            Record::Reward { rollout, reward } => self.rewards.push((rollout, reward)),
            Record::Session(record) => self.sessions.push(record),
            Record::Trained { plan, .. } => {
                self.trained.insert(plan);
            }
            _ => {}
        }
    }

    fn deltas(&mut self, id: RolloutId) -> Result<Vec<Arc<Delta>>, RestoreError> {
        let records = self.deltas.remove(&id).unwrap_or_default();
        let deltas = records.into_iter().map(|record| {
            let number = record.profile;
            let profile = self.profiles.get(number as usize).cloned();
            let profile = profile
                .ok_or_else(|| RestoreError(format!("rollout {id} names profile {number}, which is not there")))?;
            record.delta(profile).map(Arc::new).map_err(|error| RestoreError(format!("rollout {id}: {error}")))
        });
        deltas.collect()
    }
}

/// Plans and conversations of a ledger's records.
///
/// # Errors
/// Records that contradict each other.
pub fn restore(records: impl IntoIterator<Item = Record>) -> Result<(Plans, Vec<SessionRecord>), RestoreError> {
    let mut found = Found::default();
    records.into_iter().for_each(|record| found.take(record));
    let plans = Plans::from_number(found.next);
    for (plan, (groups, answers)) in found.plans.clone() {
        if found.trained.contains(&plan) {
            continue;
        }
        plans.reopen(plan, groups, answers);
        let of_plan: Vec<Request> =
            found.requests.values().filter(|request| request.id.plan == plan).cloned().collect();
        for request in of_plan {
            let deltas = found.deltas(request.id)?;
            plans.ended(&request, deltas);
        }
        for &(rollout, reward) in found.rewards.iter().filter(|(rollout, _)| rollout.plan == plan) {
            plans.reward(rollout, reward).map_err(|refusal| RestoreError(refusal.to_string()))?;
        }
    }
    Ok((plans, found.sessions))
}
