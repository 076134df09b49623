use super::*;
use crate::experiment::{
    Arm, Plan, Setting, Sync,
    arm::Correction,
    outcome::{Evaluation, Floor, Outcome, Row, StepRecord},
    setting::Extent,
    table,
};
use lockstep_core::dlc::{EssReport, Forecast, statistics::TermReport};

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
    let plan = Plan::new(Extent::Core, Setting::big());
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
    let lines = table::lines(&results);
    assert_eq!(lines.len(), 1 + results.rows.len());
    assert!(lines[1].starts_with("untrained-exact-never") && lines[1].contains("8.00"), "{}", lines[1]);
    assert_eq!(table::csv(&results).lines().count(), 1 + 2 * results.rows.len() * 40);
}
