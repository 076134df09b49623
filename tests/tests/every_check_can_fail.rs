//! Every check is green on an honest pair and red with its fault on, for every pair there is.

use lockstep_conformance::{Suite, Target, Verdict, pair};
use lockstep_tests::binary;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Makes an honest pair; every fault gets one of its own, since checks move weights.
type Build = fn(u64) -> Target;

async fn every_check_passes(build: Build, seeds: u64) {
    for seed in 0..seeds {
        let report = Suite::all().run(&build(seed), &mut |_| {}).await;
        let passed = report.rows.iter().filter(|row| row.verdict.is_pass()).count();
        assert_eq!(passed, report.rows.len(), "seed {seed}:\n{}", report.table());
    }
}

async fn every_fault_is_flagged(build: Build, seeds: u64) {
    for check in Suite::all().checks() {
        for fault in check.faults() {
            for seed in 0..seeds {
                let verdict: Verdict = check.run(&(fault.break_target)(build(seed))).await;
                assert!(verdict.is_fail(), "{} under {}, seed {seed}: {verdict:?}", check.id, fault.id);
            }
        }
    }
}

#[tokio::test]
async fn in_memory_pair() {
    every_check_passes(pair::target, 4).await;
    every_fault_is_flagged(pair::target, 2).await;
}

#[tokio::test]
async fn in_memory_pair_with_a_numeric_term() {
    every_check_passes(pair::rounded, 4).await;
    every_fault_is_flagged(pair::rounded, 2).await;
}

/// A copy of the small model's directory with a chat template that only appends: the small model itself has none.
fn with_template(directory: &Path) -> PathBuf {
    let (small, model) = (binary::small_model(), directory.join("model"));
    std::fs::create_dir(&model).unwrap();
    for file in std::fs::read_dir(small).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), model.join(file.file_name())).unwrap();
    }
    let turn = "{{'<|im_start|>' + m.role + '\n'}}{% if m.reasoning_content %}{{'<think>\n' + m.reasoning_content + '\n</think>\n\n'}}\
                {% endif %}{{m.content}}{% for c in m.tool_calls or [] %}{{c.function.name}} {{c.function.arguments | tojson}}{% endfor %}\
                {{'<|im_end|>\n'}}";
    let template = format!(
        "{{% for m in messages %}}{turn}{{% endfor %}}{{% if add_generation_prompt %}}{{{{'<|im_start|>assistant\n'}}}}{{% endif %}}"
    );
    let config = serde_json::json!({"chat_template": template}).to_string();
    std::fs::write(model.join("tokenizer_config.json"), config).unwrap();
    model
}

/// Runs the suite on the built-in Qwen3 pair, three processes and all; gives the exit code and the verdict of each check.
fn built_in(arguments: &[&str]) -> (Option<i32>, BTreeMap<String, String>) {
    let directory = tempfile::tempdir().unwrap();
    let template = with_template(directory.path()).display().to_string();
    let mut command = binary::lockstep(directory.path());
    command.args(["conformance", "--json", "--template", &template]).args(arguments);
    let ran = binary::run(command);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stderr));
    let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    let rows = report["rows"].as_array().unwrap().iter();
    let shown = |row: &Value| format!("{}: {}", text(row, "verdict"), text(row, "evidence"));
    (ran.code, rows.map(|row| (text(row, "id"), shown(row))).collect())
}

#[test]
fn the_built_in_pair_passes() {
    for seed in ["1", "2"] {
        let (code, verdicts) = built_in(&["--seed", seed]);
        let unmet: Vec<_> = verdicts.iter().filter(|(_, verdict)| !verdict.starts_with("pass: ")).collect();
        assert!(unmet.is_empty(), "seed {seed}: {unmet:?}");
        assert_eq!((code, verdicts.len()), (Some(0), Suite::all().checks().count()));
    }
}

/// The checks of one family on a pair of their own, every fault on it in turn: its steps wear a small model out.
fn missed(family: &[&str]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let template = with_template(directory.path()).display().to_string();
    let mut command = binary::lockstep(directory.path());
    command.args(["conformance", "--self-test", "--template", &template]);
    command.args(family.iter().flat_map(|id| ["--check", id]));
    let ran = binary::run(command);
    assert!(ran.stdout.lines().count() >= family.len(), "{}", ran.stderr);
    ran.stdout.lines().filter(|line| !line.starts_with("flagged")).map(str::to_owned).collect()
}

#[test]
fn every_fault_turns_the_built_in_pair_red() {
    let suite = Suite::all();
    let ids: Vec<&str> = suite.checks().map(|check| check.id).collect();
    for family in ids.chunk_by(|a, b| a.split('.').next() == b.split('.').next()) {
        let missed = missed(family);
        assert!(missed.is_empty(), "{missed:?}");
    }
}

/// Plumbing alone: four updates on four prompts decide nothing, and the check says so.
#[test]
fn a_training_too_short_to_decide_is_said_to_be() {
    let deep = ["--deep", "--deep-steps", "4", "--deep-prompts", "4", "--check", "end.divergence"];
    let (code, verdicts) = built_in(&deep);
    let verdict = &verdicts["end.divergence"];
    assert!(verdict.starts_with("could-not-run: 4 updates: ") && verdict.contains("standing still"), "{verdict}");
    assert_eq!(code, Some(2));
}
