//! Reads a ledger from its first record on, while it is written or afterwards, and changes nothing.

use super::{
    LedgerError, decode_head, decode_record,
    disk::{Disk, RealDisk},
    frame::{FrameError, Kind},
    intervals::Intervals,
    record::Record,
    segment::{Frames, Layout, name},
};
use lockstep_core::SamplerProfile;
use std::{collections::VecDeque, io, path::Path, sync::Arc};

/// The records of a ledger in order.
///
/// Ends where the ledger ends; asked again, it goes on with what was written since. Each profile is given once, before the
/// deltas that name it by its place among the profiles. Records of plans that were removed are left out.
#[derive(Debug)]
pub struct Records {
    disk: Arc<dyn Disk>,
    number: u64,
    frames: Frames,
    /// Profiles the segment has named so far.
    named: usize,
    /// Profiles given so far.
    given: usize,
    waiting: VecDeque<SamplerProfile>,
    retired: Intervals,
    last: Option<String>,
}

impl Records {
    /// The records of the ledger in a directory.
    ///
    /// # Errors
    /// No ledger there, a segment that is missing, a directory that cannot be read.
    pub fn of(directory: &Path) -> Result<Self, LedgerError> {
        Self::on(Arc::new(RealDisk::new(directory)))
    }

    pub(super) fn on(disk: Arc<dyn Disk>) -> Result<Self, LedgerError> {
        let layout = Layout::read(&*disk)?;
        let Some(&number) = layout.numbers.first() else {
            let source = io::Error::new(io::ErrorKind::NotFound, "there is no ledger");
            return Err(LedgerError::Io { action: "read", path: disk.path(&name(0)), source });
        };
        let frames = Frames::open(&*disk, number)?;
        let retired = layout.head.retired;
        Ok(Self { disk, number, frames, named: 0, given: 0, waiting: VecDeque::new(), retired, last: None })
    }

    fn advance(&mut self) -> Result<Option<Record>, LedgerError> {
        loop {
            if let Some(profile) = self.waiting.pop_front() {
                self.given += 1;
                return Ok(Some(Record::Profile(profile)));
            }
            let offset = self.frames.offset_of_next();
            let read = match self.frames.next()? {
                Ok(Some(frame)) if frame.kind == Kind::Head && offset == 0 => {
                    decode_head(frame.payload).map(Read::Head)
                }
                Ok(Some(frame)) if frame.kind == Kind::Head => Err(FrameError::misplaced_head()),
                Ok(Some(frame)) => {
                    decode_record(frame.version, frame.payload).map(|record| Read::Record(Box::new(record)))
                }
                Ok(None) => Ok(Read::End),
                Err(source) => Err(source),
            };
            let record = match read {
                Ok(Read::Head(head)) => {
                    self.take_head(head.profiles);
                    continue;
                }
                Ok(Read::Record(record)) => *record,
                Ok(Read::End) if self.enter_next()? => continue,
                Ok(Read::End) => return Ok(None),
                Err(source) => {
                    self.frames.seek(offset);
                    return self.fault(source);
                }
            };
            if let Some(record) = self.select(record) {
                return Ok(Some(record));
            }
        }
    }

    fn take_head(&mut self, profiles: Vec<SamplerProfile>) {
        self.named = profiles.len();
        self.waiting.extend(profiles.into_iter().skip(self.given));
    }

    /// The record, unless it is a profile that was given or belongs to a plan that was removed.
    fn select(&mut self, record: Record) -> Option<Record> {
        self.last = Some(record.to_string());
        if let Record::Profile(profile) = record {
            self.named += 1;
            if self.named > self.given {
                self.waiting.push_back(profile);
            }
            return None;
        }
        let retired = record.subject().is_some_and(|subject| self.retired.contains(subject.plan));
        (!retired).then_some(record)
    }

    /// Goes on to the next segment where there is one. It is made only after this one is whole.
    fn enter_next(&mut self) -> Result<bool, LedgerError> {
        if !self.has_next()? {
            return Ok(false);
        }
        let mut again = Frames::open(&*self.disk, self.number)?;
        again.seek(self.frames.offset_of_next());
        if !matches!(again.next()?, Ok(None)) {
            return Ok(true);
        }
        self.number += 1;
        self.frames = Frames::open(&*self.disk, self.number)?;
        Ok(true)
    }

    fn has_next(&self) -> Result<bool, LedgerError> {
        let next = name(self.number + 1);
        let names = self.disk.list().map_err(super::io_error("list the directory of", &self.disk.path(&next)))?;
        Ok(names.contains(&next))
    }

    /// No frame: the end, for now, of the last segment; damage elsewhere.
    fn fault(&mut self, source: FrameError) -> Result<Option<Record>, LedgerError> {
        let closed = self.has_next()?;
        if closed && !matches!(source, FrameError::Payload(_)) {
            // What was being written a moment ago is whole by now.
            let again = self.frames.next()?.is_ok();
            self.frames.rewind();
            if again {
                return self.advance();
            }
        }
        if closed || self.frames.is_damage()? {
            return Err(self.frames.damaged(self.last.clone(), source));
        }
        Ok(None)
    }
}

enum Read {
    Head(super::segment::Head),
    Record(Box<Record>),
    End,
}

impl Iterator for Records {
    type Item = Result<Record, LedgerError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().transpose()
    }
}
