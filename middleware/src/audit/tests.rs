use super::*;
use crate::{
    dispatch::{
        FIRST_LOOSE,
        fixture::{delta, request},
    },
    ledger::{DeltaRecord, Record, TrainedOn},
};
use lockstep_core::{RolloutId, WeightVersion, rollout::Request};

fn version(step: u64) -> WeightVersion {
    WeightVersion { epoch: 0, step }
}

/// A sound ledger of three plans of four answers, one after the other, each with a reward of its own.
fn sound() -> Vec<Record> {
    let mut records = vec![Record::Dispatch { max_open_plans: 1, window: 1 }];
    for plan in 0..3 {
        let requests: Vec<Request> = (0..4).map(|index| request(plan, index, index / 2)).collect();
        records.push(Record::PlanOpened { plan, requests: requests.clone() });
        for request in requests.iter().rev() {
            let tokens = 1 + request.id.index + plan as u32;
            records.push(Record::Delta(DeltaRecord::new(&delta(request.id, (0, tokens), plan, true), 0)));
        }
        records.push(Record::PlanSealed { plan });
        let rollouts: Vec<RolloutId> = requests.iter().map(|request| request.id).collect();
        let reward = |&rollout: &RolloutId| Record::Reward { rollout, reward: f64::from(rollout.index) / 4.0 };
        records.extend(rollouts.iter().map(reward));
        records.push(Record::Consumed { plan, rollouts, before: version(plan), after: version(plan + 1) });
    }
    records
}

fn audit(records: &[Record]) -> Audit {
    Audit::of(&Account::of(records).unwrap())
}

/// Breaks the first step's record.
fn broken(change: impl Fn(&mut Vec<RolloutId>)) -> String {
    let mut records = sound();
    for record in &mut records {
        if let Record::Consumed { rollouts, plan: 0, .. } = record {
            change(rollouts);
        }
    }
    let audit = audit(&records);
    assert!(audit.is_red());
    audit.broken.first().cloned().unwrap_or_default()
}

#[test]
fn a_sound_ledger_is_green_and_says_what_was_what() {
    let audit = audit(&sound());
    assert!(!audit.is_red(), "{}", audit.table());
    assert_eq!((audit.plans, audit.batches, audit.dispatched, audit.trained), (3, 3, 12, 12));
    let length = audit.length.generated.unwrap();
    assert_eq!((length.count, length.mean, length.median, length.max), (12, 3.5, 3.0, 6.0));
    let arrival = audit.correlations.iter().find(|it| it.of == "length" && it.with == Selector::Arrival).unwrap();
    assert!(arrival.rho.unwrap() < -0.5 && arrival.p.unwrap() < 0.2, "{arrival:?}");
    assert!(audit.table().ends_with("every batch is one plan, whole, once, in its turn"));
}

#[test]
fn every_broken_rule_is_named() {
    let dropped = broken(|rollouts| {
        rollouts.remove(2);
    });
    assert_eq!(
        dropped,
        "batch 0, plan 0, lacks 1 of 4 rollouts, the first is p0.r2; 0 are of other plans, 0 are doubled"
    );
    let foreign = broken(|rollouts| rollouts[3] = RolloutId { plan: 1, index: 0 });
    assert_eq!(
        foreign,
        "batch 0, plan 0, lacks 1 of 4 rollouts, the first is p0.r3; 1 are of other plans, 0 are doubled"
    );
    let doubled = broken(|rollouts| rollouts.push(rollouts[0]));
    assert_eq!(doubled, "batch 0, plan 0, lacks 0 of 4 rollouts; 0 are of other plans, 1 are doubled");
    assert_eq!(broken(|rollouts| rollouts.swap(0, 1)), "batch 0, plan 0, has its rollouts in another order");
}

#[test]
fn passing_over_opening_early_masking_and_sampling_again_are_named() {
    let first = |records: &[Record]| audit(records).broken.first().cloned().unwrap_or_default();
    let mut skipped = sound();
    skipped.retain(|record| !matches!(record, Record::Consumed { plan: 0, .. }));
    assert_eq!(first(&skipped), "plan 1 was opened while 1 were open, at most 1 may be");
    skipped[0] = Record::Dispatch { max_open_plans: 9, window: 1 };
    assert_eq!(first(&skipped), "batch 0, plan 1, passes over plan 0; the window is 1");
    let id = RolloutId { plan: 1, index: 2 };
    let mut again = sound();
    let at = again.iter().position(|record| matches!(record, Record::Delta(delta) if delta.rollout == id)).unwrap();
    again.insert(at, Record::Delta(DeltaRecord::new(&delta(id, (0, 7), 1, false), 0)));
    assert_eq!(first(&again), "p1.r2 was sampled 1 times, and 7 recorded tokens of it were thrown away");
    let mut early = sound();
    let at = early.iter().position(|record| matches!(record, Record::PlanOpened { plan: 1, .. })).unwrap();
    early.insert(at, Record::Delta(DeltaRecord::new(&delta(id, (0, 1), 1, false), 0)));
    assert_eq!(first(&early), "p1.r2 had tokens before plan 1 was opened");
}

