//! A batch on the wire: in pieces no message outgrows, and back through the constructors of the core.

use super::{
    CHUNK_BYTES, WireError, columns, proto, required,
    words::{delta, read_delta},
};
use lockstep_core::{
    Batch, BatchPlan, Delta, RewardBook, Rollout, SamplerProfile, ScoredBatch, Segment, SupportLogProbs, WeightVersion,
    ports::StepOptions,
    rollout::Request,
    score::{RolloutLogProbs, ScoredAt},
};
use prost::Message;
use proto::batch_piece::Piece;
use std::sync::Arc;

/// What a batch is sent for.
#[derive(Debug, Clone, Copy)]
pub enum Purpose<'a> {
    /// To be scored at a version.
    Score(WeightVersion),
    /// To be trained on, with one reward and the scores at the sampler's weights for each rollout.
    Step {
        /// What to do.
        options: &'a StepOptions,
        /// One reward a rollout.
        rewards: &'a [f64],
        /// log p_s, one entry a rollout.
        log_s: &'a [RolloutLogProbs],
    },
}

/// Groups what comes into messages of at most [`CHUNK_BYTES`], unless a single piece is larger.
fn chunks<T: Message>(pieces: impl IntoIterator<Item = T>) -> Vec<Vec<T>> {
    let (mut full, mut last, mut bytes) = (Vec::new(), Vec::new(), 0);
    for piece in pieces {
        let size = piece.encoded_len();
        if bytes > 0 && bytes + size > CHUNK_BYTES {
            full.push(std::mem::take(&mut last));
            bytes = 0;
        }
        bytes += size;
        last.push(piece);
    }
    full.push(last);
    full
}

/// Requests in messages.
pub fn write_requests(requests: impl IntoIterator<Item = proto::SampleRequest>) -> Vec<proto::SampleRequests> {
    chunks(requests).into_iter().map(|requests| proto::SampleRequests { requests }).collect()
}

/// The pieces of a batch, in messages.
pub fn write_batch(batch: &Batch, purpose: Purpose<'_>) -> Vec<proto::BatchChunk> {
    let profiles = profiles(batch);
    let mut header = proto::BatchHeader {
        plan: batch.plan(),
        rollouts: batch.rollouts().len() as u32,
        profiles: profiles.iter().map(|profile| (&**profile).into()).collect(),
        version: None,
        options: None,
    };
    match purpose {
        Purpose::Score(version) => header.version = Some(version.into()),
        Purpose::Step { options, .. } => header.options = Some(options.into()),
    }
    let mut pieces = vec![Piece::Header(header)];
    for (index, rollout) in batch.rollouts().iter().enumerate() {
        pieces.push(Piece::Request(rollout.request().into()));
        pieces.extend(split(rollout).map(|part| Piece::Delta(delta(&part, index_of(&profiles, &part.profile)))));
        if let Purpose::Step { rewards, log_s, .. } = purpose {
            pieces.extend(write_scores(index, &log_s[index]).map(Piece::Scores));
            pieces.push(Piece::Reward(rewards[index]));
        }
    }
    let pieces = pieces.into_iter().map(|piece| proto::BatchPiece { piece: Some(piece) });
    chunks(pieces).into_iter().map(|pieces| proto::BatchChunk { pieces }).collect()
}

/// A sealed batch, in messages: with the rewards there are, one entry a rollout.
pub fn write_sealed(batch: &Batch, rewards: &[Option<f64>]) -> Vec<proto::BatchChunk> {
    let profiles = profiles(batch);
    let header = proto::BatchHeader {
        plan: batch.plan(),
        rollouts: batch.rollouts().len() as u32,
        profiles: profiles.iter().map(|profile| (&**profile).into()).collect(),
        version: None,
        options: None,
    };
    let mut pieces = vec![Piece::Header(header)];
    for (rollout, reward) in batch.rollouts().iter().zip(rewards) {
        pieces.push(Piece::Request(rollout.request().into()));
        pieces.extend(split(rollout).map(|part| Piece::Delta(delta(&part, index_of(&profiles, &part.profile)))));
        pieces.extend(reward.map(Piece::Reward));
    }
    let pieces = pieces.into_iter().map(|piece| proto::BatchPiece { piece: Some(piece) });
    chunks(pieces).into_iter().map(|pieces| proto::BatchChunk { pieces }).collect()
}

