//! Worked values for every correction, in f64.
//!
//! Reads `tests/testdata/golden`, or the directory `LOCKSTEP_GOLDEN` names: any vectors of the same form will do. A file is
//! recognised by the number its name begins with. The tolerance is the file's own.

mod compare;
mod corrections;
mod problem;
mod scalars;
mod truncation;

use compare::Golden;
use std::path::PathBuf;

fn directory() -> PathBuf {
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden");
    std::env::var_os("LOCKSTEP_GOLDEN").map_or_else(|| committed.into(), PathBuf::from)
}

/// What checks the vectors of one number.
type Checker = fn(&Golden);

const CHECKERS: [(&str, Checker); 12] = [
    ("01", scalars::decomposition),
    ("02", truncation::truncation),
    ("03", corrections::score_centring),
    ("06", corrections::score_centring),
    ("34", scalars::ess),
    ("38", corrections::dlc_a),
    ("44", corrections::dlc_a),
    ("45", corrections::dlc_a),
    ("47", scalars::trigger),
    ("48", corrections::edge_cases),
    ("49", corrections::dlc_a),
    ("50", scalars::ess_levels),
];

fn number(name: &str) -> &str {
    &name[..name.find(|c: char| !c.is_ascii_digit()).unwrap_or(name.len())]
}

#[test]
fn every_vector_holds() {
    let directory = directory();
    let listing = std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = listing.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let mut checked = 0;
    for path in &paths {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        match CHECKERS.iter().find(|(known, _)| *known == number(&name)) {
            Some((_, check)) => {
                check(&Golden::load(path));
                checked += 1;
            }
            None => println!("{name}: not covered"),
        }
    }
    println!("{checked} of {} vectors in {} checked", paths.len(), directory.display());
    assert!(checked > 0, "no vector of a covered number in {}", directory.display());
    if std::env::var_os("LOCKSTEP_GOLDEN").is_none() {
        assert_eq!(checked, CHECKERS.len(), "a covered vector is missing");
    }
}

#[test]
fn a_wrong_value_is_seen() {
    let golden = Golden::load(&directory().join("38_dlc_a_full.json"));
    let mut wrong = golden.expected["token_weight"].clone();
    wrong[1] = (wrong[1].as_f64().unwrap() * (1.0 + 1e-9)).into();
    let found: Vec<f64> = serde_json::from_value(golden.expected["token_weight"].clone()).unwrap();
    assert!(golden.differs(&wrong, &found.into()).is_some());
}