/// A restart may change the bounds; what was done before is judged by those of its time.
#[test]
fn every_plan_is_judged_by_the_bounds_of_its_time() {
    let mut narrower = sound();
    narrower.retain(|record| !matches!(record, Record::Consumed { .. }));
    let consumed = sound().into_iter().filter(|record| matches!(record, Record::Consumed { .. }));
    narrower[0] = Record::Dispatch { max_open_plans: 3, window: 1 };
    narrower.push(Record::Dispatch { max_open_plans: 1, window: 1 });
    narrower.extend(consumed);
    assert_eq!(audit(&narrower).broken, [""; 0]);
    narrower.remove(0);
    narrower.insert(0, Record::Dispatch { max_open_plans: 1, window: 1 });
    assert_eq!(audit(&narrower).broken[0], "plan 1 was opened while 1 were open, at most 1 may be");
}

#[test]
fn steps_that_were_lost_and_made_again_count_once() {
    let mut records = sound();
    let restored = WeightVersion { epoch: 1, step: 2 };
    records.push(Record::Resumed { restored, again: vec![2], resumed: vec![], resampled: vec![] });
    let rollouts: Vec<RolloutId> = (0..4).map(|index| RolloutId { plan: 2, index }).collect();
    records.push(Record::Consumed { plan: 2, rollouts, before: restored, after: restored.next() });
    let audit = audit(&records);
    assert!(!audit.is_red(), "{}", audit.table());
    assert_eq!(audit.batches, 3);
}

#[test]
fn a_ledger_without_a_step_has_nothing_to_audit() {
    let records: Vec<Record> = sound().into_iter().take(2).collect();
    let error = Account::of(&records).unwrap_err().to_string();
    assert_eq!(error, "1 plans were opened, none was trained on: there is nothing to audit");
}

/// The same run, driven: plans are reserved, requests come later, two ranks report their parts in an order of their own.
fn driven() -> Vec<Record> {
    let mut records = vec![Record::Dispatch { max_open_plans: 1, window: 1 }];
    for record in sound().into_iter().skip(1) {
        match record {
            Record::PlanOpened { plan, requests } => {
                records.push(Record::PlanReserved { plan, groups: 2, answers: 2 });
                records.extend(requests.into_iter().map(Record::Dispatched));
            }
            Record::Consumed { plan, rollouts, .. } => {
                for part in rollouts.chunks(2).rev() {
                    let tokens = |id: &RolloutId| 1 + id.index + plan as u32;
                    let trained =
                        |&rollout| TrainedOn { rollout, tokens: tokens(&rollout), masked_in: tokens(&rollout) };
                    records.push(Record::Trained { plan, rollouts: part.iter().map(trained).collect() });
                }
            }
            other => records.push(other),
        }
    }
    let loose = request(FIRST_LOOSE, 0, 0);
    records.insert(1, Record::PlanOpened { plan: FIRST_LOOSE, requests: vec![loose.clone()] });
    records.insert(2, Record::Delta(DeltaRecord::new(&delta(loose.id, (0, 50), 0, true), 0)));
    records
}

#[test]
fn a_driven_ledger_is_green_whatever_order_its_trainer_has() {
    let audit = audit(&driven());
    assert!(!audit.is_red(), "{}", audit.table());
    assert_eq!((audit.plans, audit.batches, audit.dispatched, audit.trained), (3, 3, 12, 12));
    assert_eq!(audit.length.generated.unwrap().mean, 3.5, "requests of no plan are no part of it");
}

/// Changes the last report on plan 0.
fn misled(change: impl Fn(&mut Vec<TrainedOn>)) -> String {
    let mut records = driven();
    let last = records.iter_mut().rev().find_map(|record| match record {
        Record::Trained { plan: 0, rollouts } => Some(rollouts),
        _ => None,
    });
    change(last.unwrap());
    let audit = audit(&records);
    assert!(audit.is_red(), "{}", audit.table());
    audit.broken.first().cloned().unwrap_or_default()
}

#[test]
fn selection_in_a_driven_run_is_red() {
    let dropped = misled(|rollouts| rollouts.truncate(1));
    assert!(dropped.starts_with("batch 0, plan 0, lacks 1 of 4 rollouts, the first is p0.r1"), "{dropped}");
    let swapped = misled(|rollouts| rollouts[1].rollout.plan = 1);
    assert!(swapped.contains("lacks 1 of 4 rollouts, the first is p0.r1; 1 are of other plans"), "{swapped}");
    assert_eq!(misled(|rollouts| rollouts[1].masked_in = 0), "batch 0 trains on 0 of the 2 tokens of p0.r1");
    let mut never = driven();
    never.retain(|record| !matches!(record, Record::Trained { plan: 1, .. }));
    assert!(audit(&never).broken.iter().any(|rule| rule.contains("passes over plan 1")));
    let mut refused = driven();
    let at = refused.iter().position(|record| matches!(record, Record::Trained { plan: 0, .. })).unwrap();
    let said = TrainedOn { rollout: RolloutId { plan: 0, index: 3 }, tokens: 4, masked_in: 4 };
    refused.insert(at, Record::Misreported { plan: 0, rollouts: vec![said] });
    let audit = audit(&refused);
    assert!(audit.broken[0].starts_with("batch 0, plan 0, lacks 3 of 4 rollouts"), "{:?}", audit.broken);
}
