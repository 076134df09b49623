//! `lockstep demo` from end to end: what it writes, what it says, and that it is the same twice.

mod recorded;

use lockstep::{
    config::{Config, Stage},
    ledger::{self, Record},
    metrics::{ResyncReason, StepMetrics, StepTiming},
    resync::ResyncEvent::{self, Decided, Effect},
};
use lockstep_core::dlc::statistics::TermStatistics;
use lockstep_tests::{
    binary::{Finished, lockstep, lockstep_with_cache, run},
    files,
};
use recorded::recorded;
use std::{fs, path::Path};
use tempfile::TempDir;

fn temporary() -> TempDir {
    tempfile::tempdir().expect("there is room for a temporary directory")
}

/// A small demo that must succeed, written to `out` inside `directory`.
fn demo(directory: &Path, out: &str, arguments: &[&str]) -> Finished {
    let mut command = lockstep(directory);
    command.args(["demo", "--set", "batch.prompts=4", "--out", out]).args(arguments);
    let finished = run(command);
    assert_eq!(finished.code, Some(0), "{arguments:?}: {}", finished.stderr);
    let out = directory.join(out);
    assert_eq!(files::half_written(&out), [] as [&Path; 0]);
    finished
}

/// The metrics of a small demo, held against its ledger and against what every run keeps.
fn metrics(arguments: &[&str]) -> Vec<StepMetrics> {
    let directory = temporary();
    demo(directory.path(), "out", arguments);
    let (metrics, plans) = recorded(&directory.path().join("out"));
    assert_eq!(metrics.len(), plans.len());
    lag_is_zero_at_equal_versions_alone(&metrics);
    the_sampler_holds_what_it_was_given(&metrics);
    metrics
}

fn lag_is_zero_at_equal_versions_alone(metrics: &[StepMetrics]) {
    for step in metrics {
        let (lag, ess) = (step.terms.lag, [step.ess.token, step.ess.sequence, step.ess.horizon]);
        if step.trainer_version == step.sampler_version {
            assert_eq!((lag, ess), (TermStatistics::default(), [1.0; 3]), "step {}", step.step);
        } else {
            assert!(lag.kl > 0.0 && lag.k3 > 0.0 && lag.max_abs > 0.0, "step {}: {lag:?}", step.step);
            assert!(ess.iter().all(|&ess| 0.0 < ess && ess < 1.0), "step {}: {ess:?}", step.step);
        }
    }
}

/// A step's sampler is the last step's; or, after a re-synchronisation, the last step's trainer after its update.
fn the_sampler_holds_what_it_was_given(metrics: &[StepMetrics]) {
    for pair in metrics.windows(2) {
        let (before, after) = (&pair[0], &pair[1]);
        let updated = before.trainer_version.next();
        let held = if before.resync.is_some() { updated } else { before.sampler_version };
        assert_eq!((after.sampler_version, after.trainer_version), (held, updated), "step {}", after.step);
    }
}

fn resyncs(metrics: &[StepMetrics]) -> Vec<Option<ResyncReason>> {
    metrics.iter().map(|step| step.resync).collect()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn everything_promised_is_written_and_said() {
    let directory = temporary();
    let finished = demo(directory.path(), "out", &["--steps", "3", "--seed", "5"]);
    let out = directory.path().join("out");

    let (metrics, _) = recorded(&out);
    assert_eq!((metrics.len(), metrics[0].rollouts), (3, 4 * 8));
    lag_is_zero_at_equal_versions_alone(&metrics);
    lines_are_complete(&read(out.join("metrics.jsonl")), &metrics);
    let timings = read(out.join("timings.jsonl"));
    let timings: Vec<StepTiming> = timings.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(timings.iter().map(|timing| timing.step).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(timings.iter().all(|timing| timing.sample_seconds > 0.0 && timing.train_seconds > 0.0));
    let report = read(out.join("report.html"));
    assert!(report.starts_with("<!DOCTYPE html>") && report.trim_end().ends_with("</html>"));
    assert!(report.contains("Lockstep demo, seed 5"));

    let progress: Vec<&str> = finished.stderr.lines().map(|line| line.split(" [").next().unwrap()).collect();
    assert_eq!(progress, ["training 1/3", "training 2/3", "training 3/3"], "plain lines without a terminal");
    assert!(finished.stderr.lines().all(|line| line.contains(" left] reward ")), "{}", finished.stderr);
    let table: Vec<&str> = finished.stdout.lines().collect();
    let heads = ["mean over steps", "reward", "ESS, horizon", "ESS, sequence", "ESS, token"];
    assert!(table.iter().zip(heads).all(|(row, head)| row.starts_with(head)), "{}", finished.stdout);
    let reward = metrics.iter().map(|step| step.reward).sum::<f64>() / 3.0;
    assert_eq!(
        table[1].split_whitespace().collect::<Vec<_>>(),
        ["reward", &format!("{reward:.4}"), &format!("{reward:.4}")]
    );
    assert_eq!(table.last(), Some(&"report: out/report.html"));
}

/// Every field of the record is in the file, the empty ones too.
fn lines_are_complete(text: &str, metrics: &[StepMetrics]) {
    for (line, step) in text.lines().zip(metrics) {
        let written: serde_json::Value = serde_json::from_str(line).unwrap();
        let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&written), keys(&serde_json::to_value(step).unwrap()));
    }
}

