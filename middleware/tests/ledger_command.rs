//! `lockstep ledger`, on a ledger of its own making.

use lockstep::ledger::{Catalogue, PlanState, Records, StoredRollout, read, verify};
use lockstep_core::RolloutId;
use parquet::{
    file::reader::{FileReader, SerializedFileReader},
    record::{Field, Row},
};
use serde_json::json;
use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Output},
};

fn lockstep(arguments: &[&str], directory: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.arg("ledger").args(arguments).current_dir(directory).output().expect("the binary starts")
}

/// A run whose ledger has three consumed plans of eight rollouts, in several segments.
fn run() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("there is room for a temporary directory");
    let written = lockstep(&["exercise", "ledger", "--plans", "3", "--segment-bytes", "8192"], directory.path());
    assert!(written.status.success(), "{written:?}");
    assert_eq!(written.stdout.iter().filter(|&&byte| byte == b'\n').count(), 3 * 8 * 6);
    directory
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn ls_counts_what_is_there_also_by_the_directory_of_the_run() {
    let run = run();
    let listed = lockstep(&["ls", "."], run.path());
    let lines: Vec<String> = text(&listed.stdout).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 5, "{lines:?}");
    let catalogue = Catalogue::open(&run.path().join("ledger")).unwrap();
    for (plan, line) in lines[1..4].iter().enumerate() {
        let summary = catalogue.summary(plan as u64).unwrap();
        assert_eq!((summary.begun, summary.planned, summary.state), (8, None, PlanState::Consumed));
        let words: Vec<&str> = line.split_whitespace().collect();
        let expected = [&plan.to_string(), "consumed", "8/?", &summary.tokens.to_string(), &summary.bytes.to_string()];
        assert_eq!(words[..5], expected);
        assert_eq!(words[5], format!("e0.s{plan}"));
    }
    assert!(lines[4].starts_with("3 plans, 24 rollouts, "), "{}", lines[4]);
    assert!(catalogue.segments() > 2, "{} segments", catalogue.segments());
    let drawn = text(&lockstep(&["ls", "ledger", "--drawn-by", "e0.s1"], run.path()).stdout);
    assert_eq!(drawn.lines().nth(1), Some(&*lines[2]));
    assert!(drawn.lines().last().unwrap().starts_with("1 plans, 8 rollouts, "), "{drawn}");
    assert_eq!(text(&lockstep(&["ls", "ledger"], run.path()).stdout), text(&listed.stdout));
}

#[test]
fn show_tells_every_token_and_names_a_rollout_that_is_not_there() {
    let run = run();
    let shown = text(&lockstep(&["show", ".", "p2.r7"], run.path()).stdout);
    let catalogue = Catalogue::open(&run.path().join("ledger")).unwrap();
    let rollout = catalogue.rollout(RolloutId { plan: 2, index: 7 }).unwrap().unwrap();
    let tokens: usize = rollout.deltas.iter().map(|delta| delta.behavior.len()).sum();
    assert_eq!(shown.lines().filter(|line| line.contains("  token ")).count(), tokens);
    assert!(shown.contains("version e0.s2 (the engine says \"made up\"), KV cache fresh, made up 1"), "{shown}");
    assert!(shown.contains(&format!("finished after {tokens} tokens by the token limit")), "{shown}");
    let missing = lockstep(&["show", ".", "p9.r9"], run.path());
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("rollout p9.r9 is not in"), "{missing:?}");
    assert_eq!(lockstep(&["show", ".", "r9"], run.path()).status.code(), Some(3));
}

#[test]
fn verify_names_file_offset_and_rollout() {
    let run = run();
    let sound = lockstep(&["verify", "."], run.path());
    assert_eq!(sound.status.code(), Some(0));
    assert!(text(&sound.stdout).ends_with(" 0 faults\n"), "{sound:?}");
    let ledger = run.path().join("ledger");
    let path = ledger.join("000001.ledger");
    let whole = fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    // The delta whose bytes hold the middle of the file.
    let middle = whole.len() / 2;
    let begins = whole[..middle].windows(4).rposition(|window| window == b"LKSF").unwrap();
    let plan = u64::from_le_bytes(whole[begins + 14..begins + 22].try_into().unwrap());
    let index = u32::from_le_bytes(whole[begins + 22..begins + 26].try_into().unwrap());
    damaged[middle] ^= 16;
    fs::write(&path, &damaged).unwrap();
    let found = lockstep(&["verify", "."], run.path());
    assert_eq!(found.status.code(), Some(1));
    let place = format!("000001.ledger is damaged at byte {begins}, in rollout p{plan}.r{index}, after a delta of");
    assert!(text(&found.stdout).contains(&place), "{place}: {}", text(&found.stdout));
    fs::write(&path, &whole).unwrap();
    let index = ledger.join("000001.index");
    let mut bytes = fs::read(&index).unwrap();
    bytes[100] ^= 1;
    fs::write(&index, bytes).unwrap();
    let faults = verify(&ledger).unwrap().faults;
    assert!(matches!(&faults[..], [fault] if fault.to_string().contains("000001.index is no index")), "{faults:?}");
}

