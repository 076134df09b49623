//! Group commit, and what a disk that is full means for those who wait.

use super::{simulated::SimulatedDisk, *};
use crate::ledger::group::{Written, serve};

fn entries(index: u32) -> Vec<Entry> {
    vec![Entry::Delta(Arc::new(delta(index)))]
}

/// So many commits of one delta that are all sent before the writer begins.
async fn committed(ledger: Ledger, count: u32) -> (Ledger, Vec<Result<(), LedgerError>>) {
    all_committed(ledger, (0..count).map(entries).collect()).await
}

/// These commits, all sent before the writer begins.
async fn all_committed(ledger: Ledger, sent: Vec<Vec<Entry>>) -> (Ledger, Vec<Result<(), LedgerError>>) {
    let (shared, commits) = SharedLedger::channel("here".into());
    let count = sent.len();
    let waiting: Vec<_> = sent
        .into_iter()
        .map(|entries| {
            let shared = shared.clone();
            tokio::spawn(async move { shared.commit(entries).await })
        })
        .collect();
    drop(shared);
    while commits.len() < count {
        tokio::task::yield_now().await;
    }
    let ledger = tokio::task::spawn_blocking(move || serve(ledger, commits, &Written::default())).await.unwrap();
    let mut answers = Vec::new();
    for waiting in waiting {
        answers.push(waiting.await.unwrap());
    }
    (ledger, answers)
}

#[tokio::test]
async fn all_who_wait_share_one_sync() {
    let disk = SimulatedDisk::default();
    let ledger = Ledger::on(Arc::new(disk.clone()), SEGMENT_BYTES).unwrap();
    let before = disk.syncs();
    let (ledger, answers) = committed(ledger, 100).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(disk.syncs() - before, 1);
    drop(ledger);
    let records: Vec<Record> = Records::on(Arc::new(disk)).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(records.len(), 101, "a profile and a delta each");
}

/// More than one round's bytes.
fn many() -> Vec<Vec<Entry>> {
    (0..200).map(|commit| (0..80).flat_map(|place| entries(commit * 80 + place)).collect()).collect()
}

#[tokio::test]
async fn what_exceeds_a_round_is_written_in_several_and_stored_once() {
    let disk = SimulatedDisk::default();
    let ledger = Ledger::on(Arc::new(disk.clone()), SEGMENT_BYTES).unwrap();
    let before = disk.syncs();
    let (ledger, answers) = all_committed(ledger, many()).await;
    assert!(answers.iter().all(Result::is_ok));
    assert!(disk.syncs() - before > 1, "{} syncs", disk.syncs() - before);
    drop(ledger);
    let records: Vec<Record> = Records::on(Arc::new(disk)).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(records.len(), 1 + 200 * 80, "a profile, and each delta once");
}

#[tokio::test]
async fn a_disk_that_fills_in_the_second_round_acknowledges_the_first_alone() {
    let frame = encode_frame(&Record::Delta(DeltaRecord::new(&delta(0), 0))).unwrap().len();
    let disk = SimulatedDisk::full_after(frame * 200 * 80 * 6 / 10);
    let ledger = Ledger::on(Arc::new(disk.clone()), SEGMENT_BYTES).unwrap();
    let (ledger, answers) = all_committed(ledger, many()).await;
    let acknowledged = answers.iter().take_while(|answer| answer.is_ok()).count();
    assert!((1..200).contains(&acknowledged), "{acknowledged} commits");
    assert!(answers[acknowledged..].iter().all(Result::is_err));
    drop(ledger);
    let stored = Records::on(Arc::new(disk)).unwrap().map_while(Result::ok).count();
    assert!(stored > acknowledged * 80, "{stored} records, {acknowledged} commits of 80");
}

#[tokio::test]
async fn a_full_disk_is_told_to_all_who_wait_and_to_all_who_come_later() {
    let disk = SimulatedDisk::full_after(4096);
    let ledger = Ledger::on(Arc::new(disk.clone()), SEGMENT_BYTES).unwrap();
    let (mut ledger, answers) = committed(ledger, 100).await;
    for answer in answers {
        let error = answer.unwrap_err();
        assert!(matches!(error, LedgerError::Io { action: "write", .. }), "{error}");
    }
    let later = [ledger.append(&Record::PlanSealed { plan: 2 }), ledger.sync()];
    assert!(later.iter().all(|later| matches!(later, Err(LedgerError::Stopped(_)))), "{later:?}");
}

#[tokio::test]
async fn one_refused_commit_does_not_touch_the_others() {
    let ledger = Ledger::on(Arc::new(SimulatedDisk::default()), SEGMENT_BYTES).unwrap();
    let (shared, thread) = SharedLedger::start(ledger).unwrap();
    let mut gap = delta(1);
    gap.start = 5;
    let both = tokio::join!(shared.commit(entries(0)), shared.commit(vec![Entry::Delta(Arc::new(gap))]));
    assert!(both.0.is_ok());
    assert!(matches!(both.1, Err(LedgerError::Gap { expected: 0, found: 5, .. })), "{:?}", both.1);
    drop(shared);
    thread.join().unwrap();
}

#[tokio::test]
async fn what_nobody_waits_for_is_not_lost_in_silence() {
    let ledger = Ledger::on(Arc::new(SimulatedDisk::default()), SEGMENT_BYTES).unwrap();
    let (shared, thread) = SharedLedger::start(ledger).unwrap();
    shared.append(entries(0)).await.unwrap();
    shared.commit(vec![]).await.unwrap();
    let mut gap = delta(1);
    gap.start = 5;
    shared.append(vec![Entry::Delta(Arc::new(gap))]).await.unwrap();
    assert!(matches!(shared.commit(entries(2)).await, Err(LedgerError::Stopped(_))));
    drop(shared);
    thread.join().unwrap();
}
