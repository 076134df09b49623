//! Membership is a function of dispatch order alone: over 10,000 schedules, whatever is done to rewards, lengths and arrivals.

use super::*;
use crate::audit::Audit;
use lockstep_core::RolloutId;
use std::collections::BTreeMap;

/// Schedules of each of the four parts of the property.
const SCHEDULES: u64 = 2500;

/// Batches in which a broken rule must be flagged.
const SOON: u64 = 20;

/// The rollouts of every batch, by plan, and the plans in their order.
fn membership(simulated: &Simulated) -> BTreeMap<u64, Vec<RolloutId>> {
    let batch = |batch: &crate::audit::BatchFacts| batch.trained.iter().map(|(id, _)| *id).collect::<Vec<_>>();
    simulated
        .account
        .batches
        .iter()
        .map(batch)
        .enumerate()
        .map(|(at, ids)| (ids.first().map_or(at as u64, |id| id.plan), ids))
        .collect()
}

fn order(simulated: &Simulated) -> Vec<u64> {
    simulated.account.batches.iter().filter_map(|batch| batch.trained.first()).map(|(id, _)| id.plan).collect()
}

/// Whether a disturbance changed what any plan was trained on as; a plan that one of the two did not reach says nothing.
pub(super) fn noticed(one: &Simulated, other: &Simulated) -> bool {
    let (one, other) = (membership(one), membership(other));
    one.iter().any(|(plan, ids)| other.get(plan).is_some_and(|others| others != ids))
}

fn disturbances(seed: u64) -> [Disturbance; 3] {
    [Disturbance::Rewards(seed + 1), Disturbance::Lengths(seed + 1), Disturbance::Delays(seed + 1)]
}

fn holds(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let scenario = Scenario::small(seed);
        let base = simulate(&scenario);
        assert_eq!((base.failure, base.account.batches.len() as u64), (None, scenario.steps), "{scenario:?}");
        let audit = Audit::of(&base.account);
        assert!(!audit.is_red(), "{scenario:?}\n{}", audit.table());
        assert!(base.largest_lag <= scenario.rules.max_lag(), "lag {}: {scenario:?}", base.largest_lag);
        let disturbance = disturbances(seed)[(seed % 3) as usize];
        let other = simulate(&Scenario { disturbance, ..scenario.clone() });
        assert!(!noticed(&base, &other), "{scenario:?} notices {disturbance:?}");
        if scenario.rules.window() == 1 {
            assert_eq!(order(&base), order(&other), "{scenario:?}");
        }
        assert!(!Audit::of(&other.account).is_red(), "{scenario:?}");
    }
}

#[test]
fn nothing_changes_the_membership_of_a_plan_1() {
    holds(0..SCHEDULES);
}

#[test]
fn nothing_changes_the_membership_of_a_plan_2() {
    holds(SCHEDULES..2 * SCHEDULES);
}

#[test]
fn nothing_changes_the_membership_of_a_plan_3() {
    holds(2 * SCHEDULES..3 * SCHEDULES);
}

#[test]
fn nothing_changes_the_membership_of_a_plan_4() {
    holds(3 * SCHEDULES..4 * SCHEDULES);
}

/// A schedule on which every broken rule has something to act on: several plans in flight, crashes, few slots.
pub(super) fn busy(seed: u64, policy: Policy) -> Scenario {
    let rules = Rules { max_open_plans: 4, ..Scenario::small(0).rules };
    let crashes = Some(Crashes { every: 300.0, down: 30, loses_tokens: 0.0 });
    let (samplers, slots, groups, answers) = (2, 12, 4, 4);
    Scenario { steps: SOON, rules, crashes, samplers, slots, groups, answers, policy, ..Scenario::small(seed) }
}

const BROKEN: [Policy; 10] = [
    Policy::FirstFinished,
    Policy::DropByAge { steps: 1 },
    Policy::CancelGroups { steps: 1 },
    Policy::DropZeroVariance,
    Policy::DropZeroVarianceShaped { shaping: 0.0 },
    Policy::RefillZeroVariance,
    Policy::EvictSlowest { keep: 0.9 },
    Policy::ResampleFailures,
    Policy::EmptyPartials,
    Policy::DropByAge { steps: 0 },
];

#[test]
fn the_audit_flags_every_broken_rule_within_twenty_plans() {
    for seed in 0..20 {
        let sound = Audit::of(&simulate(&busy(seed, Policy::Planned)).account);
        assert!(!sound.is_red(), "seed {seed}\n{}", sound.table());
        for policy in BROKEN {
            let simulated = simulate(&busy(seed, policy));
            let audit = Audit::of(&simulated.account);
            assert!(audit.is_red(), "{policy:?}, seed {seed}\n{}", audit.table());
        }
    }
}

#[test]
fn the_property_notices_every_rule_that_chooses() {
    let chooses = |policy: &&Policy| !matches!(policy, Policy::ResampleFailures | Policy::EmptyPartials);
    for policy in BROKEN.iter().filter(chooses) {
        for seed in 0..20 {
            let base = simulate(&busy(seed, *policy));
            let noticed = |&disturbance: &Disturbance| {
                noticed(&base, &simulate(&Scenario { disturbance, ..busy(seed, *policy) }))
            };
            assert!(disturbances(seed).iter().any(noticed), "{policy:?}, seed {seed}");
        }
    }
}

#[test]
fn a_schedule_is_the_same_twice() {
    let scenario = busy(3, Policy::Planned);
    assert_eq!(simulate(&scenario), simulate(&scenario));
    assert_ne!(simulate(&scenario).ticks, simulate(&Scenario { seed: 4, ..scenario }).ticks);
}

#[test]
fn a_limit_ends_the_run_and_names_the_rollout() {
    let mut scenario = busy(1, Policy::Planned);
    scenario.rules.max_interruptions = 0;
    let failure = simulate(&scenario).failure.unwrap().to_string();
    assert!(
        failure.starts_with("rollout p") && failure.ends_with("was broken off 1 times, 0 are allowed"),
        "{failure}"
    );
}

#[test]
fn more_open_plans_idle_less_and_one_is_the_same_in_every_order() {
    let schedule = Schedule { steps: 60, ..Schedule::default() };
    let rows = idle_table(&schedule, &[1, 2, 4, 8]);
    let strict: Vec<f64> = rows.iter().map(|row| row.strict.idle_share).collect();
    assert!(strict.windows(2).all(|pair| pair[1] < pair[0]), "{strict:?}");
    assert_eq!((rows[0].windowed, rows[0].first_finished), (rows[0].strict, rows[0].strict));
    for row in rows {
        assert!(row.strict.largest_lag < u64::from(row.open_plans), "{row:?}");
        assert!(row.windowed.idle_share <= row.strict.idle_share + 0.01, "{row:?}");
    }
}