#[test]
fn jsonl_and_parquet_say_what_the_ledger_says() {
    let run = run();
    for (format, file) in [("jsonl", "table.jsonl"), ("parquet", "table.parquet")] {
        let exported = lockstep(&["export", ".", "--format", format, "--out", file], run.path());
        assert!(exported.status.success(), "{exported:?}");
        assert!(text(&exported.stderr).contains("24 rollouts in table."), "{exported:?}");
    }
    let lines = fs::read_to_string(run.path().join("table.jsonl")).unwrap();
    let json: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let file = SerializedFileReader::new(File::open(run.path().join("table.parquet")).unwrap()).unwrap();
    let rows: Vec<_> = file.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    let catalogue = Catalogue::open(&run.path().join("ledger")).unwrap();
    let stored: Vec<_> = (0..3).flat_map(|plan| catalogue.rollouts(plan).unwrap().map(Result::unwrap)).collect();
    assert_eq!((json.len(), rows.len(), stored.len()), (24, 24, 24));
    json.iter().zip(&rows).zip(&stored).for_each(|((json, row), stored)| same(json, row, stored));
    assert!(!run.path().join("table.parquet.new").exists());
}

fn same(json: &serde_json::Value, row: &Row, stored: &StoredRollout) {
    let tokens: Vec<u32> = stored.deltas.iter().flat_map(|d| d.behavior.tokens()).map(|token| token.0).collect();
    let column = |name: &str| row.get_column_iter().find(|(of, _)| *of == name).expect("the column is there").1;
    assert_eq!((&json["rollout"], &json["tokens"]), (&json!(stored.id.to_string()), &json!(tokens)));
    assert_eq!(column("rollout"), &Field::Str(stored.id.to_string()));
    assert_eq!(elements(column("tokens")), tokens.iter().map(|&token| Field::UInt(token)).collect::<Vec<_>>());
    assert_eq!(Some(elements(column("support_ids")).len()), json["support_ids"].as_array().map(Vec::len));
    assert_eq!(elements(column("log_rest")), vec![Field::Null; tokens.len()]);
    assert_eq!(elements(column("segment_versions")), [Field::Str(format!("e0.s{}", stored.id.plan))]);
    assert_eq!((column("finish"), column("group")), (&Field::Str("length".into()), &Field::Null));
    assert_eq!((column("prompt"), column("consumed")), (&Field::Null, &Field::Bool(true)));
    let log_q = json["log_q"][0].as_f64().map(|log_q| Field::Float(log_q as f32));
    assert_eq!(Some(&elements(column("log_q"))[0]), log_q.as_ref());
}

fn elements(field: &Field) -> Vec<Field> {
    match field {
        Field::ListInternal(list) => list.elements().to_vec(),
        other => panic!("not a list: {other}"),
    }
}

#[test]
fn a_ledger_is_read_while_it_is_written() {
    let run = run();
    let ledger = run.path().join("ledger");
    let mut following = Records::of(&ledger).unwrap();
    let before = following.by_ref().map(Result::unwrap).count();
    assert_eq!(before, read(&ledger).unwrap().len());
    let more = lockstep(&["exercise", "ledger", "--from", "3", "--plans", "1", "--segment-bytes", "8192"], run.path());
    assert!(more.status.success(), "{more:?}");
    let after: Vec<_> = following.map(Result::unwrap).collect();
    assert_eq!(after.len(), 8 * 6 + 1, "one plan more, and no record twice");
}

#[test]
fn what_is_no_ledger_is_named() {
    let directory = tempfile::tempdir().unwrap();
    for command in ["ls", "verify"] {
        let nothing = lockstep(&[command, "."], directory.path());
        assert_eq!(nothing.status.code(), Some(2));
        assert!(text(&nothing.stderr).contains("there is no ledger"), "{nothing:?}");
    }
}
