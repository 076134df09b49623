//! Where the records of a plan and of a rollout lie in a segment.
//!
//! The open segment's index is in memory. A closed one's is a file beside it, `000000.index`: made from the segment, made again
//! where it is missing or does not fit, and never a reason to doubt the segment.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | magic, `LKSX` |
//! | 2 | format version, 1 |
//! | 8 | bytes of the segment |
//! | 4 | number of weight versions, V |
//! | 8 | number of entries, E |
//! | 13 V | versions: 1 when declared, epoch, step |
//! | 37 E | entries, ascending: plan, rollout, kind, start, offset, bytes, count, number of the version |
//! | 4 | crc32 of all before |

use super::{
    LedgerError,
    disk::{Disk, DiskFile},
    intervals::Intervals,
    io_error,
    record::{Kind, Subject},
};
use lockstep_core::{RolloutId, WeightVersion};
use std::{collections::BTreeSet, sync::Arc};

const MAGIC: [u8; 4] = *b"LKSX";
const FORMAT: u16 = 1;
const HEADER: usize = 26;
const VERSION: usize = 13;
const ENTRY: usize = 37;
/// Entries read at once.
const BLOCK: usize = 1024;

/// One record of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) plan: u64,
    /// The rollout's place in its plan, or [`Subject::PLAN`].
    pub(super) index: u32,
    pub(super) kind: Kind,
    pub(super) start: u32,
    pub(super) offset: u64,
    /// Bytes of the frame.
    pub(super) bytes: u32,
    /// Tokens of a delta, requests of a plan.
    pub(super) count: u32,
    /// Place among the segment's versions.
    pub(super) version: u32,
}

impl Entry {
    fn first(plan: u64, index: u32, kind: Kind) -> Self {
        Self { plan, index, kind, start: 0, offset: 0, bytes: 0, count: 0, version: 0 }
    }

    fn last(plan: u64, index: u32, kind: Kind) -> Self {
        let most = u32::MAX;
        Self { plan, index, kind, start: most, offset: u64::MAX, bytes: most, count: most, version: most }
    }

    /// The token behind a delta's last.
    pub(super) fn end(&self) -> u32 {
        self.start.saturating_add(self.count)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.plan.to_le_bytes());
        out.extend(self.index.to_le_bytes());
        out.push(self.kind as u8);
        out.extend(self.start.to_le_bytes());
        out.extend(self.offset.to_le_bytes());
        out.extend(self.bytes.to_le_bytes());
        out.extend(self.count.to_le_bytes());
        out.extend(self.version.to_le_bytes());
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(bytes);
        Some(Self {
            plan: bytes.u64()?,
            index: bytes.u32()?,
            kind: *Kind::ALL.get(bytes.take::<1>()?[0] as usize)?,
            start: bytes.u32()?,
            offset: bytes.u64()?,
            bytes: bytes.u32()?,
            count: bytes.u32()?,
            version: bytes.u32()?,
        })
    }
}

/// Little-endian integers from the front of a slice.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

/// The index of a segment, in memory.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Index {
    entries: BTreeSet<Entry>,
    versions: Vec<Option<WeightVersion>>,
}

impl Index {
    /// Adds the record of a frame of `bytes` bytes at `offset`.
    pub(super) fn add(&mut self, subject: &Subject, offset: u64, bytes: usize) {
        let known = self.versions.iter().rposition(|version| *version == subject.version);
        let version = known.unwrap_or_else(|| {
            self.versions.push(subject.version);
            self.versions.len() - 1
        }) as u32;
        let Subject { kind, plan, index, start, count, .. } = *subject;
        self.entries.insert(Entry { plan, index, kind, start, offset, bytes: bytes as u32, count, version });
    }

    fn bytes(&self, segment: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + self.versions.len() * VERSION + self.entries.len() * ENTRY + 4);
        out.extend(MAGIC);
        out.extend(FORMAT.to_le_bytes());
        out.extend(segment.to_le_bytes());
        out.extend((self.versions.len() as u32).to_le_bytes());
        out.extend((self.entries.len() as u64).to_le_bytes());
        for version in &self.versions {
            let WeightVersion { epoch, step } = version.unwrap_or(WeightVersion { epoch: 0, step: 0 });
            out.push(u8::from(version.is_some()));
            out.extend(epoch.to_le_bytes());
            out.extend(step.to_le_bytes());
        }
        self.entries.iter().for_each(|entry| entry.write(&mut out));
        out.extend(crc32fast::hash(&out).to_le_bytes());
        out
    }

    /// Writes it beside its segment of `segment` bytes.
    pub(super) fn store(&self, disk: &dyn Disk, number: u64, segment: u64) -> Result<(), LedgerError> {
        let (name, new) = (name(number), format!("{}.new", name(number)));
        let path = disk.path(&new);
        let failed = io_error("write", &path);
        let mut file = disk.open_to_append(&new).map_err(&failed)?;
        file.cut(0).and_then(|()| file.append(&self.bytes(segment))).map_err(&failed)?;
        disk.rename(&new, &name).map_err(&failed)
    }
}

