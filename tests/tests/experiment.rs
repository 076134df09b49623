//! `lockstep experiment` and `lockstep advise` from end to end, small: what is written, that it goes on where it was broken
//! off, and that an arm is the same twice.

use lockstep_tests::binary::{Finished, Running, lockstep, run, signal};
use std::{collections::BTreeMap, fs, path::Path, process::Command};
use tempfile::TempDir;

fn temporary() -> TempDir {
    tempfile::tempdir().expect("there is room for a temporary directory")
}

fn command(directory: &Path, out: &str, more: &[&str]) -> Command {
    let mut command = lockstep(directory);
    command.args(["experiment", "--quick", "--steps", "4", "--prompts", "4", "--processes", "2", "--out", out]);
    command.args(more);
    command
}

fn experiment(directory: &Path, out: &str, more: &[&str]) -> Finished {
    run(command(directory, out, more))
}

/// Every arm's outcome by its file name.
fn outcomes(out: &Path) -> BTreeMap<String, String> {
    let files = fs::read_dir(out.join("arms")).expect("arms were run");
    let read = |file: fs::DirEntry| {
        let text = fs::read_to_string(file.path()).expect("an outcome is text");
        (file.file_name().to_string_lossy().into_owned(), text)
    };
    files.map(|file| read(file.expect("the directory can be read"))).collect()
}

#[test]
fn an_experiment_is_the_same_twice_and_goes_on_where_it_was_broken_off() {
    let directory = temporary();
    let first = experiment(directory.path(), "out", &[]);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let out = directory.path().join("out");
    for file in ["plan.json", "floor.json", "results.csv", "report.html", "timings.jsonl"] {
        assert!(out.join(file).is_file(), "no {file}");
    }
    assert!(first.stdout.contains("dlc_a-exact-trigger") && first.stdout.contains("bar 4"), "{}", first.stdout);
    let before = outcomes(&out);
    assert_eq!(before.len(), 6, "two references, the control and three methods");

    assert!(first.stderr.starts_with("6 of 6 arms to run, 2 at a time, about "), "{}", first.stderr);
    assert!(first.stderr.contains(" left] "), "plain lines tell the time left: {}", first.stderr);

    for dropped in ["is-exact-never-s1.json", "dlc_a-exact-trigger-s1.json"] {
        fs::remove_file(out.join("arms").join(dropped)).expect("the outcome is there");
    }
    let again = experiment(directory.path(), "out", &[]);
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    assert!(again.stderr.starts_with("2 of 6 arms to run"), "{}", again.stderr);
    assert_eq!(outcomes(&out), before, "the same arms, the same numbers");
    let timings = fs::read_to_string(out.join("timings.jsonl")).expect("timings were written");
    assert_eq!(timings.lines().count(), 8, "two arms were run again, and no other");
}

#[test]
fn another_setting_is_refused_and_what_is_missing_is_told() {
    let directory = temporary();
    let whole = experiment(directory.path(), "out", &[]);
    assert_eq!(whole.code, Some(0), "{}", whole.stderr);
    let other = experiment(directory.path(), "out", &["--first-seed", "9"]);
    assert_eq!(other.code, Some(2));
    assert!(other.stderr.contains("holds an experiment of another setting"), "{}", other.stderr);

    let dropped = directory.path().join("out/arms/is-exact-never-s1.json");
    fs::remove_file(dropped).expect("the outcome is there");
    let mut report = lockstep(directory.path());
    report.args(["experiment", "--report", "--out", "out"]);
    let report = run(report);
    assert_eq!(report.code, Some(0), "{}", report.stderr);
    assert!(report.stdout.contains("1 of 6 arms are not done"), "{}", report.stdout);
}

fn part(directory: &Path, part: &str, more: &[&str]) -> Finished {
    let mut command = lockstep(directory);
    command.args(["experiment", "--part", part, "--steps", "4", "--prompts", "2", "--seeds", "1", "--out", "out"]);
    command.args(more);
    run(command)
}

#[test]
fn a_part_is_named_and_runs_on_its_own() {
    let directory = temporary();
    let rivals = part(directory.path(), "rivals", &["--list"]);
    assert_eq!(
        rivals.stdout.lines().count(),
        4 + 1 + 26,
        "references, the control, every correction: {}",
        rivals.stdout
    );
    assert!(!directory.path().join("out").exists(), "nothing was run");
    let e6 = part(directory.path(), "e6", &["--markdown"]);
    assert_eq!(e6.code, Some(0), "{}", e6.stderr);
    assert!(e6.stderr.starts_with("13 of 13 arms to run"), "{}", e6.stderr);
    assert_eq!(outcomes(&directory.path().join("out")).len(), 4 + 1 + 8);
    assert!(e6.stdout.contains("| `centring-exact-never-lr4e-4` |"), "{}", e6.stdout);
    let nothing = part(directory.path(), "e6", &[]);
    assert!(nothing.stderr.starts_with("0 of 13 arms to run"), "{}", nothing.stderr);
}

#[test]
fn an_interruption_keeps_what_is_done_and_reports_it() {
    let directory = temporary();
    let mut running = Running::start(command(directory.path(), "out", &[]));
    running.wait_for("arms 3/6");
    signal("INT", &running.pid().to_string());
    let interrupted = running.finish();
    assert_eq!(interrupted.code, Some(130), "{}", interrupted.stderr);
    assert!(interrupted.stdout.contains("arms are not done") && interrupted.stdout.contains("untrained-exact-never"));
    let kept = outcomes(&directory.path().join("out"));
    let whole = experiment(directory.path(), "out", &[]);
    assert_eq!(whole.code, Some(0), "{}", whole.stderr);
    let all = outcomes(&directory.path().join("out"));
    assert_eq!(all.len(), 6);
    assert!(kept.len() < 6 && kept.iter().all(|(name, outcome)| all[name] == *outcome));
}

#[test]
fn an_arm_that_fails_is_named_and_what_is_done_stays() {
    let directory = temporary();
    let whole = experiment(directory.path(), "out", &[]);
    assert_eq!(whole.code, Some(0), "{}", whole.stderr);
    let out = directory.path().join("out");
    fs::remove_file(out.join("arms/none-exact-never-s1.json")).expect("the outcome is there");
    fs::remove_dir_all(out.join("references")).expect("the references are there");
    let broken = experiment(directory.path(), "out", &[]);
    assert_eq!(broken.code, Some(2));
    assert!(broken.stderr.contains("arm none-exact-never-s1 ended with"), "{}", broken.stderr);
    assert_eq!(outcomes(&out).len(), 5);
}

#[test]
fn a_run_gets_its_advice_with_its_numbers() {
    let directory = temporary();
    let mut demo = lockstep(directory.path());
    demo.args(["demo", "--steps", "4", "--set", "batch.prompts=4", "--out", "run"]);
    assert_eq!(run(demo).code, Some(0));
    let mut advise = lockstep(directory.path());
    advise.args(["advise", "run"]);
    let advised = run(advise);
    assert_eq!(advised.code, Some(0), "{}", advised.stderr);
    for word in ["lag: at most", "ratio: smallest horizon ESS", "numeric:", "the same precision on both sides"] {
        assert!(advised.stdout.contains(word), "{word}: {}", advised.stdout);
    }
    let mut nowhere = lockstep(directory.path());
    nowhere.args(["advise", "nowhere"]);
    let nowhere = run(nowhere);
    assert_eq!(nowhere.code, Some(2));
    assert!(nowhere.stderr.contains("cannot read nowhere/metrics.jsonl"), "{}", nowhere.stderr);
}
