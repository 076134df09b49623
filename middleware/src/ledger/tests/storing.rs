//! Appending, reading back, following, new segments and old ones.

use super::*;

fn delta_at(index: u32, start: u32, tokens: &[u32]) -> Delta {
    let mut behavior = BehaviorDistribution::default();
    tokens.iter().for_each(|&token| behavior.push(&Support::singleton(TokenId(token))));
    Delta { rollout: RolloutId { plan: 2, index }, start, behavior, finish: None, ..delta(index) }
}

fn deltas(records: &[Record]) -> Vec<(RolloutId, u32)> {
    let delta = |record: &Record| match record {
        Record::Delta(delta) => Some((delta.rollout, delta.start)),
        _ => None,
    };
    records.iter().filter_map(delta).collect()
}

#[test]
fn what_was_synced_is_read_back() {
    let (directory, _, expected) = written();
    assert_eq!(read(directory.path()).unwrap(), expected);
    let (mut ledger, found) = Ledger::open(directory.path()).unwrap();
    assert_eq!(found, expected);
    ledger.append_delta(&delta(1)).unwrap();
    ledger.sync().unwrap();
    let records = read(directory.path()).unwrap();
    assert_eq!(records.len(), expected.len() + 1, "a known profile is not written again");
    let Record::Delta(last) = records.last().unwrap().clone() else { panic!("not a delta") };
    assert_eq!(last.delta(profile()).unwrap(), delta(1));
}

#[test]
fn a_ledger_of_format_1_opens_and_is_written_on() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("000000.ledger"), include_bytes!("v1.ledger")).unwrap();
    assert_eq!(read(directory.path()).unwrap(), records());
    for (segment_bytes, index) in [(SEGMENT_BYTES, 1), (1, 2)] {
        let mut ledger = Ledger::resume(directory.path(), segment_bytes).unwrap();
        ledger.append_delta(&delta(0)).unwrap();
        ledger.append_delta(&delta(index)).unwrap();
        ledger.sync().unwrap();
    }
    let found = read(directory.path()).unwrap();
    assert_eq!(found[..7], records());
    let ids = [1, 2].map(|index| (RolloutId { plan: 2, index }, 0));
    assert_eq!(deltas(&found[7..]), ids, "the one that was there is not stored again");
    assert!(directory.path().join("000001.ledger").exists());
}

#[test]
fn one_writer_at_a_time() {
    let (directory, _, _) = written();
    let first = Ledger::open(directory.path()).unwrap();
    assert!(matches!(Ledger::open(directory.path()), Err(LedgerError::Locked(_))));
    drop(first);
    Ledger::open(directory.path()).unwrap();
}

#[test]
fn a_retry_stores_once_and_one_that_differs_is_named() {
    let directory = tempfile::tempdir().unwrap();
    for segment_bytes in [SEGMENT_BYTES, 1] {
        for round in 0..3 {
            let mut ledger = Ledger::resume(directory.path(), segment_bytes).unwrap();
            for _ in 0..2 {
                ledger.append_delta(&delta_at(0, 0, &[1, 2])).unwrap();
                ledger.append_delta(&delta_at(0, 2, &[3])).unwrap();
                let last = Delta { finish: Some(FinishReason::Length), ..delta_at(0, 3, &[]) };
                ledger.append_delta(&last).unwrap();
                if round == 1 {
                    ledger.sync().unwrap();
                }
            }
            let differing = [delta_at(0, 0, &[1, 9]), delta_at(0, 0, &[1]), delta_at(0, 1, &[2]), delta_at(0, 3, &[])];
            for differs in differing {
                let error = ledger.append_delta(&differs).unwrap_err();
                assert!(matches!(error, LedgerError::Differs { .. }), "{error}");
            }
            let gap = ledger.append_delta(&delta_at(0, 4, &[5])).unwrap_err().to_string();
            assert_eq!(gap, "rollout p2.r0: delta starts at token 4, but 3 tokens are there");
            ledger.sync().unwrap();
        }
    }
    let stored = deltas(&read(directory.path()).unwrap());
    assert_eq!(stored.iter().map(|(_, start)| *start).collect::<Vec<_>>(), [0, 2, 3]);
}

#[test]
fn segments_follow_each_other_and_lost_indexes_are_made_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::resume(directory.path(), 400).unwrap();
    let mut expected = records();
    expected.iter().for_each(|record| ledger.append(record).unwrap());
    for index in 1..20 {
        ledger.append_delta(&delta(index)).unwrap();
        expected.push(Record::Delta(DeltaRecord::new(&delta(index), 0)));
    }
    ledger.sync().unwrap();
    assert_eq!(read(directory.path()).unwrap(), expected);
    let number: u64 = ledger.path().file_stem().unwrap().to_str().unwrap().parse().unwrap();
    assert!(number > 3, "{number} segments");
    drop(ledger);
    for closed in 0..number {
        let index = directory.path().join(format!("{closed:06}.index"));
        let whole = std::fs::read(&index).unwrap();
        for at in (0..whole.len()).step_by(7) {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            std::fs::write(&index, damaged).unwrap();
            drop(Ledger::resume(directory.path(), 400).unwrap());
            assert_eq!(std::fs::read(&index).unwrap(), whole, "byte {at} of the index of segment {closed}");
        }
        std::fs::remove_file(&index).unwrap();
    }
    let mut ledger = Ledger::resume(directory.path(), 400).unwrap();
    (1..20).for_each(|index| ledger.append_delta(&delta(index)).unwrap());
    ledger.sync().unwrap();
    assert_eq!(read(directory.path()).unwrap(), expected, "every retry was known");
}

