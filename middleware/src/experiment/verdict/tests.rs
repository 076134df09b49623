use super::*;
use crate::experiment::{
    Arm, Part, Plan, Setting, Sync,
    arm::Correction,
    outcome::{Evaluation, Floor, Outcome, Row, StepRecord},
    parts, table,
};
use lockstep_core::{
    dlc::{EssReport, Forecast, Policy, statistics::TermReport},
    rivals::Method,
};

const FLOOR: f64 = 0.01;

fn record(step: u64, (ess, own, numeric): (f64, f64, f64)) -> StepRecord {
    let mut terms = TermReport::default();
    terms.full.kl = own;
    terms.numeric.kl = numeric;
    terms.lag.kl = 1e-4 * (step * step) as f64;
    let ess = EssReport { token: 1.0, sequence: ess, horizon: ess, horizon_tokens: 24, sequences: 64, tokens: 512 };
    StepRecord { step, reward: 0.2, ess, terms, forecast: Forecast::default(), loss: 0.0, gradient_norm: 1.0 }
}

/// A row that is `floors(step)` away and whose ESS and own KL are as given.
fn row(name: &str, floors: impl Fn(f64) -> f64, of: impl Fn(u64) -> (f64, f64, f64)) -> Row {
    let setting = Setting::big();
    let look = |step: u64| {
        let distance = FLOOR * floors(step as f64 / setting.steps as f64);
        Evaluation { step, distances: vec![distance; 4], reward: 0.2 }
    };
    let mut outcome = Outcome::new(Arm::new(Correction::None, "exact", Sync::Never));
    outcome.evaluations = setting.evaluations().into_iter().map(look).collect();
    outcome.steps = (1..=setting.steps).map(|step| record(step, of(step))).collect();
    Row { name: name.into(), arms: vec![outcome.clone(), outcome] }
}

/// Numbers as the claims would have them.
fn as_claimed() -> Results {
    let quiet = |_| (1.0, 0.01, 0.03);
    let rows = vec![
        row(claims::UNTRAINED, |_| 8.0, quiet),
        row(claims::NONE_STALE, |x| 1.0 + 30.0 * x, quiet),
        row(claims::IS_STALE, |x| 1.0 + 4.0 * x, |step| (if step >= 12 { 0.3 } else { 0.9 }, 0.1, 0.0)),
        row(claims::CENTRING_STALE, |x| 1.0 + 20.0 * x, quiet),
        row(claims::DLC, |_| 1.5, quiet),
        row(claims::DLC_STALE, |x| 1.0 + 4.0 * x, quiet),
        row(claims::NONE_INT4, |_| 2.0, quiet),
        row(claims::CENTRING_INT4, |_| 1.5, quiet),
        row("ppo_s-exact-never", |_| 3.0, quiet),
        row("ppo_q-int4-fresh", |x| 60.0 * x, |step| (1.0, if step == 1 { 0.05 } else { 0.03 }, 0.03)),
    ];
    let plan = Plan::new(&[Part::Core], Setting::big(), None);
    let pairs = plan.setting.evaluations().into_iter().map(|step| (step, vec![FLOOR; 12])).collect();
    Results { floor: Some(Floor { pairs }), references: Vec::new(), rows, missing: 0, plan }
}

fn replaced(mut results: Results, with: Row) -> Results {
    let at = results.rows.iter().position(|row| row.name == with.name).unwrap();
    results.rows[at] = with;
    results
}

fn ruling(results: &Results, id: &str) -> Ruling {
    judge(results).into_iter().find(|verdict| verdict.id == id).unwrap().ruling
}

#[test]
fn numbers_as_claimed_reproduce_every_bar_that_has_them() {
    let results = as_claimed();
    for id in ["bar 1", "bar 2", "bar 3", "bar 4", "bar 5", "bar 6", "bar 7", "E1", "E2", "E3", "E4", "E5", "E8"] {
        assert_eq!(ruling(&results, id), Ruling::Reproduced, "{id}: {:?}", judge(&results));
    }
    for id in ["E7", "E9"] {
        assert_eq!(ruling(&results, id), Ruling::NotMeasured, "{id}");
    }
}

