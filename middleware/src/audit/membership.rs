//! The rules of membership, each held against the account. Looks at neither length nor reward.

use super::{Account, BatchFacts, PlanFacts};
use lockstep_core::RolloutId;
use std::collections::{BTreeMap, BTreeSet};

/// Every broken rule, in the order it is met.
pub(super) fn broken(account: &Account) -> Vec<String> {
    let plans: BTreeMap<u64, &PlanFacts> = account.plans.iter().map(|plan| (plan.plan, plan)).collect();
    let mut broken: Vec<String> = opened(account).collect();
    let mut open: BTreeSet<u64> = plans.keys().copied().collect();
    for (at, batch) in account.batches.iter().enumerate() {
        broken.extend(whole(at, batch, &plans));
        let Some(plan) = named(batch) else { continue };
        if !open.remove(&plan) && plans.contains_key(&plan) {
            broken.push(format!("batch {at} trains on plan {plan} again"));
        }
        if let Some(&oldest) = open.first()
            && plan >= oldest + batch.window
        {
            let window = batch.window;
            broken.push(format!("batch {at}, plan {plan}, passes over plan {oldest}; the window is {window}"));
        }
    }
    broken.extend(lengths(account));
    broken.extend(discarded(account));
    broken
}

/// The plan a batch says it is, or the plan of its first rollout.
fn named(batch: &BatchFacts) -> Option<u64> {
    batch.plan.or_else(|| batch.trained.first().map(|(id, _)| id.plan))
}

fn opened(account: &Account) -> impl Iterator<Item = String> + '_ {
    account.plans.iter().enumerate().flat_map(|(place, plan)| {
        let number = plan.plan;
        let early = plan.sampled_before.map(|id| format!("{id} had tokens before plan {number} was opened"));
        let open = place.saturating_sub(plan.after) as u64;
        let full = plan.max_open_plans.filter(|&max| open >= max);
        let full = full.map(|max| format!("plan {number} was opened while {open} were open, at most {max} may be"));
        early.into_iter().chain(full)
    })
}

/// A batch is one plan: all of it, nothing else, in dispatch order.
fn whole(at: usize, batch: &BatchFacts, plans: &BTreeMap<u64, &PlanFacts>) -> Option<String> {
    let ids: Vec<RolloutId> = batch.trained.iter().map(|&(id, _)| id).collect();
    let Some(plan) = named(batch).and_then(|plan| plans.get(&plan)) else {
        return Some(format!("batch {at} of {} rollouts is no plan", ids.len()));
    };
    let mut in_order = ids.clone();
    if batch.any_order {
        in_order.sort_unstable();
    }
    if in_order == plan.rollouts {
        return None;
    }
    let (trained, planned): (BTreeSet<_>, BTreeSet<_>) = (ids.iter().collect(), plan.rollouts.iter().collect());
    let missing: Vec<_> = planned.difference(&trained).collect();
    let foreign = trained.difference(&planned).count();
    let doubled = ids.len() - trained.len();
    let first = missing.first().map_or_else(String::new, |first| format!(", the first is {first}"));
    let what = match (missing.len(), foreign, doubled) {
        (0, 0, 0) => "has its rollouts in another order".to_owned(),
        (lacks, foreign, doubled) => {
            let size = plan.rollouts.len();
            format!("lacks {lacks} of {size} rollouts{first}; {foreign} are of other plans, {doubled} are doubled")
        }
    };
    Some(format!("batch {at}, plan {}, {what}", plan.plan))
}

fn lengths(account: &Account) -> impl Iterator<Item = String> + '_ {
    let trained =
        account.batches.iter().enumerate().flat_map(|(at, batch)| batch.trained.iter().map(move |it| (at, *it)));
    trained.filter_map(|(at, (id, tokens))| {
        let sampled = account.rollouts.get(&id)?.tokens;
        (tokens != sampled).then(|| format!("batch {at} trains on {tokens} of the {sampled} tokens of {id}"))
    })
}

/// The chance of being broken off grows with length, so that sampling again what could have been resumed selects by length.
fn discarded(account: &Account) -> impl Iterator<Item = String> + '_ {
    account.rollouts.values().filter(|rollout| rollout.discarded > 0).map(|rollout| {
        let (id, attempts, tokens) = (rollout.id, rollout.attempts, rollout.discarded);
        format!("{id} was sampled {attempts} times, and {tokens} recorded tokens of it were thrown away")
    })
}