#[test]
fn the_written_configuration_makes_the_same_run_and_another_seed_another() {
    let directory = temporary();
    let out = |name: &str, file: &str| read(directory.path().join(name).join(file));
    let arguments = ["--steps", "3", "--seed", "5", "--set", "sampling.top_k=9", "--stage", "dlc"];
    demo(directory.path(), "first", &arguments);
    let mut again = lockstep(directory.path());
    again.args(["demo", "--config", "first/config.toml", "--out", "again"]);
    assert_eq!(run(again).code, Some(0));
    demo(directory.path(), "other", &["--config", "first/config.toml", "--seed", "6"]);

    let config = Config::resolve(Some(&directory.path().join("first/config.toml")), &[]).unwrap();
    assert_eq!((config.seed, config.steps, config.sampling.top_k), (5, 3, 9));
    assert_eq!((config.batch.prompts, config.stage), (4, Stage::Dlc));
    assert_eq!(out("again", "config.toml"), out("first", "config.toml"));
    assert_eq!(out("again", "metrics.jsonl"), out("first", "metrics.jsonl"));
    assert_ne!(out("other", "metrics.jsonl"), out("first", "metrics.jsonl"));
}

#[test]
fn observe_never_gives_new_weights() {
    let metrics = metrics(&["--steps", "3", "--stage", "observe", "--set", "trigger.threshold=0.9999"]);
    assert_eq!(resyncs(&metrics), [None; 3]);
}

#[test]
fn an_interval_gives_new_weights_when_it_is_up() {
    let metrics = metrics(&["--steps", "5", "--stage", "fix", "--sync-every", "2"]);
    let up = Some(ResyncReason::Interval);
    assert_eq!(resyncs(&metrics), [None, up, None, up, None]);
}

#[test]
fn the_trigger_gives_new_weights_when_the_ess_falls() {
    let metrics = metrics(&["--steps", "5", "--stage", "dlc", "--set", "trigger.threshold=0.9999"]);
    let fell = Some(ResyncReason::Ess);
    assert_eq!(resyncs(&metrics), [None, fell, None, fell, None], "equal versions have an ESS of 1");
}

#[test]
fn decisions_and_their_effects_are_in_the_ledger_and_in_the_file() {
    let directory = temporary();
    let arguments = ["--steps", "5", "--stage", "dlc", "--set", "trigger.threshold=0.9999"];
    demo(directory.path(), "out", &arguments);
    let out = directory.path().join("out");
    let file = read(out.join("resyncs.jsonl"));
    let written: Vec<ResyncEvent> = file.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [Decided { step: 2, inputs, .. }, Effect { step: 3, after, .. }, Decided { step: 4, .. }, Effect { .. }] =
        &written[..]
    else {
        panic!("{file}")
    };
    assert!(inputs.ess.horizon < 0.9999 && inputs.null.is_some_and(|null| null.horizon == 1.0), "{inputs:?}");
    assert_eq!(after.horizon, 1.0, "new weights");
    let records = ledger::read(&out.join("ledger")).unwrap();
    let kept = records.iter().filter_map(|record| match record {
        Record::Synchronisation(event) => Some(serde_json::to_string(event).unwrap()),
        _ => None,
    });
    assert_eq!(kept.collect::<Vec<_>>(), file.lines().collect::<Vec<_>>());
    let at = |of: fn(&Record) -> bool| records.iter().position(of).unwrap();
    let given = records.iter().rposition(|record| matches!(record, Record::Resync(_))).unwrap();
    assert!(at(|record| matches!(record, Record::Synchronisation(_))) < given, "decided, then given");

    let mut syncs = lockstep(directory.path());
    syncs.args(["ledger", "syncs", "out"]);
    let told = run(syncs).stdout;
    assert!(told.contains("step 2: resync, ESS below the threshold; horizon ESS 0."), "{told}");
    assert!(told.contains("step 3: the weights given after step 2 took ESS from token"), "{told}");
}

#[test]
fn an_untruncated_distribution_is_trained_on() {
    let metrics = metrics(&["--steps", "3", "--set", "sampling.top_p=1.0", "--sync-every", "2"]);
    assert!(
        metrics.iter().all(|step| step.terms.support_size == 32.0),
        "the small model has 32 ids, all of them listed"
    );
}

#[test]
fn with_two_open_plans_the_next_is_drawn_while_the_trainer_works_and_the_audit_is_green() {
    let directory = temporary();
    let arguments = ["--steps", "4", "--stage", "observe", "--set", "batch.max_open_plans=2"];
    demo(directory.path(), "out", &arguments);
    let (metrics, _) = recorded(&directory.path().join("out"));
    assert_eq!(metrics.len(), 4);
    let records = ledger::read(&directory.path().join("out/ledger")).unwrap();
    let place = |found: fn(&Record) -> bool| records.iter().position(found).unwrap();
    let opened = place(|record| matches!(record, Record::PlanOpened { plan: 1, .. }));
    let consumed = place(|record| matches!(record, Record::Consumed { plan: 0, .. }));
    assert!(opened < consumed, "plan 1 was opened before the step on plan 0");
    let mut audit = lockstep(directory.path());
    audit.args(["audit", "out"]);
    let audit = run(audit);
    assert_eq!(audit.code, Some(0), "{}{}", audit.stdout, audit.stderr);
    assert!(audit.stdout.contains("membership was a function of dispatch order alone"), "{}", audit.stdout);
}

#[test]
fn the_small_model_is_made_once_and_runs_are_numbered() {
    let directory = temporary();
    let first_time = || {
        let mut command = lockstep_with_cache(directory.path(), &directory.path().join("cache"));
        command.args(["demo", "--steps", "1", "--set", "batch.prompts=1"]);
        let finished = run(command);
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        assert_eq!(files::half_written(&directory.path().join("cache")), [] as [&Path; 0]);
        (finished.stderr.contains("warm start"), finished.stdout.lines().last().map(str::to_owned))
    };
    assert_eq!(first_time(), (true, Some("report: runs/demo-1/report.html".into())));
    assert_eq!(first_time(), (false, Some("report: runs/demo-2/report.html".into())));
}
