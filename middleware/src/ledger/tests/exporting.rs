//! What a table says of what was asked, of partly known supports, of rewards.

use super::*;
use parquet::{
    file::reader::{FileReader, SerializedFileReader},
    record::{Field, Row},
};
use serde_json::json;

/// One rollout: a singleton, a choice of two, a head with its tail, and a head inside a mask.
fn catalogue() -> (tempfile::TempDir, Catalogue) {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::resume(directory.path(), SEGMENT_BYTES).unwrap();
    let mut records = records();
    let Record::PlanOpened { requests, .. } = &mut records[0] else { panic!("not a plan") };
    requests.push(Request { id: RolloutId { plan: 2, index: 1 }, group: 1, ..requests[0].clone() });
    let mut delta = delta(0);
    let (ids, log_q) = (vec![TokenId(1), TokenId(2), TokenId(3)], vec![0.5f64.ln(), 0.25f64.ln()]);
    let reported = Reported { ids, log_q, log_rest: Some(0.25f64.ln()), domain: Domain::Listed };
    delta.behavior.push(&Support::new(Sampled { token: TokenId(3), log_q: 0.25f64.ln() }, reported).unwrap());
    records[2] = Record::Delta(DeltaRecord::new(&delta, 0));
    records.iter().for_each(|record| ledger.append(record).unwrap());
    ledger.sync().unwrap();
    let catalogue = Catalogue::open(directory.path()).unwrap();
    (directory, catalogue)
}

fn ln(mass: f32) -> f32 {
    mass.ln()
}

#[test]
fn jsonl_tells_what_is_known_and_null_for_what_is_not() {
    let (_directory, catalogue) = catalogue();
    let mut out = Vec::new();
    assert_eq!(export::jsonl(&catalogue, &mut out).unwrap(), 2);
    let lines: Vec<serde_json::Value> =
        String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let row = &lines[0];
    let expected = json!({
        "rollout": "p2.r0", "plan": 2, "index": 0, "group": 0, "prompt": [1, 2],
        "temperature": 0.8, "top_k": 0, "top_p": 0.95, "min_p": 0.0, "seed": 5,
        "tokens": [4, 9, 30, 3],
        "support_sizes": [1, 2, 2, 3], "support_ids": [4, 3, 9, 3, 9, 1, 2, 3],
        "vocabulary": [null, null, 50, null],
        "segment_tokens": [4], "segment_versions": ["e1.s7"], "segment_kv": ["fresh"], "segment_engines": ["test 1"],
        "finish": "stop", "reward": 0.25, "consumed": true,
    });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&row[key], value, "{key}");
    }
    let floats = |key: &str| -> Vec<Option<f32>> {
        row[key].as_array().unwrap().iter().map(|value| value.as_f64().map(|value| value as f32)).collect()
    };
    assert_eq!(floats("log_q"), [Some(0.0), Some(ln(0.5)), Some(ln(0.125)), Some(ln(0.25))]);
    assert_eq!(floats("log_rest"), [None, None, Some(ln(0.25)), Some(ln(0.25))]);
    let (half, quarter) = (Some(ln(0.5)), Some(ln(0.25)));
    assert_eq!(floats("support_log_q"), [Some(0.0), half, half, half, quarter, half, quarter, None]);
    let nothing_yet = ["tokens", "log_q", "segment_versions"].map(|key| lines[1][key] == json!([]));
    assert_eq!((&lines[1]["rollout"], &lines[1]["finish"], nothing_yet), (&json!("p2.r1"), &json!(null), [true; 3]));
}

#[test]
fn parquet_says_the_same() {
    let (directory, catalogue) = catalogue();
    let path = directory.path().join("table.parquet");
    assert_eq!(export::parquet(&catalogue, std::fs::File::create(&path).unwrap()).unwrap(), 2);
    let file = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
    let rows: Vec<Row> = file.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    let column = |row: usize, name: &str| rows[row].get_column_iter().find(|(of, _)| *of == name).unwrap().1.clone();
    let list = |row: usize, name: &str| match column(row, name) {
        Field::ListInternal(list) => list.elements().to_vec(),
        other => panic!("{name} is no list: {other}"),
    };
    let ids = |ids: &[u32]| ids.iter().map(|&id| Field::UInt(id)).collect::<Vec<_>>();
    let float = |mass: f32| Field::Float(ln(mass));
    assert_eq!((list(0, "prompt"), list(0, "tokens")), (ids(&[1, 2]), ids(&[4, 9, 30, 3])));
    assert_eq!(list(0, "support_ids"), ids(&[4, 3, 9, 3, 9, 1, 2, 3]));
    assert_eq!(list(0, "log_q"), [Field::Float(0.0), float(0.5), float(0.125), float(0.25)]);
    assert_eq!(list(0, "log_rest"), [Field::Null, Field::Null, float(0.25), float(0.25)]);
    assert_eq!(list(0, "vocabulary"), [Field::Null, Field::Null, Field::UInt(50), Field::Null]);
    assert_eq!(list(0, "support_log_q")[6..], [float(0.25), Field::Null]);
    assert_eq!(list(0, "segment_versions"), [Field::Str("e1.s7".into())]);
    let scalars = ["plan", "top_p", "seed", "finish", "reward", "consumed"].map(|name| column(0, name));
    let stop = Field::Str("stop".into());
    let expected =
        [Field::ULong(2), Field::Double(0.95), Field::ULong(5), stop, Field::Double(0.25), Field::Bool(true)];
    assert_eq!(scalars, expected);
    assert_eq!((list(1, "tokens"), list(1, "support_log_q"), column(1, "reward")), (vec![], vec![], Field::Null));
    assert_eq!((column(1, "group"), column(1, "finish")), (Field::UInt(1), Field::Null));
}