/// Scores of a batch, in messages.
pub fn write_scored(scored: &ScoredAt) -> Vec<proto::ScoreChunk> {
    let scores = scored.rollouts.iter().enumerate().flat_map(|(index, scores)| write_scores(index, scores));
    chunks(scores).into_iter().map(|scores| proto::ScoreChunk { scores }).collect()
}

fn profiles(batch: &Batch) -> Vec<Arc<SamplerProfile>> {
    let mut profiles: Vec<Arc<SamplerProfile>> = Vec::new();
    for segment in batch.rollouts().iter().flat_map(Rollout::segments) {
        if !profiles.contains(&segment.profile) {
            profiles.push(segment.profile.clone());
        }
    }
    profiles
}

fn index_of(profiles: &[Arc<SamplerProfile>], profile: &Arc<SamplerProfile>) -> u32 {
    profiles.iter().position(|known| known == profile).unwrap_or(profiles.len()) as u32
}

/// The deltas a rollout is the fold of, none larger than a chunk.
pub fn split(rollout: &Rollout) -> impl Iterator<Item = Delta> + '_ {
    let mut start = 0;
    let total = rollout.len();
    let parts = rollout.segments().iter().flat_map(|segment| ranges(segment).map(move |range| (segment, range)));
    parts.map(move |(segment, range)| {
        let behavior = segment.behavior.slice(range);
        let at = start;
        start += behavior.len();
        Delta {
            rollout: rollout.id(),
            start: at as u32,
            behavior,
            stamp: segment.stamp.clone(),
            kv: segment.kv,
            profile: segment.profile.clone(),
            finish: (start == total).then(|| rollout.finish()),
        }
    })
}

/// Ranges of positions of a segment whose columns fit half a chunk each.
fn ranges(segment: &Segment) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    let offsets = &segment.behavior.columns().offsets;
    let bytes = |from: usize, to: usize| 20 * (to - from) + 8 * (offsets[to] - offsets[from]) as usize;
    let tokens = segment.behavior.len();
    let mut from = 0;
    std::iter::from_fn(move || {
        let mut to = (from < tokens).then_some(from + 1)?;
        while to < tokens && bytes(from, to + 1) <= CHUNK_BYTES / 2 {
            to += 1;
        }
        let range = from..to;
        from = to;
        Some(range)
    })
}

fn write_scores(rollout: usize, scores: &RolloutLogProbs) -> impl Iterator<Item = proto::Scores> + '_ {
    const ROWS: usize = CHUNK_BYTES / 16;
    let segments = scores.iter().enumerate();
    segments.flat_map(move |(segment, scores)| {
        let columns = [&scores.log_p, &scores.log_p_sampled, &scores.log_rest];
        let parts = columns.map(|column| column.len().div_ceil(ROWS)).into_iter().max().unwrap_or(0);
        (0..parts).map(move |part| {
            let bytes = columns.map(|column| {
                let (from, to) = (part * ROWS, (part + 1) * ROWS);
                columns::from_f32(&column[from.min(column.len())..to.min(column.len())])
            });
            let [log_p, log_p_sampled, log_rest] = bytes;
            proto::Scores { rollout: rollout as u32, segment: segment as u32, log_p, log_p_sampled, log_rest }
        })
    })
}

/// Scores as they come in: one entry a rollout, one a segment.
#[derive(Debug)]
pub struct ScoreReader {
    rollouts: Vec<RolloutLogProbs>,
}

impl ScoreReader {
    /// Expects scores of this many rollouts.
    pub fn new(rollouts: usize) -> Self {
        Self { rollouts: vec![Vec::new(); rollouts] }
    }

    /// Takes the next scores in.
    ///
    /// # Errors
    /// A rollout that is not in the batch, a segment out of order.
    pub fn push(&mut self, scores: &proto::Scores) -> Result<(), WireError> {
        let (index, rollouts) = (scores.rollout as usize, self.rollouts.len());
        let beyond = || WireError::Order(format!("scores of rollout {index}, but the batch has {rollouts}"));
        let segments = self.rollouts.get_mut(index).ok_or_else(beyond)?;
        let segment = scores.segment as usize;
        if segment == segments.len() {
            segments.push(SupportLogProbs::default());
        }
        let known = segments.len();
        let gap = || WireError::Order(format!("scores of segment {segment} of rollout {index} after {known} segments"));
        let into = segments.get_mut(segment).filter(|_| segment + 1 == known).ok_or_else(gap)?;
        into.log_p.extend(columns::to_f32(&scores.log_p, "log_p")?);
        into.log_p_sampled.extend(columns::to_f32(&scores.log_p_sampled, "log_p_sampled")?);
        into.log_rest.extend(columns::to_f32(&scores.log_rest, "log_rest")?);
        Ok(())
    }

