//! Which candidate stays near on-policy training in every setting: stale, quantised, and both.

use super::{
    Arm, Sync,
    outcome::Results,
    parts::{QUANTISED, candidates, when_fresh},
    verdict::{Judged, Verdict, close, largest, verdict},
};

const EXACT: &str = "exact";

/// Seeds that the search asks of each row.
const SEEDS: usize = 5;

/// One verdict a precision.
pub(super) fn verdicts(results: &Results) -> Vec<Verdict> {
    QUANTISED.iter().map(|numerics| verdict(id(numerics), claim(numerics), of(results, numerics))).collect()
}

fn id(numerics: &str) -> &'static str {
    if numerics == "int8" { "default, int8" } else { "default, int4" }
}

fn claim(numerics: &str) -> &'static str {
    match numerics {
        "int8" => "a candidate stays within two floors stale, int8 fresh, and int8 stale, over five seeds",
        _ => "a candidate stays within two floors stale, int4 fresh, and int4 stale, over five seeds",
    }
}

/// The worst mean distance of each candidate in the three settings, the nearest candidate first.
fn of(results: &Results, numerics: &str) -> Judged {
    let mut found: Vec<(String, [f64; 3])> = candidates()
        .into_iter()
        .filter_map(|(correction, sync)| {
            let rows = [
                Arm::new(correction, EXACT, sync.clone()),
                Arm::new(when_fresh(correction), numerics, Sync::Every(1)),
                Arm::new(correction, numerics, sync.clone()),
            ];
            let [stale, fresh, both] = rows.map(|arm| whole(results, &arm.row()));
            Some((format!("{correction} {sync}"), [stale?, fresh?, both?]))
        })
        .collect();
    let worst = |at: &[f64; 3]| at.iter().copied().fold(0.0, f64::max);
    found.sort_by(|a, b| worst(&a.1).total_cmp(&worst(&b.1)));
    let (_, best) = found.first()?;
    let told = found.iter().map(|(name, [stale, fresh, both])| format!("{name}: {stale:.2}, {fresh:.2}, {both:.2}"));
    let numbers = told.collect::<Vec<_>>().join("; ");
    Some((close(results, worst(best) <= 2.0), numbers))
}

/// The largest distance of a row, where it has all its seeds.
fn whole(results: &Results, row: &str) -> Option<f64> {
    let seeds = results.row(row)?.arms.len();
    (seeds >= SEEDS).then(|| largest(results, row)).flatten()
}
