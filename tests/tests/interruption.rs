//! A run that is interrupted, or loses one of its processes: it ends, it says so, and what was acknowledged is there.
#![cfg(target_os = "linux")]

mod recorded;

use lockstep::{
    audit::{Account, Audit},
    ledger::{self, Ledger, Record},
    metrics::StepMetrics,
};
use lockstep_tests::{
    binary::{Finished, LIMIT, Running, lockstep, lockstep_with_cache, run, signal},
    files,
};
use recorded::recorded;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};
use tempfile::TempDir;

/// A demo that goes on until somebody ends it, past its second step; and its children.
struct Interrupted {
    directory: TempDir,
    running: Running,
    children: Vec<Process>,
}

#[derive(Debug)]
struct Process {
    pid: u32,
    /// The subcommand it runs.
    what: String,
}

impl Interrupted {
    fn after_two_steps() -> Self {
        let directory = tempfile::tempdir().expect("there is room for a temporary directory");
        let mut command = lockstep(directory.path());
        command.args(["demo", "--steps", "1000000", "--set", "batch.prompts=4", "--out", "out"]);
        let mut running = Running::start(command);
        running.wait_for("training 2/");
        let children = children_of(running.pid());
        let mut names: Vec<&str> = children.iter().map(|child| &*child.what).collect();
        names.sort_unstable();
        assert_eq!(names, ["sampler", "trainer"]);
        Self { directory, running, children }
    }

    fn child(&self, what: &str) -> String {
        let child = self.children.iter().find(|child| child.what == what);
        child.unwrap_or_else(|| panic!("no {what} among {:?}", self.children)).pid.to_string()
    }

    /// Waits for its end, and for its children's; holds what is there against what was acknowledged.
    fn finish(self) -> (Finished, TempDir) {
        let finished = self.running.finish();
        self.children.iter().for_each(ends);
        assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
        let out = self.directory.path().join("out");
        let (metrics, plans) = recorded(&out);
        assert!(metrics.len() >= 2, "two steps were announced, {} are written", metrics.len());
        assert!(plans.len() - metrics.len() <= 1, "{} plans for {} steps", plans.len(), metrics.len());
        Ledger::open(&out.join("ledger")).expect("the ledger opens for the next writer");
        (finished, self.directory)
    }
}

fn children_of(parent: u32) -> Vec<Process> {
    let processes = fs::read_dir("/proc").expect("there is a /proc");
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let children = pids.filter(|&pid| state_and_parent(pid).is_some_and(|(_, of)| of == parent));
    children.map(|pid| Process { pid, what: argument(pid).unwrap_or_default() }).collect()
}

