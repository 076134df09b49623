//! The only writer of a ledger: appends, syncs, begins new segments, removes old ones.

use super::{
    LedgerError, Records, decode_record,
    disk::{Disk, DiskFile, RealDisk},
    encode,
    flusher::{Flush, Flusher},
    frame,
    index::{Entry, Index, IndexFile, SegmentIndex},
    intervals::Intervals,
    io_error,
    record::{DeltaRecord, Record},
    recover::{Place, survey},
    segment::{Frames, Head, Layout, name},
};
use lockstep_core::{Delta, RolloutId, SamplerProfile};
use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A segment that has this many bytes is closed, and a new one begun.
pub const SEGMENT_BYTES: u64 = 64 << 20;

/// From so many bytes on it is cheaper to hand a buffer to another thread than to wait for the disk.
const WORTH_A_THREAD: usize = 128 << 10;

/// An open ledger; the only writer of its directory.
///
/// Keeps in memory the index of the open segment and the plans of the closed ones, whatever the ledger holds.
#[derive(Debug)]
pub struct Ledger {
    disk: Arc<dyn Disk>,
    limit: u64,
    number: u64,
    path: PathBuf,
    /// Not here while a flush is under way.
    file: Option<Box<dyn DiskFile>>,
    /// Bytes from which on a flush is not waited for.
    behind_from: usize,
    /// Started with the first such flush.
    flusher: Option<Flusher>,
    /// Bytes in the file.
    written: u64,
    /// Bytes of the flush that is under way.
    flushing: u64,
    /// Frames that are not in the file yet.
    pending: Vec<u8>,
    /// The buffer of the last flush, empty, to be filled next.
    spare: Vec<u8>,
    oldest: u64,
    profiles: Vec<Arc<SamplerProfile>>,
    retired: Intervals,
    index: SegmentIndex,
    closed: Vec<(u64, SegmentIndex)>,
    stopped: bool,
    /// Held while the ledger is open, and until its last flush has ended, hence the last field; the system lets go of it when
    /// the process ends, however it ends.
    _lock: Option<File>,
}

impl Ledger {
    /// Opens the ledger in a directory, creating it where there is none, and cuts a torn tail. Gives what is in it, all of
    /// it: for a ledger of any size there is [`Ledger::resume`].
    ///
    /// # Errors
    /// A disk that cannot be read or written, a damaged frame that is no torn tail, another writer.
    pub fn open(directory: &Path) -> Result<(Self, Vec<Record>), LedgerError> {
        let ledger = Self::resume(directory, SEGMENT_BYTES)?;
        let records = Records::on(ledger.disk.clone())?.collect::<Result<_, _>>()?;
        Ok((ledger, records))
    }

    /// Opens the ledger in a directory, creating it where there is none, and cuts a torn tail. Segments are closed at
    /// `segment_bytes` bytes.
    ///
    /// Reads the last segment, and of the others their indexes; [`Records`] reads, and checks, all.
    ///
    /// # Errors
    /// A disk that cannot be read or written, a damaged frame that is no torn tail, another writer.
    pub fn resume(directory: &Path, segment_bytes: u64) -> Result<Self, LedgerError> {
        let failed = |action| io_error(action, directory);
        std::fs::create_dir_all(directory).map_err(failed("create"))?;
        let path = directory.join("lock");
        let lock = File::create(&path).map_err(io_error("open", &path))?;
        lock.try_lock().map_err(|error| match error {
            std::fs::TryLockError::WouldBlock => LedgerError::Locked(directory.to_owned()),
            std::fs::TryLockError::Error(source) => io_error("lock", &path)(source),
        })?;
        let mut ledger = Self::on(Arc::new(RealDisk::new(directory)), segment_bytes)?;
        ledger._lock = Some(lock);
        ledger.behind_from = WORTH_A_THREAD;
        Ok(ledger)
    }

