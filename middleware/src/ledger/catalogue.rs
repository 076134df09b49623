//! A ledger by plan and by rollout, while it is written or afterwards. Reads, and changes nothing.

use super::{
    DeltaRecord, LedgerError, Record, decode_record,
    disk::{Disk, RealDisk},
    frame,
    index::{Entry, IndexFile, SegmentIndex},
    intervals::Intervals,
    io_error,
    record::{Kind, Subject},
    recover::{Place, survey},
    segment::{Frames, Layout, name},
};
use lockstep_core::{Delta, RolloutId, SamplerProfile, WeightVersion, rollout::Request};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

/// How far a plan has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlanState {
    /// Answers are missing.
    Open,
    /// All answers are there.
    Sealed,
    /// The trainer made a step of them.
    Consumed,
}

/// A plan in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanSummary {
    /// Its number.
    pub plan: u64,
    /// Rollouts it was opened with; `None` where its opening is not in the ledger.
    pub planned: Option<u32>,
    /// Rollouts of which there are tokens.
    pub begun: u32,
    /// Sampled tokens.
    pub tokens: u64,
    /// Versions that drew them; `None` is an undeclared one.
    pub versions: BTreeSet<Option<WeightVersion>>,
    /// Bytes of its frames.
    pub bytes: u64,
    /// How far it has come.
    pub state: PlanState,
}

/// What the ledger has of a rollout.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredRollout {
    /// Its name.
    pub id: RolloutId,
    /// What was asked; `None` where the opening of its plan is not in the ledger.
    pub request: Option<Request>,
    /// What came, in order.
    pub deltas: Vec<Delta>,
    /// Its reward, once it has one.
    pub reward: Option<f64>,
    /// How far its plan has come.
    pub state: PlanState,
}

/// The indexes of a ledger's segments.
#[derive(Debug)]
pub struct Catalogue {
    disk: Arc<dyn Disk>,
    segments: Vec<(u64, SegmentIndex)>,
    profiles: Vec<Arc<SamplerProfile>>,
    retired: Intervals,
    /// Bytes of sound frames.
    bytes: u64,
}

/// Entries of one rollout with their segments.
type Entries = Vec<(usize, Entry)>;

impl Catalogue {
    /// The ledger in a directory as it is at this moment.
    ///
    /// # Errors
    /// No ledger there, a segment that is missing or damaged, a disk that cannot be read.
    pub fn open(directory: &Path) -> Result<Self, LedgerError> {
        Self::on(Arc::new(RealDisk::new(directory)))
    }

    pub(super) fn on(disk: Arc<dyn Disk>) -> Result<Self, LedgerError> {
        let layout = Layout::read(&*disk)?;
        let Some((&last, closed)) = layout.numbers.split_last() else {
            let source = std::io::Error::new(std::io::ErrorKind::NotFound, "there is no ledger");
            return Err(LedgerError::Io { action: "read", path: disk.path(&name(0)), source });
        };
        let (mut segments, mut bytes, mut profiles) = (Vec::new(), 0, layout.head.profiles);
        for &number in closed {
            let path = disk.path(&name(number));
            let size = disk.open(&name(number)).and_then(|file| file.len()).map_err(io_error("read", &path))?;
            let index = match IndexFile::load(&disk, number, size)? {
                Some(index) => SegmentIndex::File(index),
                None => SegmentIndex::Memory(survey(&*disk, number, Place::Closed)?.index),
            };
            bytes += size;
            segments.push((number, index));
        }
        let mut open = survey(&*disk, last, Place::Last)?;
        bytes += open.sound;
        if let (0, Some(&number)) = (open.sound, closed.last()) {
            open.profiles = survey(&*disk, number, Place::Closed)?.profiles;
        }
        profiles.extend(open.profiles);
        segments.push((last, SegmentIndex::Memory(open.index)));
        let profiles = profiles.into_iter().map(Arc::new).collect();
        Ok(Self { disk, segments, profiles, retired: layout.head.retired, bytes })
    }

    /// Number of segment files.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Bytes of their sound frames.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The plans, ascending.
    pub fn plans(&self) -> Vec<u64> {
        let mut plans = Intervals::default();
        self.segments.iter().for_each(|(_, index)| plans.extend(&index.plans()));
        plans.iter().filter(|&plan| !self.retired.contains(plan)).collect()
    }

    /// A plan in numbers.
    ///
    /// # Errors
    /// An index that cannot be read.
    pub fn summary(&self, plan: u64) -> Result<PlanSummary, LedgerError> {
        let rollouts = self.entries(plan)?;
        let of_plan = rollouts.get(&Subject::PLAN).map(Vec::as_slice).unwrap_or_default();
        let opened = of_plan.iter().find(|(_, entry)| entry.kind == Kind::Opened);
        let mut summary = PlanSummary {
            plan,
            planned: opened.map(|(_, entry)| entry.count),
            begun: 0,
            tokens: 0,
            versions: BTreeSet::new(),
            bytes: 0,
            state: state(of_plan),
        };
        for entries in rollouts.values() {
            let deltas = || entries.iter().filter(|(_, entry)| entry.kind == Kind::Delta);
            summary.begun += u32::from(deltas().next().is_some());
            summary.tokens += deltas().map(|(_, entry)| u64::from(entry.count)).sum::<u64>();
            summary.versions.extend(deltas().map(|(segment, entry)| self.segments[*segment].1.version(entry)));
            summary.bytes += entries.iter().map(|(_, entry)| u64::from(entry.bytes)).sum::<u64>();
        }
        Ok(summary)
    }

