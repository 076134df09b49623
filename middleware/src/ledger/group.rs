//! Group commit: many writers, one thread that appends for all who wait and syncs once.

use super::{Ledger, LedgerError, Record};
use lockstep_core::Delta;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};
use tokio::sync::{mpsc, oneshot};

/// Commits that may wait before the next one waits to be sent.
const WAITING: usize = 8192;

/// Bytes, about, that one sync makes durable at most.
const BYTES_A_SYNC: usize = 2 << 20;

/// What a commit appends.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    /// A record.
    Record(Box<Record>),
    /// Tokens as they arrived.
    Delta(Arc<Delta>),
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

type Done = oneshot::Sender<Result<(), LedgerError>>;

#[derive(Debug)]
pub(super) struct Commit {
    entries: Vec<Entry>,
    /// Who waits for the disk; nobody where a later commit is waited for.
    done: Option<Done>,
}

/// What the ledger's thread has done.
#[derive(Debug, Default)]
pub struct Written {
    /// Entries appended.
    pub entries: AtomicU64,
    /// Syncs of the file.
    pub syncs: AtomicU64,
    /// Microseconds spent appending and syncing.
    pub microseconds: AtomicU64,
}

/// A ledger that many write to at once. Clones write to the same.
#[derive(Debug, Clone)]
pub struct SharedLedger {
    commits: mpsc::Sender<Commit>,
    path: std::path::PathBuf,
    written: Arc<Written>,
}

impl SharedLedger {
    /// Gives the ledger to a thread of its own. The thread ends, and gives it back, when the last clone is dropped.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn start(ledger: Ledger) -> Result<(Self, thread::JoinHandle<Ledger>), LedgerError> {
        let path = ledger.path().to_owned();
        let (shared, commits) = Self::channel(path.clone());
        let written = shared.written.clone();
        let thread = thread::Builder::new().name("ledger".into()).spawn(move || serve(ledger, commits, &written));
        Ok((shared, thread.map_err(super::io_error("start the writer of", &path))?))
    }

    pub(super) fn channel(path: std::path::PathBuf) -> (Self, mpsc::Receiver<Commit>) {
        let (commits, receiver) = mpsc::channel(WAITING);
        (Self { commits, path, written: Arc::default() }, receiver)
    }

    /// What has been written so far.
    pub fn written(&self) -> &Arc<Written> {
        &self.written
    }

    /// Appends in order and waits until the disk has it and everything sent before: only then may it be acknowledged. Whoever
    /// waits at the same time shares the sync.
    ///
    /// Safe to repeat after a lost acknowledgement: deltas that are there already are not stored again.
    ///
    /// # Errors
    /// An entry that was refused: those before it are kept, those behind it are not. A disk that is full or broken: nothing
    /// of what waited is acknowledged, and nothing later.
    pub async fn commit(&self, entries: Vec<Entry>) -> Result<(), LedgerError> {
        let (done, synced) = oneshot::channel();
        self.send(Commit { entries, done: Some(done) }).await?;
        synced.await.map_err(|_| self.stopped())?
    }

    /// Appends in order; a later [`SharedLedger::commit`] makes it durable too. An entry that is refused stops the ledger, since
    /// nobody waits to be told.
    ///
    /// # Errors
    /// A ledger that has stopped.
    pub async fn append(&self, entries: Vec<Entry>) -> Result<(), LedgerError> {
        self.send(Commit { entries, done: None }).await
    }

    async fn send(&self, commit: Commit) -> Result<(), LedgerError> {
        self.commits.send(commit).await.map_err(|_| self.stopped())
    }

    fn stopped(&self) -> LedgerError {
        LedgerError::Stopped(self.path.clone())
    }
}

/// Serves commits until nobody can send one any more, or the ledger has stopped. While a full round is written, the next one
/// is encoded.
pub(super) fn serve(mut ledger: Ledger, mut commits: mpsc::Receiver<Commit>, written: &Written) -> Ledger {
    while let Some(first) = commits.blocking_recv() {
        let mut round = Round::gather(&mut ledger, first, &mut commits);
        while round.lost.is_none()
            && let Ok(next) = commits.try_recv()
        {
            let begun = ledger.begin_sync();
            let following = Round::gather(&mut ledger, next, &mut commits);
            if !round.end(begun.and_then(|()| ledger.finish_sync()), &ledger, written) {
                return ledger;
            }
            round = following;
        }
        let synced = round.lost.take().map_or_else(|| ledger.sync(), Err);
        if !round.end(synced, &ledger, written) {
            return ledger;
        }
    }
    ledger
}

/// What one sync makes durable.
struct Round {
    began: Instant,
    waiting: Vec<(Result<(), LedgerError>, Done)>,
    entries: usize,
    size: usize,
    /// Why an entry nobody waits for was refused.
    lost: Option<LedgerError>,
}

impl Round {
    /// Appends what waits, up to the bytes of one sync.
    fn gather(ledger: &mut Ledger, first: Commit, commits: &mut mpsc::Receiver<Commit>) -> Self {
        let mut round = Self { began: Instant::now(), waiting: Vec::new(), entries: 0, size: 0, lost: None };
        round.take(ledger, first);
        while round.size < BYTES_A_SYNC
            && round.lost.is_none()
            && let Ok(commit) = commits.try_recv()
        {
            round.take(ledger, commit);
        }
        round
    }

    fn take(&mut self, ledger: &mut Ledger, commit: Commit) {
        self.size += commit.entries.iter().map(Entry::size).sum::<usize>();
        self.entries += commit.entries.len();
        let appended = commit.entries.iter().try_for_each(|entry| match entry {
            Entry::Record(record) => ledger.append(record),
            Entry::Delta(delta) => ledger.append_delta(delta),
        });
        match commit.done {
            Some(done) => self.waiting.push((appended, done)),
            None => self.lost = appended.err(),
        }
    }

    /// Answers those who wait. False when the ledger has stopped.
    fn end(self, synced: Result<(), LedgerError>, ledger: &Ledger, written: &Written) -> bool {
        written.entries.fetch_add(self.entries as u64, Ordering::Relaxed);
        written.syncs.fetch_add(1, Ordering::Relaxed);
        written.microseconds.fetch_add(self.began.elapsed().as_micros() as u64, Ordering::Relaxed);
        for (appended, done) in self.waiting {
            let answer = match &synced {
                Ok(()) => appended,
                Err(error) => appended.and_then(|()| Err(error.again(ledger.path()))),
            };
            // Who no longer waits will ask again.
            let _ = done.send(answer);
        }
        if let Err(error) = &synced {
            tracing::error!(%error, "nothing is acknowledged any more");
        }
        synced.is_ok()
    }
}
