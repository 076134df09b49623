//! Checks a ledger from its first byte to its last, and goes on behind what is wrong.

use super::{
    LedgerError, Record, decode_head, decode_record,
    disk::{Disk, RealDisk},
    frame::{self, FrameError},
    index::{self, IndexFile, SegmentIndex},
    segment::{Frames, Layout, name},
};
use lockstep_core::{BehaviorDistribution, RolloutId};
use std::{collections::BTreeMap, path::Path, sync::Arc};

/// What a ledger holds, and what is wrong with it.
#[derive(Debug, Default)]
pub struct Verified {
    /// Segment files.
    pub segments: usize,
    /// Sound records.
    pub records: u64,
    /// Bytes of sound frames.
    pub bytes: u64,
    /// Bytes at the end that an interrupted write left, or one that goes on.
    pub torn: u64,
    /// The faults, in order; of each segment the first.
    pub faults: Vec<LedgerError>,
}

/// Checks every frame of every segment, that each delta is one and follows the one before it, and the indexes.
///
/// # Errors
/// No ledger there, a segment that is missing, a disk that cannot be read. What is wrong with the content is no error here.
pub fn verify(directory: &Path) -> Result<Verified, LedgerError> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(directory));
    let layout = Layout::read(&*disk)?;
    let Some(&last) = layout.numbers.last() else {
        let source = std::io::Error::new(std::io::ErrorKind::NotFound, "there is no ledger");
        return Err(LedgerError::Io { action: "read", path: disk.path(&name(0)), source });
    };
    let mut check = Check { verified: Verified::default(), profiles: 0, ends: BTreeMap::new() };
    for &number in &layout.numbers {
        check.verified.segments += 1;
        let fault = check.segment(&*disk, number, number == last)?;
        let index = check_index(&disk, number, number == last)?;
        let fault = match (fault, &index) {
            (Some(fault), Ok(Some(index))) => Some(named(fault, index)?),
            (fault, _) => fault,
        };
        check.verified.faults.extend(fault);
        check.verified.faults.extend(index.err());
    }
    Ok(check.verified)
}

struct Check {
    verified: Verified,
    profiles: usize,
    /// Tokens of the rollouts whose plan was not consumed.
    ends: BTreeMap<RolloutId, u32>,
}

impl Check {
    /// The first fault of a segment.
    fn segment(&mut self, disk: &dyn Disk, number: u64, is_last: bool) -> Result<Option<LedgerError>, LedgerError> {
        let mut frames = Frames::open(disk, number)?;
        let mut after = None;
        loop {
            let offset = frames.offset_of_next();
            let source = match frames.next()? {
                Ok(None) => return Ok(None),
                Ok(Some(frame)) => match self.take(frame, offset) {
                    Ok(said) => {
                        after = said.or(after);
                        self.verified.bytes += frame.size as u64;
                        continue;
                    }
                    Err(source) => source,
                },
                Err(source) => source,
            };
            frames.seek(offset);
            if is_last && !frames.is_damage()? {
                self.verified.torn = frames.left()?;
                return Ok(None);
            }
            return Ok(Some(frames.damaged(after, source)));
        }
    }

    fn take(&mut self, frame: frame::Frame<'_>, offset: u64) -> Result<Option<String>, FrameError> {
        if frame.kind == frame::Kind::Head {
            if offset > 0 {
                return Err(FrameError::misplaced_head());
            }
            self.profiles = decode_head(frame.payload)?.profiles.len();
            return Ok(None);
        }
        let record = decode_record(frame.version, frame.payload)?;
        let said = record.to_string();
        self.check(record).map_err(FrameError::Payload)?;
        self.verified.records += 1;
        Ok(Some(said))
    }

    fn check(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Profile(_) => self.profiles += 1,
            Record::Delta(delta) => {
                let end = self.ends.entry(delta.rollout).or_default();
                // A plan that lost its first segments begins anywhere.
                if *end != delta.start && *end > 0 {
                    return Err(format!("{} starts at token {}, not {end}", delta.rollout, delta.start));
                }
                *end = delta.start + delta.columns.tokens.len() as u32;
                if delta.profile as usize >= self.profiles {
                    return Err(format!("profile {} is not one of {}", delta.profile, self.profiles));
                }
                BehaviorDistribution::from_columns(delta.columns).map_err(|error| error.to_string())?;
            }
            Record::Consumed { plan, .. } => self.ends.retain(|rollout, _| rollout.plan != plan),
            _ => {}
        }
        Ok(())
    }
}

/// The index beside a closed segment; a fault where there is one that does not fit.
fn check_index(
    disk: &Arc<dyn Disk>,
    number: u64,
    is_last: bool,
) -> Result<Result<Option<SegmentIndex>, LedgerError>, LedgerError> {
    let file = index::name(number);
    if is_last || disk.open(&file).is_err() {
        return Ok(Ok(None));
    }
    let path = disk.path(&name(number));
    let size = disk.open(&name(number)).and_then(|file| file.len()).map_err(super::io_error("read", &path))?;
    let index = IndexFile::load(disk, number, size)?;
    Ok(index.map(|index| Some(SegmentIndex::File(index))).ok_or_else(|| LedgerError::Index(disk.path(&file))))
}

/// The fault with the rollout it is about.
fn named(fault: LedgerError, index: &SegmentIndex) -> Result<LedgerError, LedgerError> {
    let LedgerError::Damaged { offset, .. } = &fault else { return Ok(fault) };
    Ok(match index.at(*offset)? {
        Some(entry) => fault.in_rollout(&entry),
        None => fault,
    })
}
