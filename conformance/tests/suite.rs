//! Honest pairs pass, faulty ones are flagged, and the README tells the truth.

use lockstep_conformance::{Progress, Suite, Target, Verdict, pair, readme};
use std::path::Path;

const HONEST: u64 = 24;
const FAULTY: u64 = 8;

async fn pass(build: fn(u64) -> Target, seeds: u64) {
    for seed in 0..seeds {
        let report = Suite::all().run(&build(seed), &mut |_| {}).await;
        let passed = report.rows.iter().filter(|row| row.verdict.is_pass()).count();
        assert_eq!((passed, report.exit_code()), (report.rows.len(), 0), "seed {seed}:\n{}", report.table());
    }
}

async fn flagged(build: fn(u64) -> Target, seeds: u64) {
    for check in Suite::all().checks() {
        for fault in check.faults() {
            for seed in 0..seeds {
                let verdict = check.run(&(fault.break_target)(build(seed))).await;
                assert!(verdict.is_fail(), "{} under {}, seed {seed}: {verdict:?}", check.id, fault.id);
            }
        }
    }
}

#[tokio::test]
async fn honest_pairs_pass_every_check() {
    pass(pair::target, HONEST).await;
}

#[tokio::test]
async fn honest_pairs_with_a_numeric_term_pass_every_check() {
    pass(pair::rounded, HONEST / 2).await;
}

#[tokio::test]
async fn every_fault_is_flagged_by_its_own_check() {
    flagged(pair::target, FAULTY).await;
}

#[tokio::test]
async fn every_fault_is_flagged_through_a_numeric_term() {
    flagged(pair::rounded, FAULTY / 4).await;
}

#[tokio::test]
async fn without_ports_nothing_is_applicable_and_the_reason_is_named() {
    let report = Suite::all().run(&Target::default(), &mut |_| {}).await;
    assert_eq!(report.exit_code(), 0);
    for row in &report.rows {
        let Verdict::NotApplicable(reason) = &row.verdict else { panic!("{}: {:?}", row.id, row.verdict) };
        assert!(reason.starts_with("the target has no "), "{reason}");
    }
}

#[tokio::test]
async fn a_port_error_is_could_not_run_with_its_text() {
    let target = pair::target(1);
    let control = target.control.clone().unwrap();
    control.pause().await.unwrap();
    let verdict = Suite::all().get("numeric.size").unwrap().run(&target).await;
    assert_eq!(verdict, Verdict::CouldNotRun("port sampler: the sampler is paused".into()));
}

#[tokio::test]
async fn progress_names_every_check_before_and_after() {
    let mut seen = Vec::new();
    let suite = Suite::only(&["batch.membership", "numeric.size"]).unwrap();
    suite
        .run(&pair::target(1), &mut |progress| match progress {
            Progress::Started { id, index, of } => seen.push(format!("{id} {index}/{of}")),
            Progress::Finished(row) => seen.push(row.verdict.word().to_owned()),
        })
        .await;
    assert_eq!(seen, ["batch.membership 0/2", "pass", "numeric.size 1/2", "pass"]);
    assert_eq!(Suite::only(&["lag.none"]).unwrap_err(), "lag.none");
}

#[test]
fn every_check_states_itself() {
    let mut ids = Vec::new();
    for check in Suite::all().checks() {
        assert!(!check.cases.is_empty() && !check.demand.ends_with('.'), "{}", check.id);
        for case in check.cases {
            assert!(case.contains('/') && case.contains('#'), "{case}");
        }
        assert!(check.explain.contains("Fix"), "{}", check.id);
        ids.extend(check.faults().map(|fault| fault.id));
    }
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "two faults share a name");
}

#[test]
fn the_readme_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let found = std::fs::read_to_string(&path).unwrap();
    let expected = readme::updated(&found).unwrap();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &expected).unwrap();
    } else {
        assert_eq!(found, expected, "UPDATE_EXPECT=1 rewrites the table");
    }
}
