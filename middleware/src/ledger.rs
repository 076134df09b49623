//! The ledger: what was dispatched, drawn, rewarded and trained on, in the order it happened.
//!
//! A directory of append-only segment files, `000000.ledger` and on, of frames. What [`Ledger::sync`] has returned for survives
//! a crash of the process and of the machine; recovery cuts only a torn tail of the last file. The payload of a frame is a
//! [`Record`] in bincode's version-1 format (little-endian, fixed-width integers, u64 lengths, u32 variants). The crate is
//! unmaintained, so it is used in this file alone, and the tests read every frame with another implementation of the same
//! format. The layout is in `docs/ledger.md`.

mod catalogue;
mod compact;
mod disk;
mod error;
pub mod export;
mod flusher;
mod frame;
mod group;
mod index;
mod intervals;
mod reader;
mod record;
mod recover;
mod segment;
mod v1;
mod verify;
mod writer;

pub use catalogue::{Catalogue, PlanState, PlanSummary, StoredRollout};
pub use error::LedgerError;
pub use frame::{FORMAT, FrameError, HEAD_MAGIC, MAGIC, MAX_PAYLOAD, OLDEST};
pub use group::{Entry, SharedLedger, Written};
pub use reader::Records;
pub use record::{DeltaRecord, Record, ResyncRecord, SentAnswer, SentRecord, TrainedOn};
pub use verify::{Verified, verify};
pub use writer::{Ledger, SEGMENT_BYTES};

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use error::io_error;
use record::{DeltaHead, Subject};
use segment::Head;
use serde::{Serialize, de::DeserializeOwned};
use std::path::Path;

type Format = Configuration<LittleEndian, Fixint, Limit<MAX_PAYLOAD>>;

fn format() -> Format {
    bincode::config::legacy().with_limit::<MAX_PAYLOAD>()
}

/// The records of a ledger, without touching it; a torn tail is left out.
///
/// # Errors
/// A file that cannot be read, a damaged frame that is no torn tail.
pub fn read(directory: &Path) -> Result<Vec<Record>, LedgerError> {
    Records::of(directory)?.collect()
}

/// The record of the frame these bytes begin with, and the frame's size in bytes. The head of a segment is no record.
///
/// # Errors
/// Bytes that are no sound frame of a record.
pub fn decode_frame(bytes: &[u8]) -> Result<(Record, usize), FrameError> {
    let frame = frame::read(bytes)?;
    if frame.kind == frame::Kind::Head {
        return Err(FrameError::Magic);
    }
    Ok((decode_record(frame.version, frame.payload)?, frame.size))
}

/// The frame of a record, as it is written.
///
/// # Errors
/// A record that does not fit a frame.
pub fn encode_frame(record: &Record) -> Result<Vec<u8>, LedgerError> {
    let mut out = Vec::new();
    frame::write(&mut out, frame::Kind::Record, &encode(record)?);
    Ok(out)
}

/// bincode's limit holds for reading alone, so the length is checked here.
fn encode(value: &impl Serialize) -> Result<Vec<u8>, LedgerError> {
    let payload = bincode::serde::encode_to_vec(value, format());
    let payload = payload.map_err(|error| LedgerError::TooLarge(error.to_string()))?;
    if payload.len() > MAX_PAYLOAD {
        return Err(LedgerError::TooLarge(format!("it has {}", payload.len())));
    }
    Ok(payload)
}

fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<(T, usize), FrameError> {
    let unreadable = |error: bincode::error::DecodeError| FrameError::Payload(error.to_string());
    bincode::serde::decode_from_slice(payload, format()).map_err(unreadable)
}

fn decode_whole<T: DeserializeOwned>(payload: &[u8]) -> Result<T, FrameError> {
    let (value, size) = decode(payload)?;
    if size != payload.len() {
        return Err(FrameError::Payload(format!("{size} of {} bytes are a record", payload.len())));
    }
    Ok(value)
}

fn decode_head(payload: &[u8]) -> Result<Head, FrameError> {
    decode_whole(payload)
}

fn decode_record(version: u16, payload: &[u8]) -> Result<Record, FrameError> {
    match version {
        1 => decode_whole::<v1::RecordV1>(payload).map(Record::from),
        _ => decode_whole(payload),
    }
}

/// What the index keeps of a record; of a delta only the beginning is read.
fn decode_subject(version: u16, payload: &[u8]) -> Result<Skimmed, FrameError> {
    let is_delta = payload.starts_with(&record::DELTA.to_le_bytes());
    if version > 1 && is_delta {
        let (head, _) = decode::<DeltaHead>(&payload[size_of_val(&record::DELTA)..])?;
        return Ok(Skimmed::Subject(head.subject()));
    }
    let record = decode_record(version, payload)?;
    Ok(match (record.subject(), record) {
        (_, Record::Profile(profile)) => Skimmed::Profile(profile),
        (Some(subject), _) => Skimmed::Subject(subject),
        (None, _) => Skimmed::Other,
    })
}

/// What recovery needs of a record.
enum Skimmed {
    Profile(lockstep_core::SamplerProfile),
    Subject(Subject),
    Other,
}

#[cfg(test)]
mod tests;
