//! Writes and syncs one buffer on a thread of its own, while the next one is filled.

use super::disk::DiskFile;
use std::{
    io,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::{self, JoinHandle},
};

/// A file, what is to be appended to it, and how that went.
#[derive(Debug)]
pub(super) struct Flush {
    pub(super) file: Box<dyn DiskFile>,
    pub(super) bytes: Vec<u8>,
    pub(super) outcome: io::Result<()>,
}

impl Flush {
    pub(super) fn new(file: Box<dyn DiskFile>, bytes: Vec<u8>) -> Self {
        Self { file, bytes, outcome: Ok(()) }
    }

    /// Appends the bytes and waits until the disk has them.
    pub(super) fn run(mut self) -> Self {
        self.outcome = self.file.append(&self.bytes).and_then(|()| self.file.sync());
        self
    }
}

/// The thread; it takes one flush at a time. Dropping it waits for the one that is under way.
#[derive(Debug)]
pub(super) struct Flusher {
    jobs: Option<SyncSender<Flush>>,
    done: Receiver<Flush>,
    thread: Option<JoinHandle<()>>,
}

impl Flusher {
    pub(super) fn start() -> io::Result<Self> {
        let (jobs, waiting) = sync_channel::<Flush>(1);
        let (finished, done) = sync_channel(1);
        let thread = thread::Builder::new().name("ledger-flush".into()).spawn(move || {
            for flush in waiting {
                if finished.send(flush.run()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { jobs: Some(jobs), done, thread: Some(thread) })
    }

    /// Hands a flush to the thread; gives it back when the thread is gone.
    pub(super) fn begin(&self, flush: Flush) -> Result<(), Flush> {
        match &self.jobs {
            Some(jobs) => jobs.send(flush).map_err(|back| back.0),
            None => Err(flush),
        }
    }

    /// Waits for the flush that was begun; none when the thread died with it.
    pub(super) fn finish(&self) -> Option<Flush> {
        self.done.recv().ok()
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.jobs = None;
        // A thread that panicked has nothing left to write.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