    /// The scores, checked against the batch they belong to.
    ///
    /// # Errors
    /// Segments without scores, columns of the wrong length, values that are no log-probs.
    pub fn finish(self, batch: &Batch) -> Result<Vec<RolloutLogProbs>, WireError> {
        for (rollout, scores) in batch.rollouts().iter().zip(&self.rollouts) {
            let (found, expected) = (scores.len(), rollout.segments().len());
            if found != expected {
                let id = rollout.id();
                return Err(WireError::Order(format!("rollout {id} has scores of {found} segments, not {expected}")));
            }
            for (scores, segment) in scores.iter().zip(rollout.segments()) {
                scores.check(&segment.behavior).map_err(WireError::broken)?;
            }
        }
        Ok(self.rollouts)
    }
}

/// A batch as it comes in.
#[derive(Debug)]
pub struct BatchReader {
    /// What it was sent with.
    pub header: proto::BatchHeader,
    profiles: Vec<Arc<SamplerProfile>>,
    requests: Vec<Request>,
    deltas: Vec<Vec<Delta>>,
    rewards: RewardBook,
    scores: ScoreReader,
}

impl BatchReader {
    /// Begins with the first piece, the header.
    ///
    /// # Errors
    /// Another piece first, a profile that cannot be read.
    pub fn begin(piece: proto::BatchPiece) -> Result<Self, WireError> {
        let Some(Piece::Header(header)) = piece.piece else {
            return Err(WireError::Order("a batch does not begin with its header".into()));
        };
        let profiles = header.profiles.iter().cloned().map(|profile| profile.try_into().map(Arc::new));
        let scores = ScoreReader::new(header.rollouts as usize);
        let profiles = profiles.collect::<Result<_, WireError>>()?;
        Ok(Self { header, profiles, requests: vec![], deltas: vec![], rewards: RewardBook::default(), scores })
    }

    /// Takes the next piece in.
    ///
    /// # Errors
    /// A piece out of order, a piece the core refuses.
    pub fn push(&mut self, piece: proto::BatchPiece) -> Result<(), WireError> {
        match required(piece.piece, "batch piece", "content")? {
            Piece::Header(_) => Err(WireError::Order("a batch has two headers".into())),
            Piece::Request(request) => {
                self.requests.push(request.try_into()?);
                self.deltas.push(Vec::new());
                Ok(())
            }
            Piece::Delta(delta) => {
                let delta = read_delta(delta, &self.profiles)?;
                let early = || WireError::Order("a delta comes before its request".into());
                self.deltas.last_mut().ok_or_else(early)?.push(delta);
                Ok(())
            }
            Piece::Scores(scores) => self.scores.push(&scores),
            Piece::Reward(reward) => {
                let early = || WireError::Order("a reward comes before its request".into());
                let id = self.requests.last().ok_or_else(early)?.id;
                self.rewards.post(id, reward).map_err(WireError::broken)
            }
        }
    }

    /// The batch, through the same constructors as where it was made.
    ///
    /// # Errors
    /// An incomplete batch.
    pub fn into_batch(self) -> Result<Batch, WireError> {
        self.finish().map(|(batch, _, _)| batch)
    }

    /// The batch with its rewards and its scores.
    ///
    /// # Errors
    /// An incomplete batch, a rollout without reward or without scores.
    pub fn into_scored(self) -> Result<(ScoredBatch, Vec<RolloutLogProbs>), WireError> {
        let (batch, mut rewards, scores) = self.finish()?;
        let log_s = scores.finish(&batch)?;
        Ok((batch.with_rewards(&mut rewards).map_err(WireError::broken)?, log_s))
    }

    fn finish(self) -> Result<(Batch, RewardBook, ScoreReader), WireError> {
        let (found, expected) = (self.requests.len(), self.header.rollouts);
        if found != expected as usize {
            return Err(WireError::Order(format!("a batch of {expected} rollouts came with {found}")));
        }
        let mut plan = BatchPlan::restore(self.header.plan, self.requests.clone()).map_err(WireError::broken)?;
        for (request, deltas) in self.requests.into_iter().zip(self.deltas) {
            let rollout = Rollout::fold(request, deltas).map_err(WireError::broken)?;
            plan.arrive(rollout).map_err(WireError::broken)?;
        }
        Ok((plan.seal().map_err(WireError::broken)?, self.rewards, self.scores))
    }
}
