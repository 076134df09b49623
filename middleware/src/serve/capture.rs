//! Everything that passes, into the ledger: one thread writes, and one sync makes durable what all requests have waiting.
//!
//! Knows nothing of HTTP. Without a ledger it acknowledges at once and keeps nothing.

use crate::ledger::{Ledger, LedgerError, Record};
use lockstep_core::Delta;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Instant,
};
use tokio::sync::{mpsc, oneshot};

/// Most entries that wait for the disk; then those who append wait too.
const WAITING: usize = 8192;
/// Most entries that one sync makes durable.
const A_SYNC: usize = 4096;

/// Why nothing is acknowledged.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CaptureError {
    /// The ledger said no.
    #[error("the ledger: {0}")]
    Ledger(Arc<LedgerError>),
    /// Its thread is gone, after an error that was told to another request.
    #[error("the ledger stopped acknowledging after an earlier error")]
    Stopped,
}

type Acknowledge = oneshot::Sender<Result<(), CaptureError>>;

enum What {
    Record(Box<Record>),
    Delta(Arc<Delta>),
}

struct Entry {
    what: What,
    acknowledge: Option<Acknowledge>,
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

/// The way into the ledger. Cheap to clone; the file is closed when the last one is gone.
#[derive(Debug, Clone)]
pub struct Capture {
    sender: Option<mpsc::Sender<Entry>>,
    written: Arc<Written>,
}

impl Capture {
    /// Keeps nothing.
    pub fn off() -> Self {
        Self { sender: None, written: Arc::default() }
    }

    /// Gives the ledger a thread of its own. The handle ends when every `Capture` is gone and the rest is written.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(ledger: Ledger) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (sender, receiver) = mpsc::channel(WAITING);
        let written = Arc::<Written>::default();
        let counts = written.clone();
        let thread = std::thread::Builder::new().name("lockstep-ledger".to_owned());
        let handle = thread.spawn(move || write(ledger, receiver, &counts))?;
        Ok((Self { sender: Some(sender), written }, handle))
    }

    /// Whether anything is kept.
    pub fn is_on(&self) -> bool {
        self.sender.is_some()
    }

    /// What has been written so far.
    pub fn written(&self) -> &Written {
        &self.written
    }

    /// Appends a record; a later entry that is durable makes it durable too.
    ///
    /// # Errors
    /// A ledger that has stopped.
    pub async fn record(&self, record: Record) -> Result<(), CaptureError> {
        self.send(What::Record(Box::new(record)), None).await
    }

    /// Appends a record and waits until the disk has it.
    ///
    /// # Errors
    /// A disk that is full or broken, a ledger that has stopped.
    pub async fn record_durably(&self, record: Record) -> Result<(), CaptureError> {
        self.durably(What::Record(Box::new(record))).await
    }

    /// Appends a delta.
    ///
    /// # Errors
    /// A ledger that has stopped.
    pub async fn delta(&self, delta: Arc<Delta>) -> Result<(), CaptureError> {
        self.send(What::Delta(delta), None).await
    }

    /// Appends a delta and waits until the disk has it and everything before it.
    ///
    /// # Errors
    /// A disk that is full or broken, a ledger that has stopped.
    pub async fn delta_durably(&self, delta: Arc<Delta>) -> Result<(), CaptureError> {
        self.durably(What::Delta(delta)).await
    }

    async fn durably(&self, what: What) -> Result<(), CaptureError> {
        if self.sender.is_none() {
            return Ok(());
        }
        let (acknowledge, acknowledged) = oneshot::channel();
        self.send(what, Some(acknowledge)).await?;
        acknowledged.await.unwrap_or(Err(CaptureError::Stopped))
    }

    async fn send(&self, what: What, acknowledge: Option<Acknowledge>) -> Result<(), CaptureError> {
        let Some(sender) = &self.sender else { return Ok(()) };
        sender.send(Entry { what, acknowledge }).await.map_err(|_| CaptureError::Stopped)
    }
}

/// Appends whatever waits, syncs once, acknowledges all of it. Ends at the first error: nothing later is acknowledged.
fn write(mut ledger: Ledger, mut receiver: mpsc::Receiver<Entry>, written: &Written) {
    while let Some(first) = receiver.blocking_recv() {
        let began = Instant::now();
        let mut waiting = Vec::new();
        let mut appended = append(&mut ledger, first, &mut waiting);
        let mut entries = 1;
        while appended.is_ok() && entries < A_SYNC {
            let Ok(next) = receiver.try_recv() else { break };
            appended = append(&mut ledger, next, &mut waiting);
            entries += 1;
        }
        let outcome = appended.and_then(|()| ledger.sync()).map_err(|error| CaptureError::Ledger(Arc::new(error)));
        written.entries.fetch_add(entries as u64, Ordering::Relaxed);
        written.syncs.fetch_add(1, Ordering::Relaxed);
        written.microseconds.fetch_add(began.elapsed().as_micros() as u64, Ordering::Relaxed);
        for acknowledge in waiting {
            let _ = acknowledge.send(outcome.clone());
        }
        if let Err(error) = outcome {
            tracing::error!(%error, "nothing is acknowledged any more");
            return;
        }
    }
}

fn append(ledger: &mut Ledger, entry: Entry, waiting: &mut Vec<Acknowledge>) -> Result<(), LedgerError> {
    waiting.extend(entry.acknowledge);
    match &entry.what {
        What::Record(record) => ledger.append(record),
        What::Delta(delta) => ledger.append_delta(delta),
    }
}