    /// Opens the ledger of a disk that nobody else writes.
    pub(super) fn on(disk: Arc<dyn Disk>, limit: u64) -> Result<Self, LedgerError> {
        let layout = Layout::read(&*disk)?;
        for &number in &layout.leftovers {
            remove(&*disk, number)?;
        }
        let Head { oldest, profiles, retired } = layout.head;
        let mut closed = Vec::new();
        let (last, before) = layout.numbers.split_last().map_or((oldest, &[][..]), |(last, before)| (*last, before));
        for &number in before {
            closed.push((number, SegmentIndex::File(closed_index(&disk, number)?)));
        }
        let path = disk.path(&name(last));
        let file = disk.open_to_append(&name(last)).map_err(io_error("open", &path))?;
        let mut ledger = Self {
            limit,
            number: last,
            path,
            file: None,
            behind_from: 0,
            flusher: None,
            written: 0,
            flushing: 0,
            pending: Vec::new(),
            spare: Vec::new(),
            oldest,
            profiles: profiles.into_iter().map(Arc::new).collect(),
            retired,
            index: SegmentIndex::Memory(Index::default()),
            closed,
            stopped: false,
            disk,
            _lock: None,
        };
        ledger.recover(file)?;
        Ok(ledger)
    }

    /// Takes over what the last segment holds, and makes it durable: what was written and never synced counts from here on.
    fn recover(&mut self, mut file: Box<dyn DiskFile>) -> Result<(), LedgerError> {
        let survey = survey(&*self.disk, self.number, Place::Last)?;
        let failed = |action| io_error(action, &self.path);
        if file.len().map_err(failed("read"))? > survey.sound {
            file.cut(survey.sound).map_err(failed("cut the torn tail of"))?;
        }
        file.sync().map_err(failed("sync"))?;
        self.disk.sync().map_err(failed("sync the directory of"))?;
        self.written = survey.sound;
        self.index = SegmentIndex::Memory(survey.index);
        let mut introduced = survey.profiles;
        if let (0, Some((number, _))) = (self.written, self.closed.last()) {
            // Without a head of its own, the segment follows the one before it.
            introduced = super::recover::survey(&*self.disk, *number, Place::Closed)?.profiles;
        }
        self.profiles.extend(introduced.into_iter().map(Arc::new));
        if self.written == 0 {
            return self.begin(file);
        }
        self.file = Some(file);
        Ok(())
    }

    /// Appends a record; durable once [`Ledger::sync`] has returned. A delta that is there already is not stored again.
    ///
    /// # Errors
    /// A record that does not fit a frame or contradicts what is there, a ledger that has stopped.
    pub fn append(&mut self, record: &Record) -> Result<(), LedgerError> {
        if self.stopped {
            return Err(LedgerError::Stopped(self.path.clone()));
        }
        let payload = encode(record)?;
        if let Record::Delta(delta) = record
            && self.has(delta, &payload)?
        {
            return Ok(());
        }
        if self.end() >= self.limit {
            self.rotate()?;
        }
        let offset = self.end();
        if let (Some(subject), SegmentIndex::Memory(index)) = (record.subject(), &mut self.index) {
            index.add(&subject, offset, frame::size_of(&payload));
        }
        if let Record::Profile(profile) = record {
            self.profiles.push(Arc::new(profile.clone()));
        }
        frame::write(&mut self.pending, frame::Kind::Record, &payload);
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
        let flush = self.flush()?;
        self.flushed(flush.run())
    }

    /// Begins to write what was appended, after what was begun before; more can be appended meanwhile. Acknowledged is what
    /// the next [`Ledger::finish_sync`] or [`Ledger::sync`] has returned for. Little is written at once.
    ///
    /// # Errors
    /// As [`Ledger::sync`], of what was begun before; a thread that cannot be started.
    pub fn begin_sync(&mut self) -> Result<(), LedgerError> {
        if self.pending.len() < self.behind_from {
            return self.sync();
        }
        let flush = self.flush()?;
        let flusher = match self.flusher.take() {
            Some(flusher) => flusher,
            None => Flusher::start().map_err(io_error("start the writer of", &self.path))?,
        };
        self.flushing = flush.bytes.len() as u64;
        let begun = flusher.begin(flush);
        self.flusher = Some(flusher);
        begun.map_err(|_| self.stop())
    }

    /// Waits for what [`Ledger::begin_sync`] has begun.
    ///
    /// # Errors
    /// As [`Ledger::sync`].
    pub fn finish_sync(&mut self) -> Result<(), LedgerError> {
        if self.stopped {
            return Err(LedgerError::Stopped(self.path.clone()));
        }
        if self.file.is_some() {
            return Ok(());
        }
        let flush = self.flusher.as_ref().and_then(Flusher::finish).ok_or_else(|| self.stop())?;
        self.flushed(flush)
    }

