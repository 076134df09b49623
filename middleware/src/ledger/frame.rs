//! One frame of the ledger:
//!
//! | bytes | content |
//! |---|---|
//! | 4 | magic, `LKSF` |
//! | 2 | format version, 1 |
//! | 4 | length of the payload in bytes, L |
//! | L | payload |
//! | 4 | crc32 (IEEE) of version, length and payload |
//!
//! Integers are little-endian.

/// The first bytes of a frame.
pub const MAGIC: [u8; 4] = *b"LKSF";

/// Version of the frame and of the records in it.
pub const FORMAT: u16 = 1;

/// Largest payload, in bytes.
pub const MAX_PAYLOAD: usize = 64 << 20;

const HEADER: usize = 10;
const TRAILER: usize = 4;

/// Bytes that are no frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The magic is missing.
    #[error("no frame begins there")]
    Magic,
    /// A frame of another version.
    #[error("format version {0} is not {FORMAT}")]
    Version(u16),
    /// The file ends inside the frame.
    #[error("the frame needs {needed} bytes, the file has {found}")]
    Short {
        /// Bytes of the whole frame.
        needed: usize,
        /// Bytes there are.
        found: usize,
    },
    /// The checksum disagrees.
    #[error("checksum {found:08x} is not {expected:08x}")]
    Checksum {
        /// Computed from the bytes.
        found: u32,
        /// Stored behind them.
        expected: u32,
    },
    /// The payload is no record.
    #[error("its payload is no record: {0}")]
    Payload(String),
}

/// Appends a frame.
pub(super) fn write(out: &mut Vec<u8>, payload: &[u8]) {
    out.extend(MAGIC);
    let checked = out.len();
    out.extend(FORMAT.to_le_bytes());
    out.extend((payload.len() as u32).to_le_bytes());
    out.extend(payload);
    let checksum = crc32fast::hash(&out[checked..]);
    out.extend(checksum.to_le_bytes());
}

/// The payload of the frame these bytes begin with, and the frame's size.
pub(super) fn read(bytes: &[u8]) -> Result<(&[u8], usize), FrameError> {
    let short = |needed| FrameError::Short { needed, found: bytes.len() };
    let header = bytes.get(..HEADER).ok_or(short(HEADER + TRAILER))?;
    if header[..4] != MAGIC {
        return Err(FrameError::Magic);
    }
    let version = u16::from_le_bytes([header[4], header[5]]);
    if version != FORMAT {
        return Err(FrameError::Version(version));
    }
    let length = u32::from_le_bytes([header[6], header[7], header[8], header[9]]) as usize;
    let end = HEADER + length;
    let size = end + TRAILER;
    let stored = bytes.get(end..size).ok_or(short(size))?;
    let expected = u32::from_le_bytes([stored[0], stored[1], stored[2], stored[3]]);
    let found = crc32fast::hash(&bytes[4..end]);
    if found != expected {
        return Err(FrameError::Checksum { found, expected });
    }
    Ok((&bytes[HEADER..end], size))
}

/// True when a sound frame begins anywhere in these bytes.
pub(super) fn any(bytes: &[u8]) -> bool {
    let starts = bytes.windows(MAGIC.len()).enumerate().filter(|(_, window)| *window == MAGIC);
    starts.into_iter().any(|(at, _)| read(&bytes[at..]).is_ok())
}
