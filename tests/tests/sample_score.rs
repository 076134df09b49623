//! `lockstep sample` and `lockstep score`: answers into a ledger, and a ledger under a model's weights.
#![cfg(target_os = "linux")]

use lockstep::ledger::{self, Ledger, Record};
use lockstep_engine::{Config, Qwen3, Weights};
use lockstep_tests::{
    binary::{Finished, Running, lockstep, run, signal, small_model},
    files,
};
use serde_json::Value;
use std::{fs, path::Path};
use tempfile::TempDir;

const SMALL: [&str; 3] = ["sample", "--set", "batch.prompts=2"];

fn temporary() -> TempDir {
    tempfile::tempdir().expect("there is room for a temporary directory")
}

fn of(directory: &Path, arguments: &[&str]) -> Finished {
    let mut command = lockstep(directory);
    command.args(arguments);
    run(command)
}

fn sample(directory: &Path, arguments: &[&str]) -> Finished {
    of(directory, &[&SMALL[..], arguments].concat())
}

/// What is printed for each version: tokens, mean, mean size, largest, KL.
fn rows(finished: &Finished) -> Vec<(String, Vec<f64>)> {
    let row = |line: &str| {
        let mut cells = line.split_whitespace();
        let version = cells.next().expect("a row has a name").to_owned();
        (version, cells.map(|cell| cell.parse().expect("a number")).collect())
    };
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    finished.stdout.lines().skip(1).map(row).collect()
}

fn score(directory: &Path, model: &Path, more: &[&str]) -> Finished {
    let model = model.display().to_string();
    of(directory, &[&["score", "out", "--model", &model], more].concat())
}

#[test]
fn what_was_sampled_has_the_log_probs_it_was_drawn_with() {
    let directory = temporary();
    let sampled = sample(directory.path(), &["--plans", "2", "--out", "out"]);
    assert_eq!(sampled.code, Some(0), "{}", sampled.stderr);
    assert!(sampled.stdout.starts_with("32 answers, "), "{}", sampled.stdout);
    assert_eq!(files::half_written(&directory.path().join("out")), [] as [&Path; 0]);
    let scored = score(directory.path(), &small_model(), &["--out", "scores.jsonl"]);
    let rows = rows(&scored);
    assert_eq!(rows.iter().map(|row| &row.0[..]).collect::<Vec<_>>(), ["e0.s0"]);
    let [tokens, _, size, largest, kl] = rows[0].1[..] else { panic!("{rows:?}") };
    assert!(size < 1e-5 && largest < 1e-4 && kl < 1e-9, "{rows:?}");

    let written = fs::read_to_string(directory.path().join("scores.jsonl")).expect("the scores are written");
    let written: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    assert_eq!(written.len(), 32);
    let of_row = |row: &Value, key: &str| row[key].as_array().map_or(0, Vec::len);
    assert!(
        written
            .iter()
            .all(|row| ["tokens", "log_q", "log_p"].map(|key| of_row(row, key)) == [of_row(row, "tokens"); 3])
    );
    assert_eq!(written.iter().map(|row| of_row(row, "tokens")).sum::<usize>() as f64, tokens);

    let again = sample(directory.path(), &["--plans", "2", "--out", "out"]);
    assert_eq!((again.code, again.stdout), (Some(0), sampled.stdout), "what is there is not drawn again");
}

/// Other weights, and coarser ones, show.
#[test]
fn a_model_that_did_not_draw_them_is_seen() {
    let directory = temporary();
    assert_eq!(sample(directory.path(), &["--out", "out"]).code, Some(0));
    let other = directory.path().join("other");
    fs::create_dir(&other).expect("a directory can be made");
    let model = Qwen3::load(&small_model()).expect("the small model can be read");
    let weights = Weights::random(model.config(), 3, 0.08).expect("there is memory for weights");
    model.weights().assign(&weights).expect("they are of one model");
    model.save(&other).expect("a model can be written");
    let kl = rows(&score(directory.path(), &other, &[]))[0].1[4];
    assert!(kl > 1e-2, "{kl}");

    assert_eq!(sample(directory.path(), &["--numerics", "int4", "--out", "coarse"]).code, Some(0));
    let model = small_model().display().to_string();
    let coarse = rows(&of(directory.path(), &["score", "coarse", "--model", &model]))[0].1[4];
    assert!(coarse > 1e-5 && coarse < 1.0, "{coarse}");
}