    /// What was appended and is not under way yet.
    fn flush(&mut self) -> Result<Flush, LedgerError> {
        self.finish_sync()?;
        let file = self.file.take().ok_or_else(|| self.stop())?;
        let spare = std::mem::take(&mut self.spare);
        Ok(Flush::new(file, std::mem::replace(&mut self.pending, spare)))
    }

    fn flushed(&mut self, mut flush: Flush) -> Result<(), LedgerError> {
        self.file = Some(flush.file);
        self.flushing = 0;
        self.written += flush.bytes.len() as u64;
        flush.bytes.clear();
        self.spare = flush.bytes;
        self.stopped = flush.outcome.is_err();
        flush.outcome.map_err(io_error("write", &self.path))
    }

    fn stop(&mut self) -> LedgerError {
        self.stopped = true;
        LedgerError::Stopped(self.path.clone())
    }

    /// Bytes of the segment, once all that was appended is in it.
    fn end(&self) -> u64 {
        self.written + self.flushing + self.pending.len() as u64
    }

    /// The file that is written.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the oldest segments of which every plan is below `before` and consumed. Gives their files.
    ///
    /// # Errors
    /// A disk that cannot be written.
    pub fn retire(&mut self, before: u64) -> Result<Vec<PathBuf>, LedgerError> {
        let mut consumed = self.index.consumed();
        self.closed.iter().for_each(|(_, index)| consumed.extend(&index.consumed()));
        consumed.extend(&self.retired);
        let done = |index: &SegmentIndex| index.plans().iter().all(|plan| plan < before && consumed.contains(plan));
        let count = self.closed.iter().take_while(|(_, index)| done(index)).count();
        if count == 0 {
            return Ok(Vec::new());
        }
        let removed: Vec<(u64, SegmentIndex)> = self.closed.drain(..count).collect();
        removed.iter().for_each(|(_, index)| self.retired.extend(&index.plans()));
        self.oldest += count as u64;
        // The new segment's head says what is gone; only then it goes.
        self.rotate()?;
        removed.iter().try_for_each(|(number, _)| remove(&*self.disk, *number))?;
        Ok(removed.iter().map(|(number, _)| self.disk.path(&name(*number))).collect())
    }

    /// True when the same delta is there already.
    fn has(&mut self, delta: &DeltaRecord, payload: &[u8]) -> Result<bool, LedgerError> {
        let (rollout, start) = (delta.rollout, delta.start);
        let known = self.profiles.len();
        if delta.profile as usize >= known {
            return Err(LedgerError::Profile { rollout, profile: delta.profile, known });
        }
        if self.retired.contains(rollout.plan) {
            return Err(LedgerError::Retired(rollout));
        }
        let last = self.last_delta(rollout)?;
        let expected = last.map_or(0, |last| last.end());
        if start > expected {
            return Err(LedgerError::Gap { rollout, expected, found: start });
        }
        // Behind the last delta nothing begins, unless that one has no tokens.
        let is_behind = start == expected && last.is_none_or(|last| last.count > 0);
        if is_behind {
            return Ok(false);
        }
        self.finish_sync()?;
        let mut empty = false;
        for (number, entry) in self.deltas_at(rollout, start)? {
            if self.payload(number, entry.offset)? == payload {
                return Ok(true);
            }
            empty |= entry.count == 0;
        }
        let again_empty = empty && delta.columns.tokens.is_empty();
        if start < expected || again_empty { Err(LedgerError::Differs { rollout, start }) } else { Ok(false) }
    }

    fn last_delta(&self, rollout: RolloutId) -> Result<Option<Entry>, LedgerError> {
        let closed = self.closed.iter().rev().map(|(_, index)| index);
        for index in [&self.index].into_iter().chain(closed) {
            if let Some(last) = index.last_delta(rollout)? {
                return Ok(Some(last));
            }
        }
        Ok(None)
    }

