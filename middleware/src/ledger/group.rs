//! Group commit: many writers, one thread that appends for all who wait and syncs once.

use super::{Ledger, LedgerError, Record};
use lockstep_core::Delta;
use std::thread;
use tokio::sync::{mpsc, oneshot};

/// Commits that may wait before the next one waits to be sent.
const WAITING: usize = 1024;

/// Bytes, about, that one sync makes durable at most.
const BYTES_A_SYNC: usize = 8 << 20;

/// What a commit appends.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    /// A record.
    Record(Record),
    /// Tokens as they arrived.
    Delta(Delta),
}

impl Entry {
    /// Bytes, about, of its frame.
    fn size(&self) -> usize {
        match self {
            Self::Record(_) => 1024,
            Self::Delta(delta) => 256 + 8 * delta.behavior.len() + 8 * delta.behavior.columns().ids.len(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Commit {
    entries: Vec<Entry>,
    done: oneshot::Sender<Result<(), LedgerError>>,
}

/// A ledger that many write to at once. Clones write to the same.
#[derive(Debug, Clone)]
pub struct SharedLedger {
    commits: mpsc::Sender<Commit>,
    path: std::path::PathBuf,
}

impl SharedLedger {
    /// Gives the ledger to a thread of its own. The thread ends, and gives it back, when the last clone is dropped.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn start(ledger: Ledger) -> Result<(Self, thread::JoinHandle<Ledger>), LedgerError> {
        let path = ledger.path().to_owned();
        let (shared, commits) = Self::channel(path.clone());
        let thread = thread::Builder::new().name("ledger".into()).spawn(move || serve(ledger, commits));
        Ok((shared, thread.map_err(super::io_error("start the writer of", &path))?))
    }

    pub(super) fn channel(path: std::path::PathBuf) -> (Self, mpsc::Receiver<Commit>) {
        let (commits, receiver) = mpsc::channel(WAITING);
        (Self { commits, path }, receiver)
    }

    /// Appends in order and waits until the disk has it: only then may it be acknowledged. Whoever waits at the same time
    /// shares the sync.
    ///
    /// Safe to repeat after a lost acknowledgement: deltas that are there already are not stored again.
    ///
    /// # Errors
    /// An entry that was refused: those before it are kept, those behind it are not. A disk that is full or broken: nothing
    /// of what waited is acknowledged, and nothing later.
    pub async fn commit(&self, entries: Vec<Entry>) -> Result<(), LedgerError> {
        let (done, synced) = oneshot::channel();
        let stopped = || LedgerError::Stopped(self.path.clone());
        self.commits.send(Commit { entries, done }).await.map_err(|_| stopped())?;
        synced.await.map_err(|_| stopped())?
    }
}

/// Serves commits until nobody can send one any more.
pub(super) fn serve(mut ledger: Ledger, mut commits: mpsc::Receiver<Commit>) -> Ledger {
    while let Some(first) = commits.blocking_recv() {
        let mut round = vec![append(&mut ledger, first)];
        while round.iter().map(|taken| taken.size).sum::<usize>() < BYTES_A_SYNC
            && let Ok(commit) = commits.try_recv()
        {
            round.push(append(&mut ledger, commit));
        }
        let synced = ledger.sync();
        for Taken { appended, done, .. } in round {
            let answer = match (&synced, appended) {
                (_, Err(refused)) => Err(refused),
                (Err(error), Ok(())) => Err(error.again(ledger.path())),
                (Ok(()), Ok(())) => Ok(()),
            };
            // Who no longer waits will ask again.
            let _ = done.send(answer);
        }
    }
    ledger
}

struct Taken {
    appended: Result<(), LedgerError>,
    size: usize,
    done: oneshot::Sender<Result<(), LedgerError>>,
}

fn append(ledger: &mut Ledger, commit: Commit) -> Taken {
    let size = commit.entries.iter().map(Entry::size).sum();
    let appended = commit.entries.iter().try_for_each(|entry| match entry {
        Entry::Record(record) => ledger.append(record),
        Entry::Delta(delta) => ledger.append_delta(delta),
    });
    Taken { appended, size, done: commit.done }
}