#[test]
fn a_reader_follows_a_ledger_that_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::resume(directory.path(), 300).unwrap();
    let mut reader = Records::of(directory.path()).unwrap();
    assert!(reader.next().is_none());
    for record in records() {
        ledger.append(&record).unwrap();
        assert!(reader.next().is_none(), "not synced yet");
        ledger.sync().unwrap();
        assert_eq!(reader.next().unwrap().unwrap(), record);
        assert!(reader.next().is_none());
    }
    ledger.append_delta(&delta(1)).unwrap();
    ledger.sync().unwrap();
    drop(ledger);
    // Half a frame is not there yet; the other half makes it whole.
    let path = directory.path().join("000099.ledger");
    let last = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let last = last.filter(|path| path.extension().is_some_and(|kind| kind == "ledger")).max().unwrap();
    assert_ne!(last, path);
    let whole = std::fs::read(&last).unwrap();
    std::fs::write(&last, &whole[..whole.len() - 5]).unwrap();
    assert!(reader.next().is_none());
    std::fs::write(&last, &whole).unwrap();
    assert_eq!(deltas(&[reader.next().unwrap().unwrap()]), [(RolloutId { plan: 2, index: 1 }, 0)]);
}

#[test]
fn only_whole_segments_of_consumed_plans_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::resume(directory.path(), 500).unwrap();
    let consumed = |plan| {
        let (before, after) = (version(), version().next());
        Record::Consumed { plan, rollouts: vec![], before, after }
    };
    let of = |plan, index| Delta { rollout: RolloutId { plan, index }, ..delta(0) };
    for plan in 0..6 {
        (0..4).for_each(|index| ledger.append_delta(&of(plan, index)).unwrap());
        if plan != 3 {
            ledger.append(&consumed(plan)).unwrap();
        }
    }
    ledger.sync().unwrap();
    assert_eq!(ledger.retire(0).unwrap(), Vec::<PathBuf>::new());
    let removed = ledger.retire(100).unwrap();
    assert!(!removed.is_empty() && removed.iter().all(|path| !path.exists()));
    let kept = read(directory.path()).unwrap();
    assert!(matches!(kept[0], Record::Profile(_)), "deltas still find their profile");
    let plans = |records: &[Record]| {
        let ids: std::collections::BTreeSet<u64> = deltas(records).iter().map(|(id, _)| id.plan).collect();
        ids.into_iter().collect::<Vec<_>>()
    };
    let left = plans(&kept);
    assert!(left.contains(&3) && left.contains(&5) && !left.contains(&0), "{left:?}");
    assert_eq!(deltas(&kept).len(), 4 * left.len(), "no plan is left in part");
    drop(ledger);
    let mut ledger = Ledger::resume(directory.path(), 500).unwrap();
    assert_eq!(read(directory.path()).unwrap(), kept);
    assert!(matches!(ledger.append_delta(&of(0, 0)), Err(LedgerError::Retired(_))));
    ledger.append(&consumed(3)).unwrap();
    ledger.sync().unwrap();
    assert!(!ledger.retire(4).unwrap().is_empty());
    assert!(!plans(&read(directory.path()).unwrap()).contains(&3));
}

#[test]
fn a_decision_and_its_effect_are_records_of_number_17() {
    use crate::resync::ResyncEvent;
    use lockstep_core::dlc::{EssReport, Forecast, Inputs, Policy, PolicyDecision, Reason, forecast::PastError};
    let ess = EssReport { token: 0.9, sequence: 0.4, horizon: 0.45, horizon_tokens: 24, sequences: 8, tokens: 64 };
    let past = Some(PastError { gaussian: 2.5, tail_aware: 1.0, forecasts: 3 });
    let forecast = Forecast { gaussian: Some(4.0), tail_aware: None, past };
    let inputs = Inputs { updates: 7, ess, null: Some(ess), forecast };
    let decided = |decision| ResyncEvent::Decided { step: 7, decision, inputs, policy: Policy::default() };
    let decisions = [
        PolicyDecision::Resync(Reason::Ess),
        PolicyDecision::Resync(Reason::Interval),
        PolicyDecision::Resync(Reason::Forecast),
        PolicyDecision::Held { updates_left: 2 },
        PolicyDecision::Refused { null_ess: 0.7 },
    ];
    let effect = ResyncEvent::Effect { step: 8, decided_at: 7, before: ess, after: ess };
    let events: Vec<Record> = decisions.map(decided).into_iter().chain([effect]).map(Record::Synchronisation).collect();
    let directory = tempfile::tempdir().unwrap();
    let (mut ledger, _) = Ledger::open(directory.path()).unwrap();
    events.iter().for_each(|event| ledger.append(event).unwrap());
    ledger.sync().unwrap();
    let bytes = std::fs::read(ledger.path()).unwrap();
    drop(ledger);
    assert_eq!(read(directory.path()).unwrap(), events);
    let numbers: Vec<u32> = frames_of(&bytes)[1..]
        .iter()
        .map(|&at| u32::from_le_bytes(frame::read(&bytes[at..]).unwrap().payload[..4].try_into().unwrap()))
        .collect();
    assert_eq!(numbers, vec![17; events.len()], "the number of a kind is part of the format");
}
