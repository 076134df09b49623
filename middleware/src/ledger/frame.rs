//! One frame of the ledger:
//!
//! | bytes | content |
//! |---|---|
//! | 4 | magic, `LKSF` for a record, `LKSH` for the head of a segment |
//! | 2 | format version, 3; 1 and 2 are still read |
//! | 4 | length of the payload in bytes, L |
//! | L | payload |
//! | 4 | crc32 (IEEE) of version, length and payload |
//!
//! Integers are little-endian. Knows nothing of what a payload means.

/// The first bytes of a record's frame.
pub const MAGIC: [u8; 4] = *b"LKSF";

/// The first bytes of the frame that begins a segment.
pub const HEAD_MAGIC: [u8; 4] = *b"LKSH";

/// Version of the frames and records that are written.
pub const FORMAT: u16 = 3;

/// The oldest version that is read.
pub const OLDEST: u16 = 1;

/// Largest payload, in bytes.
pub const MAX_PAYLOAD: usize = 64 << 20;

pub(super) const HEADER: usize = 10;
const TRAILER: usize = 4;
/// The least that a disk writes, in bytes.
const SECTOR: u64 = 512;

/// Bytes that are no frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The magic is missing.
    #[error("no frame begins there")]
    Magic,
    /// A frame of another version.
    #[error("format version {0} is not one of {OLDEST}..={FORMAT}")]
    Version(u16),
    /// A length no frame has.
    #[error("a payload of {0} bytes is longer than {MAX_PAYLOAD}")]
    TooLong(usize),
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

impl FrameError {
    pub(super) fn misplaced_head() -> Self {
        Self::Payload("the head of a segment inside of one".into())
    }
}

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The head of a segment.
    Head,
    /// A record.
    Record,
}

impl Kind {
    fn magic(self) -> [u8; 4] {
        match self {
            Self::Head => HEAD_MAGIC,
            Self::Record => MAGIC,
        }
    }

    fn of(magic: &[u8]) -> Option<Self> {
        [Self::Record, Self::Head].into_iter().find(|kind| magic == kind.magic())
    }
}

/// A sound frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) kind: Kind,
    pub(super) version: u16,
    pub(super) payload: &'a [u8],
    /// Bytes of the whole frame.
    pub(super) size: usize,
}

/// Appends a frame.
pub(super) fn write(out: &mut Vec<u8>, kind: Kind, payload: &[u8]) {
    out.extend(kind.magic());
    let checked = out.len();
    out.extend(FORMAT.to_le_bytes());
    out.extend((payload.len() as u32).to_le_bytes());
    out.extend(payload);
    let checksum = crc32fast::hash(&out[checked..]);
    out.extend(checksum.to_le_bytes());
}

/// Bytes of the frame of a payload.
pub(super) fn size_of(payload: &[u8]) -> usize {
    HEADER + payload.len() + TRAILER
}

/// Bytes of the frame that begins with this header.
pub(super) fn size(bytes: &[u8]) -> Result<usize, FrameError> {
    let short = FrameError::Short { needed: HEADER + TRAILER, found: bytes.len() };
    let header = bytes.get(..HEADER).ok_or(short)?;
    Kind::of(&header[..4]).ok_or(FrameError::Magic)?;
    let version = u16::from_le_bytes([header[4], header[5]]);
    if !(OLDEST..=FORMAT).contains(&version) {
        return Err(FrameError::Version(version));
    }
    let length = length(header);
    if length > MAX_PAYLOAD {
        return Err(FrameError::TooLong(length));
    }
    Ok(HEADER + length + TRAILER)
}

fn length(header: &[u8]) -> usize {
    u32::from_le_bytes([header[6], header[7], header[8], header[9]]) as usize
}

/// The frame these bytes begin with.
pub(super) fn read(bytes: &[u8]) -> Result<Frame<'_>, FrameError> {
    let size = size(bytes)?;
    let frame = bytes.get(..size).ok_or(FrameError::Short { needed: size, found: bytes.len() })?;
    let kind = Kind::of(&frame[..4]).ok_or(FrameError::Magic)?;
    let (checked, stored) = frame[4..].split_at(size - 4 - TRAILER);
    let expected = u32::from_le_bytes([stored[0], stored[1], stored[2], stored[3]]);
    let found = crc32fast::hash(checked);
    if found != expected {
        return Err(FrameError::Checksum { found, expected });
    }
    let version = u16::from_le_bytes([frame[4], frame[5]]);
    Ok(Frame { kind, version, payload: &checked[HEADER - 4..], size })
}

/// The frame these bytes begin with, of which [`read`] has seen that it is sound.
pub(super) fn read_checked(bytes: &[u8]) -> Result<Frame<'_>, FrameError> {
    let size = size(bytes)?;
    let kind = Kind::of(&bytes[..4]).ok_or(FrameError::Magic)?;
    let version = u16::from_le_bytes([bytes[4], bytes[5]]);
    Ok(Frame { kind, version, payload: &bytes[HEADER..size - TRAILER], size })
}

/// True when a sound frame begins anywhere in these bytes.
pub(super) fn any(bytes: &[u8]) -> bool {
    let mut starts = bytes.windows(4).enumerate().filter(|(_, window)| Kind::of(window).is_some());
    starts.any(|(at, _)| read(&bytes[at..]).is_ok())
}

/// True when the end of a file from `offset` on, which is no frame, is what an interrupted write leaves: the beginning of a
/// frame, or room that the file system made, in sectors, and never filled. A whole frame with a flipped bit is neither.
pub(super) fn is_torn(tail: &[u8], offset: u64) -> bool {
    let end = offset + tail.len() as u64;
    let last_sector = (end.saturating_sub(1) % SECTOR + 1) as usize;
    let unfilled = last_sector.min(TRAILER);
    if tail.len() < HEADER + TRAILER || tail.ends_with(&[0; TRAILER][..unfilled]) {
        return true;
    }
    matches!(read(tail), Err(FrameError::Short { .. })) && !has_flipped_length(tail)
}

/// True when the frame is whole once one bit of its length is flipped back.
fn has_flipped_length(tail: &[u8]) -> bool {
    let stored = length(&tail[..HEADER]);
    (0..u32::BITS).any(|bit| {
        let length = stored ^ (1 << bit);
        let end = HEADER + length;
        let Some(expected) = tail.get(end..end + TRAILER) else { return false };
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&tail[4..6]);
        checksum.update(&(length as u32).to_le_bytes());
        checksum.update(&tail[HEADER..end]);
        checksum.finalize().to_le_bytes() == expected
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_that_was_never_filled_is_torn_and_a_short_run_of_zeros_inside_a_sector_is_not() {
        let mut frame = Vec::new();
        write(&mut frame, Kind::Record, b"a payload");
        let size = frame.len();
        for (zeros, end, torn) in [(4, 700, true), (3, 700, false), (3, 515, true), (3, 516, false), (1, 513, true)] {
            let mut tail = frame.clone();
            tail[size - zeros..].fill(0);
            assert_eq!(is_torn(&tail, end - size as u64), torn, "{zeros} zeros up to byte {end}");
        }
        assert!(!is_torn(&frame, 700 - size as u64), "nothing is wrong with it");
    }
}