/// State letter and parent of a process, from `/proc/PID/stat`: the fields after the name, which may hold anything.
fn state_and_parent(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn argument(pid: u32) -> Option<String> {
    let command_line = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    command_line.split('\0').nth(1).map(str::to_owned)
}

/// A process that is nobody's child any more cannot be waited on, so its state is read until it is gone or dead.
fn ends(process: &Process) {
    let deadline = Instant::now() + LIMIT;
    while state_and_parent(process.pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X')) {
        assert!(Instant::now() < deadline, "{process:?} goes on without its parent");
        std::thread::yield_now();
    }
}

fn ends_with_a_report(interrupted: Interrupted) {
    let (finished, directory) = interrupted.finish();
    assert_eq!(finished.code, Some(130), "{}", finished.stderr);
    let out = directory.path().join("out");
    let (metrics, _) = recorded(&out);
    let last = format!("interrupted after step {} of 1000000", metrics.len());
    assert_eq!(finished.stderr.lines().last(), Some(&*last));
    assert_eq!(finished.stdout.lines().last(), Some("report: out/report.html"));
    assert!(fs::read_to_string(out.join("report.html")).unwrap_or_default().trim_end().ends_with("</html>"));
    assert!(!finished.stderr.contains("error:"), "{}", finished.stderr);
}

#[test]
fn an_interrupt_ends_a_run_with_its_report() {
    let interrupted = Interrupted::after_two_steps();
    signal("INT", &interrupted.running.pid().to_string());
    ends_with_a_report(interrupted);
}

#[test]
fn an_interrupt_of_the_whole_group_is_left_to_the_parent() {
    let interrupted = Interrupted::after_two_steps();
    signal("INT", &format!("-{}", interrupted.running.pid()));
    ends_with_a_report(interrupted);
}

#[test]
fn the_children_of_a_killed_run_end_and_what_was_acknowledged_is_there() {
    let interrupted = Interrupted::after_two_steps();
    signal("KILL", &interrupted.running.pid().to_string());
    let (finished, _) = interrupted.finish();
    assert_eq!((finished.code, finished.signal), (None, Some(9)));
}

/// Killed between two steps or inside one, and started again with the same words: the run ends as if nothing had been.
#[test]
fn a_killed_run_goes_on_where_its_ledger_and_its_trainer_stand() {
    for open_plans in ["1", "3"] {
        let directory = tempfile::tempdir().unwrap();
        let open_plans = format!("batch.max_open_plans={open_plans}");
        let arguments = ["demo", "--steps", "6", "--set", "batch.prompts=4", "--set", &open_plans, "--out", "out"];
        let mut command = lockstep(directory.path());
        command.args(arguments);
        let mut running = Running::start(command);
        running.wait_for("training 2/");
        let children = children_of(running.pid());
        signal("KILL", &running.pid().to_string());
        assert_eq!(running.finish().signal, Some(9));
        children.iter().for_each(ends);
        let mut again = lockstep(directory.path());
        again.args(arguments);
        let finished = run(again);
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        let out = directory.path().join("out");
        let metrics: Vec<StepMetrics> = fs::read_to_string(out.join("metrics.jsonl"))
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(metrics.iter().map(|step| step.step).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(metrics.iter().map(|step| step.plan).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        assert_eq!((metrics[0].trainer_version.epoch, metrics[5].trainer_version.epoch), (0, 1));
        let records = ledger::read(&out.join("ledger")).unwrap();
        let resumed = records.iter().filter(|record| matches!(record, Record::Resumed { .. })).count();
        assert_eq!(resumed, 1, "the ledger says that the run was resumed");
        let audit = Audit::of(&Account::of(&records).unwrap());
        assert!(!audit.is_red(), "{}", audit.table());
        assert_eq!((audit.batches, audit.trained), (6, 6 * 32));
        let mut done = lockstep(directory.path());
        done.args(arguments);
        let done = run(done);
        assert_eq!(done.code, Some(2));
        assert!(done.stderr.contains("it holds a run that has done all of its 6 steps"), "{}", done.stderr);
        let mut other = lockstep(directory.path());
        other.args(arguments).args(["--seed", "9"]);
        assert!(run(other).stderr.contains("a run of another configuration"));
    }
}

fn ends_with_one_error(of: &str) {
    let interrupted = Interrupted::after_two_steps();
    signal("KILL", &interrupted.child(of));
    let (finished, directory) = interrupted.finish();
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    let errors: Vec<&str> = finished.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors, finished.stderr.lines().last().as_slice(), "{}", finished.stderr);
    assert!(errors[0].contains(of), "{}", errors[0]);
    assert!(directory.path().join("out/report.html").exists(), "the steps that were done have their report");
    // A trainer that is killed while it saves leaves a half-written state beside the whole one, and the next takes its place.
    let half_written = files::half_written(&directory.path().join("out"));
    let elsewhere = half_written.iter().filter(|path| !path.starts_with(directory.path().join("out/state")));
    assert_eq!(elsewhere.collect::<Vec<_>>(), [] as [&PathBuf; 0]);
}

#[test]
fn a_sampler_that_dies_is_an_error_and_nothing_is_lost() {
    ends_with_one_error("sampler");
}

#[test]
fn a_trainer_that_dies_is_an_error_and_nothing_is_lost() {
    ends_with_one_error("trainer");
}

#[test]
fn an_interrupt_before_the_first_step_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("cache");
    let mut command = lockstep_with_cache(directory.path(), &cache);
    command.args(["demo", "--out", "out"]);
    let mut running = Running::start(command);
    running.wait_for("warm start");
    signal("INT", &running.pid().to_string());
    let finished = running.finish();
    assert_eq!(finished.code, Some(130), "{}", finished.stderr);
    assert_eq!(finished.stderr.lines().last(), Some("interrupted before the first step; nothing was written"));
    assert!(!directory.path().join("out").exists());
    let left: Vec<_> =
        fs::read_dir(cache.join("lockstep")).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [] as [&Path; 0]);
}
