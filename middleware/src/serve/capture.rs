//! Everything that passes, into the ledger. Knows nothing of HTTP; without a ledger it acknowledges at once and keeps nothing.

use crate::ledger::{Entry, Ledger, LedgerError, Record, SharedLedger, Written};
use lockstep_core::Delta;
use std::{sync::Arc, thread::JoinHandle};

/// Why nothing is acknowledged.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the ledger: {0}")]
pub struct CaptureError(Arc<LedgerError>);

impl From<LedgerError> for CaptureError {
    fn from(error: LedgerError) -> Self {
        Self(Arc::new(error))
    }
}

/// The way into the ledger. Cheap to clone; the file is closed when the last one is gone.
#[derive(Debug, Clone)]
pub struct Capture {
    ledger: Option<SharedLedger>,
    written: Arc<Written>,
}

impl Capture {
    /// Keeps nothing.
    pub fn off() -> Self {
        Self { ledger: None, written: Arc::default() }
    }

    /// Gives the ledger a thread of its own. The handle ends when every `Capture` is gone and the rest is written.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(ledger: Ledger) -> Result<(Self, JoinHandle<Ledger>), LedgerError> {
        let (ledger, handle) = SharedLedger::start(ledger)?;
        let written = ledger.written().clone();
        Ok((Self { ledger: Some(ledger), written }, handle))
    }

    /// Whether anything is kept.
    pub fn is_on(&self) -> bool {
        self.ledger.is_some()
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
        self.append(Entry::Record(Box::new(record))).await
    }

    /// Appends a record and waits until the disk has it.
    ///
    /// # Errors
    /// A disk that is full or broken, a ledger that has stopped.
    pub async fn record_durably(&self, record: Record) -> Result<(), CaptureError> {
        self.commit(vec![Entry::Record(Box::new(record))]).await
    }

    /// Appends a delta.
    ///
    /// # Errors
    /// A ledger that has stopped.
    pub async fn delta(&self, delta: Arc<Delta>) -> Result<(), CaptureError> {
        self.append(Entry::Delta(delta)).await
    }

    /// Appends a delta and waits until the disk has it and everything before it.
    ///
    /// # Errors
    /// A disk that is full or broken, a ledger that has stopped.
    pub async fn delta_durably(&self, delta: Arc<Delta>) -> Result<(), CaptureError> {
        self.commit(vec![Entry::Delta(delta)]).await
    }

    /// Waits until the disk has everything that was sent before.
    ///
    /// # Errors
    /// A disk that is full or broken, a ledger that has stopped.
    pub async fn settled(&self) -> Result<(), CaptureError> {
        self.commit(Vec::new()).await
    }

    async fn append(&self, entry: Entry) -> Result<(), CaptureError> {
        let Some(ledger) = &self.ledger else { return Ok(()) };
        Ok(ledger.append(vec![entry]).await?)
    }

    async fn commit(&self, entries: Vec<Entry>) -> Result<(), CaptureError> {
        let Some(ledger) = &self.ledger else { return Ok(()) };
        Ok(ledger.commit(entries).await?)
    }
}
