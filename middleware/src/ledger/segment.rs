//! Segment files: their names, their heads, their frames one after the other.

use super::{
    LedgerError, decode_head,
    disk::{Disk, DiskFile},
    frame::{self, Frame, FrameError},
    intervals::Intervals,
    io_error,
};
use lockstep_core::SamplerProfile;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Bytes read at first, for those who want one frame.
const FIRST_CHUNK: usize = 4 << 10;

/// Bytes read at once, by those who go on.
const CHUNK: usize = 1 << 20;

/// What a segment says before its first record, so that it can be read without those before it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Head {
    /// Number of the oldest segment that is kept.
    pub(super) oldest: u64,
    /// Every profile of the ledger so far; deltas name them by place.
    pub(super) profiles: Vec<SamplerProfile>,
    /// Plans of which a segment was removed.
    pub(super) retired: Intervals,
}

/// Name of a segment's file.
pub(super) fn name(number: u64) -> String {
    format!("{number:06}.ledger")
}

fn number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".ledger")?;
    digits.parse().ok().filter(|&number| self::name(number) == name)
}

/// The segments of a directory.
#[derive(Debug)]
pub(super) struct Layout {
    /// In order, without a gap; those before the oldest kept are left out.
    pub(super) numbers: Vec<u64>,
    /// What a removal that was interrupted left behind.
    pub(super) leftovers: Vec<u64>,
    /// The newest head.
    pub(super) head: Head,
}

impl Layout {
    pub(super) fn read(disk: &dyn Disk) -> Result<Self, LedgerError> {
        let names = disk.list().map_err(io_error("list the directory of", &disk.path(&name(0))))?;
        let mut found: Vec<u64> = names.iter().filter_map(|name| number(name)).collect();
        found.sort_unstable();
        let head = newest_head(disk, &found)?;
        let (leftovers, numbers): (Vec<u64>, Vec<u64>) = found.into_iter().partition(|&number| number < head.oldest);
        let expected = head.oldest..head.oldest + numbers.len() as u64;
        if let Some((missing, _)) = expected.zip(&numbers).find(|(expected, found)| expected != *found) {
            return Err(LedgerError::Missing(disk.path(&name(missing))));
        }
        Ok(Self { numbers, leftovers, head })
    }
}

/// The head of the last file that has one; a crash may have left the very last without.
fn newest_head(disk: &dyn Disk, numbers: &[u64]) -> Result<Head, LedgerError> {
    for &number in numbers.iter().rev().take(2) {
        let mut frames = Frames::open(disk, number)?;
        if let Ok(Some(frame)) = frames.next()?
            && frame.kind == frame::Kind::Head
        {
            let decoded = decode_head(frame.payload);
            return decoded.map_err(|source| frames.damaged(None, source));
        }
    }
    Ok(Head::default())
}

/// The frames of a segment file, read in pieces.
#[derive(Debug)]
pub(super) struct Frames {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    buffer: Vec<u8>,
    /// Where in the buffer the next frame begins.
    at: usize,
    /// Where in the file the next frame begins.
    offset: u64,
    /// Size of the frame that was given last.
    given: usize,
}

/// A frame, the end of the file, or bytes that are no frame.
pub(super) type Next<'a> = Result<Option<Frame<'a>>, FrameError>;

impl Frames {
    pub(super) fn open(disk: &dyn Disk, number: u64) -> Result<Self, LedgerError> {
        let path = disk.path(&name(number));
        let file = disk.open(&name(number)).map_err(io_error("read", &path))?;
        Ok(Self { file, path, buffer: Vec::new(), at: 0, offset: 0, given: 0 })
    }

    /// Goes to where a frame begins.
    pub(super) fn seek(&mut self, offset: u64) {
        self.buffer.clear();
        (self.at, self.given, self.offset) = (0, 0, offset);
    }

    /// Goes back to the frame given last.
    pub(super) fn rewind(&mut self) {
        self.seek(self.offset);
    }

    /// Where the next frame begins, or would.
    pub(super) fn offset_of_next(&self) -> u64 {
        self.offset + self.given as u64
    }

    /// The next frame. After the end or a fault it looks at the same place again, where more may have been written.
    pub(super) fn next(&mut self) -> Result<Next<'_>, LedgerError> {
        self.at += self.given;
        self.offset += self.given as u64;
        self.given = 0;
        self.fill(frame::HEADER)?;
        let size = match frame::size(&self.buffer[self.at..]) {
            Ok(size) => size,
            Err(_) if self.at == self.buffer.len() => return Ok(Ok(None)),
            Err(error) => {
                self.seek(self.offset);
                return Ok(Err(error));
            }
        };
        self.fill(size)?;
        let whole = frame::read(&self.buffer[self.at..]).map(|frame| frame.size);
        match whole {
            Ok(size) => self.given = size,
            Err(error) => {
                self.seek(self.offset);
                return Ok(Err(error));
            }
        }
        Ok(frame::read_checked(&self.buffer[self.at..]).map(Some))
    }

    /// Reads on until `needed` bytes lie behind `at`, or the file ends.
    fn fill(&mut self, needed: usize) -> Result<(), LedgerError> {
        let left = self.buffer.len() - self.at;
        if left >= needed {
            return Ok(());
        }
        let chunk = (2 * self.buffer.len()).clamp(FIRST_CHUNK, CHUNK);
        self.buffer.copy_within(self.at.., 0);
        self.at = 0;
        self.buffer.resize(needed.max(chunk), 0);
        let read = self.file.read_at(self.offset + left as u64, &mut self.buffer[left..]);
        let read = read.map_err(io_error("read", &self.path))?;
        self.buffer.truncate(left + read);
        Ok(())
    }

    /// True when what is at the place of the last fault, or of the frame given last, is not what an interrupted write leaves.
    pub(super) fn is_damage(&self) -> Result<bool, LedgerError> {
        let tail = self.tail()?;
        Ok(!frame::is_torn(&tail, self.offset) || frame::any(tail.get(1..).unwrap_or_default()))
    }

    /// Bytes from here to the end of the file.
    pub(super) fn left(&self) -> Result<u64, LedgerError> {
        Ok(self.file.len().map_err(io_error("read", &self.path))?.saturating_sub(self.offset))
    }

    fn tail(&self) -> Result<Vec<u8>, LedgerError> {
        let failed = io_error("read", &self.path);
        let length = self.file.len().map_err(&failed)?;
        let mut tail = vec![0; length.saturating_sub(self.offset) as usize];
        let read = self.file.read_at(self.offset, &mut tail).map_err(&failed)?;
        tail.truncate(read);
        Ok(tail)
    }

    pub(super) fn damaged(&self, after: Option<String>, source: FrameError) -> LedgerError {
        LedgerError::Damaged { path: self.path.clone(), offset: self.offset, rollout: None, after, source }
    }
}
