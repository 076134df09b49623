//! Worked values for every correction, in f64; every loss with its gradient goes through the head's kernel in f32 as well.
//!
//! Reads `tests/testdata/golden`, or the directory `LOCKSTEP_GOLDEN` names: any vectors of the same form will do. A file is
//! recognised by the number its name begins with. The tolerance is the file's own.

mod aggregates;
mod centring;
mod compare;
mod corrections;
mod kernel;
mod problem;
mod scalars;
mod surrogates;
mod truncation;
mod variants;
mod weights;

use compare::Golden;
use std::path::PathBuf;

fn directory() -> PathBuf {
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden");
    std::env::var_os("LOCKSTEP_GOLDEN").map_or_else(|| committed.into(), PathBuf::from)
}

/// What checks the vectors of one number.
type Checker = fn(&Golden);

const CHECKERS: [(&str, Checker); 52] = [
    ("01", scalars::decomposition),
    ("02", truncation::truncation),
    ("03", corrections::score_centring),
    ("04", centring::weighted_centring),
    ("05", centring::weighted_centring),
    ("06", centring::over_a_head),
    ("07", centring::weighted_centring),
    ("08", centring::weighted_centring),
    ("09", centring::weighted_centring),
    ("10", centring::weighted_centring),
    ("11", centring::weighted_centring),
    ("12", variants::centred_ppo),
    ("13", weights::pg),
    ("14", weights::is),
    ("15", weights::tis),
    ("16", weights::tis_sequence),
    ("17", weights::icepop),
    ("18", weights::mis_sequence),
    ("19", weights::geometric),
    ("20", weights::rejection_statistics),
    ("21", surrogates::ppo_lag),
    ("22", surrogates::ppo_full),
    ("23", surrogates::ppo_dual),
    ("24", aggregates::group_advantages),
    ("25", aggregates::reductions),
    ("26", surrogates::decoupled_recomputed),
    ("27", surrogates::decoupled_loglinear),
    ("28", surrogates::decoupled_linear),
    ("29", surrogates::m2po),
    ("29b", surrogates::m2po_of_ratios),
    ("30", aggregates::vcpo),
    ("31", surrogates::sequence_ratios),
    ("31b", surrogates::sequence_ratios),
    ("32", weights::cispo_weights),
    ("33", weights::replay),
    ("34", scalars::ess),
    ("35", aggregates::kl_estimators),
    ("36", weights::off_policy_sequences),
    ("37", aggregates::metrics),
    ("38", corrections::dlc_a),
    ("39", variants::dlc_b),
    ("40", variants::wrong_c),
    ("41", variants::wrong_d),
    ("42", variants::dlc_f),
    ("43", variants::dlc_e),
    ("44", corrections::dlc_a),
    ("45", corrections::dlc_a),
    ("46", variants::expected_gradient),
    ("47", scalars::trigger),
    ("48", corrections::edge_cases),
    ("49", corrections::dlc_a),
    ("50", scalars::ess_levels),
];

/// Expected values of another form, each compared where it is read, and echoes of inputs.
const NESTED: [&str; 4] = ["cases", "keep", "huge_log_weights_example", "head_ids"];

fn number(name: &str) -> &str {
    name.split('_').next().unwrap_or(name)
}

#[test]
fn every_vector_holds() {
    let (directory, committed) = (directory(), std::env::var_os("LOCKSTEP_GOLDEN").is_none());
    let listing = std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = listing.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let mut checked = 0;
    for path in &paths {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        match CHECKERS.iter().find(|(known, _)| *known == number(&name)) {
            Some((_, check)) => {
                let golden = Golden::load(path);
                let before = kernel::rows();
                check(&golden);
                let gradient = golden.expected.as_object().unwrap().keys().any(|key| key.starts_with("grad_logits"));
                assert!(!gradient || kernel::rows() > before, "{name}: no loss went through the kernel");
                let unseen: Vec<&String> =
                    golden.unseen().into_iter().filter(|key| !NESTED.contains(&&***key)).collect();
                assert!(unseen.is_empty() || !committed, "{name}: nothing was compared with {unseen:?}");
                checked += 1;
            }
            None => println!("{name}: not covered"),
        }
    }
    println!("{checked} of {} vectors in {} checked", paths.len(), directory.display());
    assert!(checked > 0, "no vector of a covered number in {}", directory.display());
    if committed {
        assert_eq!(checked, CHECKERS.len(), "a covered vector is missing");
    }
}

#[test]
#[should_panic(expected = "dh")]
fn another_weight_has_another_gradient_in_the_kernel() {
    let golden = Golden::load(&directory().join("38_dlc_a_full.json"));
    let row = &problem::rows(&golden)[0];
    let weighed = |w| lockstep_core::dlc::TokenCorrection { w, c: vec![0.0; row.known.len()], tail: None };
    let right = row.apply(weighed(1.0));
    kernel::check(row, &weighed(1.0 + 1e-4), (right.loss * (1.0 + 1e-4), &right.gradient));
}

#[test]
fn a_wrong_value_is_seen() {
    let golden = Golden::load(&directory().join("38_dlc_a_full.json"));
    let mut wrong = golden.expected["token_weight"].clone();
    wrong[1] = (wrong[1].as_f64().unwrap() * (1.0 + 1e-9)).into();
    let found: Vec<f64> = serde_json::from_value(golden.expected["token_weight"].clone()).unwrap();
    assert!(golden.differs(&wrong, &found.into()).is_some());
}