#[test]
fn each_bar_can_fail() {
    let quiet = |_| (1.0, 0.01, 0.03);
    let cases = [
        ("bar 1", row(claims::UNTRAINED, |_| 2.0, quiet), Ruling::Vacuous),
        ("bar 4", row(claims::UNTRAINED, |_| 2.0, quiet), Ruling::Vacuous),
        ("E2", row(claims::UNTRAINED, |_| 2.0, quiet), Ruling::Vacuous),
        ("bar 2", row(claims::NONE_STALE, |_| 4.0, quiet), Ruling::NotReproduced),
        ("bar 3", row(claims::IS_STALE, |_| 1.5, quiet), Ruling::NotReproduced),
        ("bar 4", row(claims::DLC, |_| 2.6, quiet), Ruling::NotReproduced),
        ("E2", row(claims::DLC, |_| 2.1, quiet), Ruling::NotReproduced),
        ("bar 5", row(claims::CENTRING_STALE, |_| 6.0, quiet), Ruling::NotReproduced),
        ("bar 6", row(claims::CENTRING_INT4, |_| 2.2, quiet), Ruling::NotReproduced),
        ("bar 7", row("ppo_q-int4-fresh", |_| 4.0, quiet), Ruling::NotReproduced),
        ("E8", row("ppo_q-int4-fresh", |_| 4.0, quiet), Ruling::Vacuous),
        ("E1", row(claims::IS_STALE, |x| 1.0 + 4.0 * x, quiet), Ruling::NotReproduced),
    ];
    for (id, with, expected) in cases {
        let name = with.name.clone();
        assert_eq!(ruling(&replaced(as_claimed(), with), id), expected, "{id} with another {name}");
    }
}

#[test]
fn what_is_missing_is_not_measured_and_the_page_is_made_all_the_same() {
    let mut results = as_claimed();
    results.rows.retain(|row| row.name != claims::DLC);
    results.missing = 3;
    assert_eq!(ruling(&results, "E2"), Ruling::NotMeasured);
    let page = crate::experiment::render(&results);
    assert!(page.contains("3 of") && page.contains("partial results") && page.contains("not measured"));
    let tables = crate::experiment::markdown::tables(&results, &judge(&results));
    assert!(
        tables.contains("| **Controls** |") && tables.contains("| `untrained-exact-never` | 8.0 / 8.0"),
        "{tables}"
    );
    assert!(tables.contains("| not measured |"), "{tables}");
    let lines = table::lines(&results);
    assert_eq!(lines.len(), 1 + results.rows.len());
    assert!(lines[1].starts_with("untrained-exact-never") && lines[1].contains("8.00"), "{}", lines[1]);
    assert_eq!(table::csv(&results).lines().count(), 1 + 2 * results.rows.len() * 40);
}

/// TIS at a rate, whose last reward is `last` of the 0.2 before.
fn tis(sync: Sync, rate: f64, last: f64) -> Row {
    let arm = Arm { learning_rate: Some(rate), ..Arm::new(Correction::Method(Method::Tis), "exact", sync) };
    let mut row = row(&arm.row(), |_| 1.0, |_| (1.0, 0.0, 0.0));
    for outcome in &mut row.arms {
        outcome.arm = arm.clone();
        outcome.evaluations.last_mut().unwrap().reward = last;
    }
    row
}

fn with(rows: impl IntoIterator<Item = Row>) -> Results {
    let mut results = as_claimed();
    results.rows.extend(rows);
    results
}