    /// The rollouts of a plan in dispatch order; one at a time is in memory.
    ///
    /// # Errors
    /// An index or a record that cannot be read.
    pub fn rollouts(
        &self,
        plan: u64,
    ) -> Result<impl Iterator<Item = Result<StoredRollout, LedgerError>> + '_, LedgerError> {
        let mut entries = self.entries(plan)?;
        let of_plan = entries.remove(&Subject::PLAN).unwrap_or_default();
        let mut requests = self.requests(&of_plan)?;
        for &index in requests.keys() {
            entries.entry(index).or_default();
        }
        let state = state(&of_plan);
        Ok(entries.into_iter().map(move |(index, entries)| {
            let (id, request) = (RolloutId { plan, index }, requests.remove(&index));
            self.fill(StoredRollout { id, request, deltas: vec![], reward: None, state }, &entries)
        }))
    }

    /// What there is of a rollout; `None` where neither its plan nor a token of it is there.
    ///
    /// # Errors
    /// An index or a record that cannot be read.
    pub fn rollout(&self, id: RolloutId) -> Result<Option<StoredRollout>, LedgerError> {
        let plan = RolloutId { index: Subject::PLAN, ..id };
        let of_plan = self.collect(id.plan, |index| index.rollout(plan))?;
        let entries = self.collect(id.plan, |index| index.rollout(id))?;
        let request = self.requests(&of_plan)?.remove(&id.index);
        if request.is_none() && entries.is_empty() {
            return Ok(None);
        }
        let rollout = StoredRollout { id, request, deltas: vec![], reward: None, state: state(&of_plan) };
        self.fill(rollout, &entries).map(Some)
    }

    fn fill(&self, mut rollout: StoredRollout, entries: &[(usize, Entry)]) -> Result<StoredRollout, LedgerError> {
        for (segment, entry) in entries {
            match self.record(*segment, entry)? {
                Record::Delta(delta) => rollout.deltas.push(self.delta(delta, *segment, entry)?),
                Record::Reward { reward, .. } => rollout.reward = Some(reward),
                _ => {}
            }
        }
        Ok(rollout)
    }

    fn delta(&self, delta: DeltaRecord, segment: usize, entry: &Entry) -> Result<Delta, LedgerError> {
        let (rollout, profile, known) = (delta.rollout, delta.profile, self.profiles.len());
        let arc = self.profiles.get(profile as usize);
        let profile = arc.ok_or(LedgerError::Profile { rollout, profile, known })?.clone();
        delta.delta(profile).map_err(|error| LedgerError::Damaged {
            path: self.disk.path(&name(self.segments[segment].0)),
            offset: entry.offset,
            rollout: Some(rollout),
            after: None,
            source: frame::FrameError::Payload(error.to_string()),
        })
    }

    fn requests(&self, of_plan: &[(usize, Entry)]) -> Result<BTreeMap<u32, Request>, LedgerError> {
        let Some((segment, entry)) = of_plan.iter().find(|(_, entry)| entry.kind == Kind::Opened) else {
            return Ok(BTreeMap::new());
        };
        match self.record(*segment, entry)? {
            Record::PlanOpened { requests, .. } => {
                Ok(requests.into_iter().map(|request| (request.id.index, request)).collect())
            }
            _ => Ok(BTreeMap::new()),
        }
    }

    /// The entries of a plan by rollout, each in the order they were written.
    fn entries(&self, plan: u64) -> Result<BTreeMap<u32, Entries>, LedgerError> {
        let mut rollouts = BTreeMap::<u32, Entries>::new();
        for (segment, entry) in self.collect(plan, |index| index.plan(plan))? {
            rollouts.entry(entry.index).or_default().push((segment, entry));
        }
        Ok(rollouts)
    }

    fn collect(
        &self,
        plan: u64,
        of: impl Fn(&SegmentIndex) -> Result<Vec<Entry>, LedgerError>,
    ) -> Result<Entries, LedgerError> {
        let mut found = Vec::new();
        for (segment, (_, index)) in self.segments.iter().enumerate().filter(|(_, (_, index))| index.has_plan(plan)) {
            found.extend(of(index)?.into_iter().map(|entry| (segment, entry)));
        }
        Ok(found)
    }

    fn record(&self, segment: usize, entry: &Entry) -> Result<Record, LedgerError> {
        let mut frames = Frames::open(&*self.disk, self.segments[segment].0)?;
        frames.seek(entry.offset);
        let read = match frames.next()? {
            Ok(Some(frame)) => decode_record(frame.version, frame.payload),
            Ok(None) => Err(frame::FrameError::Magic),
            Err(source) => Err(source),
        };
        read.map_err(|source| frames.damaged(None, source).in_rollout(entry))
    }
}

fn state(of_plan: &[(usize, Entry)]) -> PlanState {
    let last = of_plan.iter().map(|(_, entry)| entry.kind).max();
    match last {
        Some(Kind::Consumed) => PlanState::Consumed,
        Some(Kind::Sealed) => PlanState::Sealed,
        _ => PlanState::Open,
    }
}