#[test]
fn a_killed_call_goes_on_and_an_interrupted_one_says_so() {
    let directory = temporary();
    let more = ["--plans", "60", "--out", "out"];
    for (name, code) in [("KILL", None), ("INT", Some(130))] {
        let mut command = lockstep(directory.path());
        command.args(SMALL).args(more);
        let mut running = Running::start(command);
        running.wait_for("sampling 2/60");
        signal(name, &running.pid().to_string());
        let finished = running.finish();
        assert_eq!(finished.code, code, "{}", finished.stderr);
        assert_eq!(finished.stderr.contains("the same command goes on"), name == "INT", "{}", finished.stderr);
        assert!(rows(&score(directory.path(), &small_model(), &[]))[0].1[0] > 0.0);
    }
    let finished = sample(directory.path(), &more);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert!(finished.stdout.starts_with("960 answers, "), "{}", finished.stdout);
    let records = ledger::read(&directory.path().join("out/ledger")).expect("the ledger can be read");
    let sealed = records.iter().filter(|record| matches!(record, Record::PlanSealed { .. })).count();
    let rewarded = records.iter().filter(|record| matches!(record, Record::Reward { .. })).count();
    assert_eq!((sealed, rewarded), (60, 960), "every plan once, every answer once");
}

#[test]
fn plans_in_the_making_are_left_out() {
    let directory = temporary();
    assert_eq!(sample(directory.path(), &["--out", "out"]).code, Some(0));
    let records = ledger::read(&directory.path().join("out/ledger")).expect("the ledger can be read");
    let requests = records.iter().find_map(|record| match record {
        Record::PlanOpened { requests, .. } => Some(requests.clone()),
        _ => None,
    });
    let mut requests = requests.expect("a plan was opened");
    requests.iter_mut().for_each(|request| request.id.plan = 1);
    let opened = Record::PlanOpened { plan: 1, requests };
    for place in ["out/ledger", "only/ledger"] {
        let (mut ledger, _) = Ledger::open(&directory.path().join(place)).expect("the ledger can be written");
        ledger.append(&opened).and_then(|()| ledger.sync()).expect("there is room");
    }
    let scored = score(directory.path(), &small_model(), &[]);
    assert!(scored.stderr.contains("plan 1 is left out: not all of its answers are there"), "{}", scored.stderr);
    assert_eq!(rows(&scored).len(), 1);
    let model = small_model().display().to_string();
    let nothing = of(directory.path(), &["score", "only", "--model", &model, "--out", "scores.jsonl"]);
    assert_eq!(nothing.code, Some(2), "{}", nothing.stdout);
    assert!(nothing.stderr.contains("none of the 1 plans has all of its answers"), "{}", nothing.stderr);
    assert!(!directory.path().join("scores.jsonl").exists());
}

#[test]
fn what_cannot_be_sampled_or_scored_is_named() {
    let directory = temporary();
    let refused = |arguments: &[&str], code: i32, why: &str| {
        let finished = of(directory.path(), arguments);
        assert_eq!(finished.code, Some(code), "{arguments:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(why), "{arguments:?}: {}", finished.stderr);
    };
    let model = small_model().display().to_string();
    refused(&["sample", "--out", "out", "--plans", "0"], 3, "0 is not in 1..");
    refused(&["sample", "--out", "out", "--device", "cuda"], 2, "make build-cuda");
    refused(&["sample", "--out", "out", "--model", &model], 3, "--prompts");
    refused(&["score", "nowhere", "--model", &model], 2, "nowhere");
    assert!(!directory.path().join("out").exists());
    assert_eq!(sample(directory.path(), &["--out", "out"]).code, Some(0));
    refused(&["sample", "--out", "out", "--seed", "9"], 2, "drawn with seed = 1, not with seed = 9");
    refused(
        &["sample", "--set", "batch.prompts=2", "--out", "out", "--numerics", "int4"],
        2,
        "numerics = \"exact\", not with numerics = \"int4\"",
    );
    refused(&["demo", "--steps", "1", "--out", "out"], 2, "not empty");
    refused(&["score", "out", "--model", &model, "--out", "nowhere/x"], 2, "nowhere is no directory");

    let narrow = directory.path().join("narrow");
    fs::create_dir(&narrow).expect("a directory can be made");
    let config = Config { vocab: 4, ..Config::load(&small_model()).expect("the small model has a configuration") };
    let weights = Weights::random(&config, 1, 0.1).expect("there is memory for weights");
    Qwen3::new(config, weights).expect("the weights fit").save(&narrow).expect("a model can be written");
    refused(&["score", "out", "--model", "narrow"], 2, "outside");
}