#[test]
fn a_collapse_that_the_trigger_prevents_reproduces_e7() {
    let trigger = || Sync::Policy(Policy::default());
    let cases = [(0.05, 0.2, Ruling::Reproduced), (0.05, 0.05, Ruling::NotReproduced), (0.15, 0.2, Ruling::Vacuous)];
    for (stale, kept, expected) in cases {
        let results = with([tis(Sync::Never, 4e-4, stale), tis(trigger(), 4e-4, kept)]);
        assert_eq!(ruling(&results, "E7"), expected, "{stale} {kept}");
    }
}

#[test]
fn a_collapse_that_grows_with_the_product_reproduces_e9() {
    let grid = |lasts: [f64; 4]| {
        let at = [(Sync::Every(1), 1e-4), (Sync::Every(4), 1e-4), (Sync::Every(16), 2e-4), (Sync::Never, 4e-4)];
        with(at.into_iter().zip(lasts).map(|((sync, rate), last)| tis(sync, rate, last)))
    };
    assert_eq!(ruling(&grid([0.2, 0.19, 0.1, 0.01]), "E9"), Ruling::Reproduced);
    assert_eq!(ruling(&grid([0.01, 0.1, 0.19, 0.2]), "E9"), Ruling::NotReproduced);
}

#[test]
fn a_gradient_norm_that_grows_with_the_square_reproduces_e6() {
    let grid = |excess: fn(f64) -> f64| {
        let at = |name: &str, rate: f64, of: fn(f64) -> f64| {
            let mut row = row(&format!("{name}-lr{rate:e}"), |_| 1.0, |_| (1.0, 0.0, 0.0));
            for outcome in &mut row.arms {
                outcome.arm.learning_rate = Some(rate);
                outcome
                    .steps
                    .iter_mut()
                    .for_each(|record| record.gradient_norm = 1.0 + of(rate * (record.step - 1) as f64));
            }
            row
        };
        let rates = [1e-3, 2e-3];
        with(
            rates
                .into_iter()
                .flat_map(|rate| [at(claims::IS_STALE, rate, |_| 0.0), at(claims::CENTRING_STALE, rate, excess)]),
        )
    };
    assert_eq!(ruling(&grid(|x| x + 50.0 * x * x), "E6"), Ruling::Reproduced);
    assert_eq!(ruling(&grid(|x| x + 1e-3 * (7e4 * x).sin()), "E6"), Ruling::NotReproduced);
}

/// Every candidate of the search at these distances: stale, quantised, both.
fn searched([stale, fresh, both]: [f64; 3], seeds: usize) -> Results {
    let mut rows = Vec::new();
    for (correction, sync) in parts::candidates() {
        let at = |arm: Arm, floors: f64| {
            let mut row = row(&arm.row(), |_| floors, |_| (1.0, 0.0, 0.0));
            row.arms = vec![row.arms[0].clone(); seeds];
            row
        };
        rows.push(at(Arm::new(correction, "exact", sync.clone()), stale));
        rows.push(at(Arm::new(parts::when_fresh(correction), "int8", Sync::Every(1)), fresh));
        rows.push(at(Arm::new(correction, "int8", sync), both));
    }
    let mut results = as_claimed();
    results.rows.retain(|row| row.name != claims::DLC);
    results.rows.extend(rows);
    results
}

#[test]
fn a_default_holds_in_every_setting_and_over_every_seed() {
    let cases = [
        ([1.9, 1.2, 1.95], 5, Ruling::Reproduced),
        ([2.1, 1.2, 1.9], 5, Ruling::NotReproduced),
        ([1.9, 2.1, 1.9], 5, Ruling::NotReproduced),
        ([1.9, 1.2, 2.1], 5, Ruling::NotReproduced),
        ([1.9, 1.2, 1.95], 4, Ruling::NotMeasured),
    ];
    for (floors, seeds, expected) in cases {
        let results = searched(floors, seeds);
        assert_eq!(ruling(&results, "default, int8"), expected, "{floors:?} {seeds}");
        assert_eq!(ruling(&results, "default, int4"), Ruling::NotMeasured);
    }
}