pub(super) fn name(number: u64) -> String {
    format!("{number:06}.index")
}

/// The index of a closed segment: what can be asked of it without reading it whole.
#[derive(Debug)]
pub(super) struct IndexFile {
    disk: Arc<dyn Disk>,
    number: u64,
    versions: Vec<Option<WeightVersion>>,
    entries: u64,
    plans: Intervals,
    consumed: Intervals,
}

impl IndexFile {
    /// `None` where there is none that fits the segment.
    pub(super) fn load(disk: &Arc<dyn Disk>, number: u64, segment: u64) -> Result<Option<Self>, LedgerError> {
        let Ok(file) = disk.open(&name(number)) else { return Ok(None) };
        let path = disk.path(&name(number));
        let failed = io_error("read", &path);
        let mut header = [0; HEADER];
        file.read_at(0, &mut header).map_err(&failed)?;
        let Some((versions, entries)) = parse_header(&header, segment) else { return Ok(None) };
        let size = HEADER as u64 + versions * VERSION as u64 + entries.saturating_mul(ENTRY as u64) + 4;
        if size != file.len().map_err(&failed)? {
            return Ok(None);
        }
        let mut bytes = vec![0; versions as usize * VERSION];
        file.read_at(HEADER as u64, &mut bytes).map_err(&failed)?;
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&header);
        checksum.update(&bytes);
        let Some(versions) = bytes.chunks(VERSION).map(parse_version).collect() else { return Ok(None) };
        let (plans, consumed) = Default::default();
        let mut index = Self { disk: disk.clone(), number, versions, entries, plans, consumed };
        let fits = index.survey(&*file, checksum).map_err(&failed)?;
        Ok(fits.then_some(index))
    }

    /// Reads every entry once: for the checksum and the plans.
    fn survey(&mut self, file: &dyn DiskFile, mut checksum: crc32fast::Hasher) -> std::io::Result<bool> {
        for from in (0..self.entries).step_by(BLOCK) {
            let bytes = self.block(file, from)?;
            checksum.update(&bytes);
            for entry in bytes.chunks(ENTRY) {
                let Some(entry) = Entry::read(entry) else { return Ok(false) };
                self.plans.insert(entry.plan);
                if entry.kind == Kind::Consumed {
                    self.consumed.insert(entry.plan);
                }
            }
        }
        let mut stored = [0; 4];
        file.read_at(self.at(self.entries), &mut stored)?;
        Ok(checksum.finalize().to_le_bytes() == stored)
    }

    fn at(&self, entry: u64) -> u64 {
        (HEADER + self.versions.len() * VERSION) as u64 + entry * ENTRY as u64
    }

    fn block(&self, file: &dyn DiskFile, from: u64) -> std::io::Result<Vec<u8>> {
        let count = (self.entries - from).min(BLOCK as u64) as usize;
        let mut bytes = vec![0; count * ENTRY];
        file.read_at(self.at(from), &mut bytes)?;
        Ok(bytes)
    }

    fn range(&self, from: &Entry, to: &Entry) -> Result<Vec<Entry>, LedgerError> {
        let path = self.disk.path(&name(self.number));
        let failed = io_error("read", &path);
        let file = self.disk.open(&name(self.number)).map_err(&failed)?;
        let bad = || LedgerError::Index(path.clone());
        let (mut low, mut high) = (0, self.entries);
        while low < high {
            let middle = low + (high - low) / 2;
            let mut bytes = [0; ENTRY];
            file.read_at(self.at(middle), &mut bytes).map_err(&failed)?;
            let entry = Entry::read(&bytes).ok_or_else(bad)?;
            if entry < *from {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let mut found = Vec::new();
        for block in (low..self.entries).step_by(BLOCK) {
            for entry in self.block(&*file, block).map_err(&failed)?.chunks(ENTRY) {
                let entry = Entry::read(entry).ok_or_else(bad)?;
                if entry > *to {
                    return Ok(found);
                }
                found.push(entry);
            }
        }
        Ok(found)
    }
}

fn parse_header(header: &[u8; HEADER], segment: u64) -> Option<(u64, u64)> {
    let mut bytes = Bytes(header);
    let magic = bytes.take::<4>()?;
    let format = bytes.take().map(u16::from_le_bytes)?;
    let (of, versions, entries) = (bytes.u64()?, bytes.u32()?, bytes.u64()?);
    (magic == MAGIC && format == FORMAT && of == segment).then_some((u64::from(versions), entries))
}

fn parse_version(bytes: &[u8]) -> Option<Option<WeightVersion>> {
    let mut bytes = Bytes(bytes);
    let declared = bytes.take::<1>()?[0];
    let version = WeightVersion { epoch: bytes.u32()?, step: bytes.u64()? };
    (declared <= 1).then_some((declared == 1).then_some(version))
}

/// A segment's index, wherever it is.
#[derive(Debug)]
pub(super) enum SegmentIndex {
    Memory(Index),
    File(IndexFile),
}

impl SegmentIndex {
    fn range(&self, from: &Entry, to: &Entry) -> Result<Vec<Entry>, LedgerError> {
        match self {
            Self::Memory(index) => Ok(index.entries.range(from..=to).copied().collect()),
            Self::File(index) => index.range(from, to),
        }
    }

    /// The plans that have a record in it.
    pub(super) fn plans(&self) -> Intervals {
        match self {
            Self::Memory(index) => index.plans(|_| true),
            Self::File(index) => index.plans.clone(),
        }
    }

    /// True when a record of the plan is in it.
    pub(super) fn has_plan(&self, plan: u64) -> bool {
        match self {
            Self::Memory(index) => index.has_plan(plan),
            Self::File(index) => index.plans.contains(plan),
        }
    }

    /// The plans whose step is in it.
    pub(super) fn consumed(&self) -> Intervals {
        match self {
            Self::Memory(index) => index.plans(|entry| entry.kind == Kind::Consumed),
            Self::File(index) => index.consumed.clone(),
        }
    }

    /// Everything of a plan: rollout by rollout, the plan itself last.
    pub(super) fn plan(&self, plan: u64) -> Result<Vec<Entry>, LedgerError> {
        self.range(&Entry::first(plan, 0, Kind::Opened), &Entry::last(plan, Subject::PLAN, Kind::Consumed))
    }

    /// Everything of a rollout.
    pub(super) fn rollout(&self, RolloutId { plan, index }: RolloutId) -> Result<Vec<Entry>, LedgerError> {
        self.range(&Entry::first(plan, index, Kind::Opened), &Entry::last(plan, index, Kind::Consumed))
    }

    /// The deltas of a rollout that begin at a token.
    pub(super) fn deltas_at(&self, rollout: RolloutId, start: u32) -> Result<Vec<Entry>, LedgerError> {
        let RolloutId { plan, index } = rollout;
        let from = Entry { start, ..Entry::first(plan, index, Kind::Delta) };
        let to = Entry { start, ..Entry::last(plan, index, Kind::Delta) };
        self.range(&from, &to)
    }

    /// The last delta of a rollout.
    pub(super) fn last_delta(&self, rollout: RolloutId) -> Result<Option<Entry>, LedgerError> {
        let RolloutId { plan, index } = rollout;
        let (from, to) = (Entry::first(plan, index, Kind::Delta), Entry::last(plan, index, Kind::Delta));
        match self {
            Self::Memory(index) => Ok(index.entries.range(from..=to).next_back().copied()),
            Self::File(index) if !index.plans.contains(plan) => Ok(None),
            Self::File(index) => Ok(index.range(&from, &to)?.last().copied()),
        }
    }

    /// The entry of the record at a place of the segment.
    pub(super) fn at(&self, offset: u64) -> Result<Option<Entry>, LedgerError> {
        let all =
            self.range(&Entry::first(0, 0, Kind::Opened), &Entry::last(u64::MAX, Subject::PLAN, Kind::Consumed))?;
        Ok(all.into_iter().find(|entry| entry.offset == offset))
    }

    /// The version of an entry.
    pub(super) fn version(&self, entry: &Entry) -> Option<WeightVersion> {
        let versions = match self {
            Self::Memory(index) => &index.versions,
            Self::File(index) => &index.versions,
        };
        versions.get(entry.version as usize).copied().flatten()
    }
}

impl Index {
    fn plans(&self, of: impl Fn(&Entry) -> bool) -> Intervals {
        let mut plans = Intervals::default();
        self.entries.iter().filter(|entry| of(entry)).for_each(|entry| plans.insert(entry.plan));
        plans
    }

    fn has_plan(&self, plan: u64) -> bool {
        let (from, to) = (Entry::first(plan, 0, Kind::Opened), Entry::last(plan, u32::MAX, Kind::Consumed));
        self.entries.range(from..=to).next().is_some()
    }
}
