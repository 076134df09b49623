//! Torn tails are cut; everything else that is wrong is named and left as it is.

use super::*;

#[test]
fn every_torn_tail_is_cut_and_nothing_before_it() {
    let (directory, path, expected) = written();
    let whole = std::fs::read(&path).unwrap();
    let last = *frames_of(&whole).last().unwrap();
    for length in last + 1..whole.len() {
        for filled in [0, 4, 64] {
            let mut torn = whole[..length].to_vec();
            torn.resize(length + filled, 0);
            std::fs::write(&path, &torn).unwrap();
            let (_, found) = Ledger::open(directory.path()).unwrap();
            assert_eq!(found, expected[..expected.len() - 1], "torn at byte {length}, then {filled} zeros");
            assert_eq!(std::fs::metadata(&path).unwrap().len(), last as u64);
        }
    }
}

#[test]
fn every_flipped_bit_is_named_and_nothing_is_cut() {
    let (directory, path, _) = written();
    let whole = std::fs::read(&path).unwrap();
    let frames = frames_of(&whole);
    for bit in 0..whole.len() * 8 {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, &damaged).unwrap();
        let begins = *frames.iter().rfind(|&&frame| frame <= bit / 8).unwrap() as u64;
        let opened = Ledger::open(directory.path()).map(|_| ());
        for error in [opened, read(directory.path()).map(|_| ())] {
            let named = matches!(&error, Err(LedgerError::Damaged { offset, .. }) if *offset == begins);
            assert!(named, "bit {bit} of the frame at {begins}: {error:?}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), damaged, "a damaged ledger is left as it is");
    }
}

#[test]
fn damage_is_named_with_file_offset_and_rollout() {
    let (directory, path, _) = written();
    let mut bytes = std::fs::read(&path).unwrap();
    let frames = frames_of(&bytes);
    bytes[frames[4] + 12] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let place = format!("000000.ledger is damaged at byte {}, after a delta of rollout p2.r0 from token 0", frames[4]);
    for error in [read(directory.path()).unwrap_err(), Ledger::open(directory.path()).unwrap_err()] {
        assert!(error.to_string().contains(&place), "{error}");
    }
}

/// A recovery that cuts at the first bad frame loses what was acknowledged behind it: this is what the rule is for.
#[test]
fn cutting_in_the_middle_would_lose_what_was_acknowledged() {
    let (directory, path, expected) = written();
    let mut bytes = std::fs::read(&path).unwrap();
    let frames = frames_of(&bytes);
    bytes[frames[4] + 12] ^= 1;
    bytes.truncate(frames[4]);
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(read(directory.path()).unwrap(), expected[..3], "the twin sees no fault and has lost four records");
}

#[test]
fn a_torn_tail_of_a_closed_segment_is_damage() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::resume(directory.path(), 1).unwrap();
    records().iter().for_each(|record| ledger.append(record).unwrap());
    ledger.sync().unwrap();
    drop(ledger);
    let path = directory.path().join("000001.ledger");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let errors = [Ledger::resume(directory.path(), 1).map(|_| ()), read(directory.path()).map(|_| ())];
    for error in errors.map(Result::unwrap_err) {
        assert!(error.to_string().contains("000001.ledger is damaged at byte"), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
    let errors = [Ledger::resume(directory.path(), 1).map(|_| ()), read(directory.path()).map(|_| ())];
    for error in errors.map(Result::unwrap_err) {
        assert!(matches!(&error, LedgerError::Missing(missing) if *missing == path), "{error}");
    }
}

#[test]
fn a_frame_of_a_later_version_is_never_cut() {
    let (directory, path, _) = written();
    let mut bytes = std::fs::read(&path).unwrap();
    let last = *frames_of(&bytes).last().unwrap();
    bytes[last + 4] = FORMAT as u8 + 1;
    let end = bytes.len() - 4;
    let checksum = crc32fast::hash(&bytes[last + 4..end]);
    bytes[end..].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let error = Ledger::open(directory.path()).unwrap_err().to_string();
    assert!(error.ends_with("format version 4 is not one of 1..=3"), "{error}");
}

#[test]
fn a_record_that_fits_no_frame_is_refused_and_the_ledger_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let (mut ledger, _) = Ledger::open(directory.path()).unwrap();
    let Record::PlanOpened { plan, mut requests } = records().remove(0) else { panic!("not a plan") };
    requests[0].prompt = vec![TokenId(1); MAX_PAYLOAD / 4];
    let error = ledger.append(&Record::PlanOpened { plan, requests }).unwrap_err();
    assert!(matches!(error, LedgerError::TooLarge(_)), "{error}");
    ledger.append(&Record::PlanSealed { plan }).unwrap();
    ledger.sync().unwrap();
    assert_eq!(read(directory.path()).unwrap(), [Record::PlanSealed { plan }]);
}