    fn deltas_at(&self, rollout: RolloutId, start: u32) -> Result<Vec<(u64, Entry)>, LedgerError> {
        let mut found = Vec::new();
        for (number, index) in self.segments().filter(|(_, index)| index.has_plan(rollout.plan)) {
            found.extend(index.deltas_at(rollout, start)?.into_iter().map(|entry| (number, entry)));
        }
        Ok(found)
    }

    fn segments(&self) -> impl Iterator<Item = (u64, &SegmentIndex)> {
        let closed = self.closed.iter().map(|(number, index)| (*number, index));
        closed.chain([(self.number, &self.index)])
    }

    /// The payload of a record that is there, in the format that is written.
    fn payload(&self, number: u64, offset: u64) -> Result<Vec<u8>, LedgerError> {
        let unreadable =
            |source| LedgerError::Damaged { path: self.path.clone(), offset, rollout: None, after: None, source };
        if number == self.number && offset >= self.written {
            let pending = frame::read(&self.pending[(offset - self.written) as usize..]);
            return pending.map(|frame| frame.payload.to_vec()).map_err(unreadable);
        }
        let mut frames = Frames::open(&*self.disk, number)?;
        frames.seek(offset);
        let read = match frames.next()? {
            Ok(Some(frame)) if frame.version == frame::FORMAT => Ok(frame.payload.to_vec()),
            Ok(Some(frame)) => match decode_record(frame.version, frame.payload) {
                Ok(record) => return encode(&record),
                Err(source) => Err(source),
            },
            Ok(None) => Err(frame::FrameError::Magic),
            Err(source) => Err(source),
        };
        read.map_err(|source| frames.damaged(None, source))
    }

    /// Closes the segment and begins the next.
    fn rotate(&mut self) -> Result<(), LedgerError> {
        self.sync()?;
        let begun = self.close();
        self.stopped = begun.is_err();
        begun
    }

    fn close(&mut self) -> Result<(), LedgerError> {
        let (number, segment) = (self.number, self.written);
        self.number += 1;
        self.path = self.disk.path(&name(self.number));
        let file = self.disk.open_to_append(&name(self.number)).map_err(io_error("open", &self.path))?;
        self.written = 0;
        self.begin(file)?;
        let index = std::mem::replace(&mut self.index, SegmentIndex::Memory(Index::default()));
        if let SegmentIndex::Memory(index) = &index {
            index.store(&*self.disk, number, segment)?;
        }
        self.closed.push((number, SegmentIndex::File(closed_index(&self.disk, number)?)));
        Ok(())
    }

    /// Writes the head of an empty segment.
    fn begin(&mut self, mut file: Box<dyn DiskFile>) -> Result<(), LedgerError> {
        let profiles = self.profiles.iter().map(|profile| (**profile).clone()).collect();
        let head = Head { oldest: self.oldest, profiles, retired: self.retired.clone() };
        let mut bytes = Vec::new();
        frame::write(&mut bytes, frame::Kind::Head, &encode(&head)?);
        let failed = |action| io_error(action, &self.path);
        file.append(&bytes).and_then(|()| file.sync()).map_err(failed("write"))?;
        self.disk.sync().map_err(failed("sync the directory of"))?;
        self.written = bytes.len() as u64;
        self.file = Some(file);
        Ok(())
    }
}

/// The index of a closed segment; made again where there is none that fits.
pub(super) fn closed_index(disk: &Arc<dyn Disk>, number: u64) -> Result<IndexFile, LedgerError> {
    let path = disk.path(&name(number));
    let segment = disk.open(&name(number)).and_then(|file| file.len()).map_err(io_error("read", &path))?;
    if let Some(index) = IndexFile::load(disk, number, segment)? {
        return Ok(index);
    }
    let survey = survey(&**disk, number, Place::Closed)?;
    survey.index.store(&**disk, number, segment)?;
    IndexFile::load(disk, number, segment)?.ok_or_else(|| LedgerError::Index(disk.path(&super::index::name(number))))
}

/// Removes a segment and its index. The names go one after the other, so that no crash leaves a gap.
fn remove(disk: &dyn Disk, number: u64) -> Result<(), LedgerError> {
    let segment = disk.path(&name(number));
    disk.remove(&name(number)).and_then(|()| disk.sync()).map_err(io_error("remove", &segment))?;
    // The index of a segment that is gone says nothing to anybody.
    let _ = disk.remove(&super::index::name(number));
    Ok(())
}
