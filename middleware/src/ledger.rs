//! The ledger: what was dispatched, drawn, rewarded and trained on, in the order it happened.
//!
//! A directory with one append-only file, `000000.ledger`, of frames. What [`Ledger::sync`] has returned for survives a crash
//! of the process and of the machine; recovery cuts only a torn tail. The payload of a frame is a [`Record`] in bincode's
//! version-1 format (little-endian, fixed-width integers, u64 lengths, u32 variants). The crate is unmaintained, so it is
//! used in this file alone, and the tests read every frame with another implementation of the same format.

mod frame;
mod record;

pub use frame::{FORMAT, FrameError, MAGIC, MAX_PAYLOAD};
pub use record::{DeltaRecord, Record, ResyncRecord, SentAnswer, SentRecord};

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use lockstep_core::{Delta, SamplerProfile};
use std::{
    fs::{File, OpenOptions},
    io::{self, Seek, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

type Format = Configuration<LittleEndian, Fixint, Limit<MAX_PAYLOAD>>;

fn format() -> Format {
    bincode::config::legacy().with_limit::<MAX_PAYLOAD>()
}

/// A ledger that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The disk said no.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What came back.
        #[source]
        source: io::Error,
    },
    /// A damaged frame with sound ones behind it: not a torn tail, so nothing is cut.
    #[error("{} is damaged at byte {offset}, after {} : {source}", path.display(), after.as_deref().unwrap_or("nothing"))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the frame begins.
        offset: u64,
        /// The last sound record before it.
        after: Option<String>,
        /// What is wrong with it.
        #[source]
        source: FrameError,
    },
    /// A record of more than [`MAX_PAYLOAD`] bytes.
    #[error("a record does not fit a frame of {MAX_PAYLOAD} bytes: {0}")]
    TooLarge(String),
    /// An append after one that failed.
    #[error("the ledger {} stopped acknowledging after an earlier error", .0.display())]
    Stopped(PathBuf),
}

/// An open ledger; the only writer of its directory.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    file: File,
    profiles: Vec<Arc<SamplerProfile>>,
    pending: Vec<u8>,
    stopped: bool,
}

impl Ledger {
    /// Opens the ledger in a directory, creating it where there is none, and cuts a torn tail. Gives what is in it.
    ///
    /// # Errors
    /// A disk that cannot be read or written, a damaged frame that is no torn tail.
    pub fn open(directory: &Path) -> Result<(Self, Vec<Record>), LedgerError> {
        let path = directory.join("000000.ledger");
        let failed = |action| io_error(action, &path);
        std::fs::create_dir_all(directory).map_err(failed("create"))?;
        let open = OpenOptions::new().create(true).read(true).append(true).open(&path);
        let mut file = open.map_err(failed("open"))?;
        let (records, sound) = recover(&path)?;
        file.set_len(sound).map_err(failed("cut the torn tail of"))?;
        file.seek(io::SeekFrom::End(0)).map_err(failed("seek in"))?;
        sync_directory(directory).map_err(failed("sync the directory of"))?;
        let profiles = records.iter().filter_map(Record::profile).cloned().map(Arc::new).collect();
        Ok((Self { path, file, profiles, pending: Vec::new(), stopped: false }, records))
    }

    /// Appends a record; durable once [`Ledger::sync`] has returned.
    ///
    /// # Errors
    /// A record that does not fit a frame, a ledger that has stopped.
    pub fn append(&mut self, record: &Record) -> Result<(), LedgerError> {
        if self.stopped {
            return Err(LedgerError::Stopped(self.path.clone()));
        }
        let payload = bincode::serde::encode_to_vec(record, format());
        let payload = payload.map_err(|error| LedgerError::TooLarge(error.to_string()))?;
        frame::write(&mut self.pending, &payload);
        Ok(())
    }

    /// Appends a delta, and before it its profile when that is new.
    ///
    /// # Errors
    /// As [`Ledger::append`].
    pub fn append_delta(&mut self, delta: &Delta) -> Result<(), LedgerError> {
        let known = self.profiles.iter().position(|profile| *profile == delta.profile);
        let profile = match known {
            Some(index) => index,
            None => {
                self.append(&Record::Profile((*delta.profile).clone()))?;
                self.profiles.push(delta.profile.clone());
                self.profiles.len() - 1
            }
        };
        self.append(&Record::Delta(DeltaRecord::new(delta, profile as u32)))
    }

    /// Writes what was appended and waits until the disk has it: only then may it be acknowledged.
    ///
    /// # Errors
    /// A disk that is full or broken. The ledger then stops: nothing later is acknowledged either.
    pub fn sync(&mut self) -> Result<(), LedgerError> {
        if self.stopped {
            return Err(LedgerError::Stopped(self.path.clone()));
        }
        let written = self.file.write_all(&self.pending).and_then(|()| self.file.sync_data());
        self.pending.clear();
        self.stopped = written.is_err();
        written.map_err(io_error("write", &self.path))
    }

    /// The ledger's file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn io_error<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> LedgerError + use<'a> {
    move |source| LedgerError::Io { action, path: path.to_owned(), source }
}

/// A new file is durable only when its directory is.
fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// The records of a ledger, without touching it; a torn tail is left out.
///
/// # Errors
/// A file that cannot be read, a damaged frame that is no torn tail.
pub fn read(directory: &Path) -> Result<Vec<Record>, LedgerError> {
    recover(&directory.join("000000.ledger")).map(|(records, _)| records)
}

fn recover(path: &Path) -> Result<(Vec<Record>, u64), LedgerError> {
    let bytes = std::fs::read(path).map_err(io_error("read", path))?;
    let (mut records, mut at) = (Vec::<Record>::new(), 0);
    while at < bytes.len() {
        let next = frame::read(&bytes[at..]).and_then(|(payload, size)| decode(payload).map(|record| (record, size)));
        match next {
            Ok((record, size)) => {
                records.push(record);
                at += size;
            }
            Err(_) if !frame::any(&bytes[at + 1..]) => break,
            Err(source) => {
                let after = records.last().map(ToString::to_string);
                return Err(LedgerError::Damaged { path: path.to_owned(), offset: at as u64, after, source });
            }
        }
    }
    Ok((records, at as u64))
}

fn decode(payload: &[u8]) -> Result<Record, FrameError> {
    let unreadable = |error: bincode::error::DecodeError| FrameError::Payload(error.to_string());
    let (record, size) = bincode::serde::decode_from_slice(payload, format()).map_err(unreadable)?;
    if size != payload.len() {
        return Err(FrameError::Payload(format!("{size} of {} bytes are a record", payload.len())));
    }
    Ok(record)
}

#[cfg(test)]
mod tests;
