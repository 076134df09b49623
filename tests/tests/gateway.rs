//! The gateway as its users run it.

use lockstep_tests::{
    binary::{self, Finished},
    proto,
};
use std::{path::Path, process::Command};

/// What `run.sh` ends with where PyPI cannot be reached.
const SKIPPED: i32 = 3;

fn lockstep(directory: &Path, arguments: &[&str]) -> Finished {
    let mut command = binary::lockstep_with_cache(directory, directory);
    command.args(arguments);
    binary::run(command)
}

#[test]
fn every_engine_has_one_complete_launch_line() {
    let directory = tempfile::tempdir().unwrap();
    for (engine, flag) in
        [("vllm", "--return-sampling-mask"), ("sglang", "--sampling-defaults"), ("llama.cpp", "llama-server")]
    {
        let finished = lockstep(directory.path(), &["serve", "--print-launch", engine]);
        assert_eq!((finished.code, finished.stdout.lines().count()), (Some(0), 1), "{}", finished.stderr);
        assert!(finished.stdout.contains(flag), "{}", finished.stdout);
    }
    assert_eq!(lockstep(directory.path(), &["serve", "--print-launch", "other"]).code, Some(3));
}

#[test]
fn what_cannot_be_served_is_said_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let none = lockstep(directory.path(), &["serve", "--no-ledger"]);
    assert_eq!(none.code, Some(3));
    assert!(none.stderr.contains("--engine"), "{}", none.stderr);
    let gone =
        lockstep(directory.path(), &["serve", "--no-ledger", "--stop-id", "1", "--engine", "http://127.0.0.1:1"]);
    assert_eq!(gone.code, Some(2));
    assert!(gone.stderr.starts_with("error: "), "{}", gone.stderr);
    let replayed = lockstep(directory.path(), &["replay", "--file", "nothing.jsonl"]);
    assert_eq!(replayed.code, Some(2));
    assert!(replayed.stderr.contains("nothing.jsonl"), "{}", replayed.stderr);
}

/// Chat, streams, tools, errors, and 20 turns whose ids are the engine's, with the unmodified `openai` package. Where it cannot be
/// installed the test says so and passes, unless `LOCKSTEP_OPENAI=required`.
#[test]
fn the_openai_package_works_unmodified() {
    let mut check = Command::new("sh");
    check.arg(proto::root().join("tests/gateway/run.sh")).arg(binary::path());
    let finished = binary::run(check);
    let required = std::env::var("LOCKSTEP_OPENAI").is_ok_and(|value| value == "required");
    if finished.code == Some(SKIPPED) && !required {
        eprintln!("the openai package was not tried: {}", finished.stderr.trim());
        return;
    }
    assert_eq!(finished.code, Some(0), "{}{}", finished.stdout, finished.stderr);
    assert!(finished.stdout.contains("checks passed"), "{}", finished.stdout);
}
