//! What a segment holds, after a crash or without one.

use super::{
    LedgerError, Skimmed, decode_head, decode_record, decode_subject,
    disk::Disk,
    frame::{self, FrameError},
    index::Index,
    segment::Frames,
};
use lockstep_core::SamplerProfile;

/// A segment, read from its first frame to its last.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) index: Index,
    /// Profiles its records introduce.
    pub(super) profiles: Vec<SamplerProfile>,
    /// Bytes of sound frames.
    pub(super) sound: u64,
}

/// Which segment it is: only the last may have a torn tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Last,
    Closed,
}

/// Reads a segment; a torn tail of the last is left out of it.
pub(super) fn survey(disk: &dyn Disk, number: u64, place: Place) -> Result<Survey, LedgerError> {
    let mut frames = Frames::open(disk, number)?;
    let mut survey = Survey::default();
    let mut last = None;
    loop {
        let offset = frames.offset_of_next();
        let source = match frames.next()? {
            Ok(None) => break,
            Ok(Some(frame)) => match survey.take(frame, offset) {
                Ok(()) => {
                    last = Some((offset, frame.version));
                    survey.sound = offset + frame.size as u64;
                    continue;
                }
                Err(source) => source,
            },
            Err(source) => source,
        };
        if place == Place::Last && !frames.is_damage()? {
            break;
        }
        let after = last.map(|(offset, version)| describe(disk, number, offset, version)).transpose()?.flatten();
        frames.seek(offset);
        return Err(frames.damaged(after, source));
    }
    Ok(survey)
}

impl Survey {
    fn take(&mut self, frame: frame::Frame<'_>, offset: u64) -> Result<(), FrameError> {
        if frame.kind == frame::Kind::Head {
            let misplaced = (offset > 0).then(FrameError::misplaced_head);
            return misplaced.map_or_else(|| decode_head(frame.payload).map(|_| ()), Err);
        }
        match decode_subject(frame.version, frame.payload)? {
            Skimmed::Profile(profile) => self.profiles.push(profile),
            Skimmed::Subject(subject) => self.index.add(&subject, offset, frame.size),
            Skimmed::Other => {}
        }
        Ok(())
    }
}

/// The record at a place, in words.
fn describe(disk: &dyn Disk, number: u64, offset: u64, version: u16) -> Result<Option<String>, LedgerError> {
    let mut frames = Frames::open(disk, number)?;
    frames.seek(offset);
    let record = match frames.next()? {
        Ok(Some(frame)) if frame.kind == frame::Kind::Record => decode_record(version, frame.payload).ok(),
        _ => None,
    };
    Ok(record.map(|record| record.to_string()))
}
