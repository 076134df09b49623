//! A disk that forgets what was not synced, tears the last write, and can be full.

use super::disk::{Disk, DiskFile};
use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
};

/// One that is shared by its open files.
#[derive(Debug, Clone, Default)]
pub(crate) struct SimulatedDisk(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    files: Vec<Content>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    /// Changes so far, and after how many of them the machine stops.
    changes: usize,
    stops_after: Option<usize>,
    /// Bytes there is room for.
    room: Option<usize>,
    syncs: usize,
    /// Says that it has synced, and has not.
    lies: bool,
}

#[derive(Debug, Default, Clone)]
struct Content {
    now: Vec<u8>,
    durable: Vec<u8>,
}

/// What is left when the machine stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Crash {
    /// The process alone: what was written is there.
    Process,
    /// The machine: of what was not synced there is a beginning, and perhaps room that was never filled.
    Machine { kept: u8, zeros: bool, names: bool },
}

impl SimulatedDisk {
    pub(crate) fn stopping_after(changes: usize) -> Self {
        let disk = Self::default();
        disk.state().stops_after = Some(changes);
        disk
    }

    pub(crate) fn full_after(bytes: usize) -> Self {
        let disk = Self::default();
        disk.state().room = Some(bytes);
        disk
    }

    pub(crate) fn lying(changes: usize) -> Self {
        let disk = Self::stopping_after(changes);
        disk.state().lies = true;
        disk
    }

    pub(crate) fn changes(&self) -> usize {
        self.state().changes
    }

    pub(crate) fn syncs(&self) -> usize {
        self.state().syncs
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The same disk, unsynced as it is, for the next process.
    pub(crate) fn restarted(&self) -> Self {
        self.state().stops_after = None;
        self.clone()
    }

    /// What the next start finds.
    pub(crate) fn after(&self, crash: Crash) -> Self {
        let state = self.state();
        let names = match crash {
            Crash::Machine { names: false, .. } => state.durable_names.clone(),
            _ => state.names.clone(),
        };
        let files: Vec<Content> = state.files.iter().map(|content| content.after(crash)).collect();
        let next = State { files, durable_names: names.clone(), names, ..State::default() };
        Self(Arc::new(Mutex::new(next)))
    }
}

impl Content {
    fn after(&self, crash: Crash) -> Self {
        let now = match crash {
            Crash::Process => self.now.clone(),
            Crash::Machine { .. } if !self.now.starts_with(&self.durable) => self.durable.clone(),
            Crash::Machine { kept, zeros, .. } => {
                let unsynced = self.now.len() - self.durable.len();
                let kept = self.durable.len() + unsynced * usize::from(kept) / 255;
                let mut now = self.now[..kept].to_vec();
                if zeros && self.now.len() - kept >= 4 {
                    now.resize(self.now.len(), 0);
                }
                now
            }
        };
        Self { durable: now.clone(), now }
    }
}

impl State {
    /// Counts a change; the one at which the machine stops is not made.
    fn change(&mut self) -> io::Result<()> {
        if self.stops_after.is_some_and(|limit| self.changes >= limit) {
            return Err(io::Error::other("the machine has stopped"));
        }
        self.changes += 1;
        Ok(())
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for SimulatedDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.state().names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let number = self.state().find(name)?;
        Ok(Box::new(SimulatedFile { disk: self.clone(), number }))
    }

    fn open_to_append(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        let number = match state.find(name) {
            Ok(number) => number,
            Err(_) => {
                state.change()?;
                let number = state.files.len();
                state.files.push(Content::default());
                state.names.insert(name.to_owned(), number);
                number
            }
        };
        Ok(Box::new(SimulatedFile { disk: self.clone(), number }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.change()?;
        let number = state.find(from)?;
        state.names.remove(from);
        state.names.insert(to.to_owned(), number);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.change()?;
        state.names.remove(name).map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state();
        state.change()?;
        if !state.lies {
            state.durable_names = state.names.clone();
        }
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(name)
    }
}

#[derive(Debug)]
struct SimulatedFile {
    disk: SimulatedDisk,
    number: usize,
}

impl DiskFile for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.state().files[self.number].now.len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let state = self.disk.state();
        let rest = state.files[self.number].now.get(offset as usize..).unwrap_or_default();
        let read = rest.len().min(buffer.len());
        buffer[..read].copy_from_slice(&rest[..read]);
        Ok(read)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        let stopped = state.change();
        let room = state.room.unwrap_or(usize::MAX);
        let fits = bytes.len().min(room);
        // The write at which the machine stops is torn in the middle.
        let written = if stopped.is_err() { fits / 2 } else { fits };
        state.room = state.room.map(|room| room - written);
        state.files[self.number].now.extend(&bytes[..written]);
        stopped?;
        if fits < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.change()?;
        state.files[self.number].now.truncate(length as usize);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.change()?;
        state.syncs += 1;
        if !state.lies {
            let now = state.files[self.number].now.clone();
            state.files[self.number].durable = now;
        }
        Ok(())
    }
}
