//! One answer on its way: what arrived, what of it has a version, how it ends. Knows no dialect and no socket.

use crate::wire::{Chunk, End, VersionSpan, WireError, check_spans};
use lockstep_core::{
    BehaviorDistribution, Delta, FinishReason, RolloutId, SamplerProfile, Stamp,
    delta::KvHistory,
    ports::SampleRequest,
    version::{Evidence, WeightVersion},
};
use std::sync::Arc;

/// What the control plane knows of the weights, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Weights {
    /// The label the engine gives them, where it gives one.
    pub label: Option<String>,
    /// Weight updates so far, counted when they begin and again when they end: odd while one is under way.
    pub updates: u64,
}

impl Weights {
    fn quiet_since(&self, before: &Self) -> bool {
        self.updates == before.updates && self.updates.is_multiple_of(2)
    }
}

/// The stamp of a label: a version where it is one of ours (`e0.s12`), else undeclared.
pub fn stamp(label: &str) -> Stamp {
    let version = label.parse::<WeightVersion>().ok();
    let declared = version.and_then(|version| Stamp::declared(version, Evidence::Label(label.to_owned())));
    declared.unwrap_or_else(Stamp::undeclared)
}

/// How the tokens of an answer get their version.
#[derive(Debug, Clone, PartialEq)]
pub enum Versions {
    /// From the spans of the reply's end. Tokens go out at once when every update passes through our own control plane
    /// and none did since the answer began; the spans must agree in the end.
    Spans {
        /// Whether every update passes through our control plane.
        proxied: bool,
    },
    /// The engine has no label and its weights do not change: all tokens carry this stamp.
    Fixed(Stamp),
}

/// What became of an answer after a piece of its reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// More pieces come.
    Goes,
    /// It ended.
    Done,
    /// The engine ended it, the request did not: ask again, from here.
    Again,
    /// The engine broke it off.
    Interrupted(String),
}

/// An answer and the reply it is being read from.
#[derive(Debug)]
pub struct Answer {
    /// The request, with every token so far.
    pub asked: SampleRequest,
    profile: Arc<SamplerProfile>,
    versions: Versions,
    began: Weights,
    /// Tokens of the reply that went out already.
    emitted: usize,
    held: BehaviorDistribution,
}

impl Answer {
    /// An answer that begins, or goes on.
    pub fn new(asked: SampleRequest, profile: Arc<SamplerProfile>, versions: Versions) -> Self {
        let (began, held) = (Weights::default(), BehaviorDistribution::default());
        Self { asked, profile, versions, began, emitted: 0, held }
    }

    /// Its name.
    pub fn id(&self) -> RolloutId {
        self.asked.request.id
    }

    /// A reply begins.
    pub fn begin(&mut self, now: Weights) {
        (self.began, self.emitted) = (now, 0);
    }

    /// Why it is at its end, where it is: it may have been complete before it was resumed.
    pub fn finish(&self) -> Option<FinishReason> {
        let limits = self.asked.request.params.limits();
        let last = self.asked.resumed.last().copied();
        let stop = last.filter(|token| limits.stop.contains(token)).map(FinishReason::Stop);
        let full = self.asked.resumed.len() >= limits.max_new_tokens as usize;
        stop.or(full.then_some(FinishReason::Length))
    }

    /// The delta of an answer that was complete before it began.
    pub fn complete(&mut self) -> Option<Delta> {
        let finish = self.finish()?;
        Some(self.delta(BehaviorDistribution::default(), (Stamp::undeclared(), KvHistory::Fresh), Some(finish)))
    }

    /// Takes a piece of the reply.
    ///
    /// # Errors
    /// More tokens than asked for, spans that do not fit.
    pub fn take(&mut self, chunk: Chunk, now: &Weights) -> Result<(Vec<Delta>, Next), WireError> {
        for row in &chunk.rows {
            let tokens = self.asked.resumed.len();
            if self.finish().is_some() {
                return Err(WireError::TooMany { found: tokens + 1, asked: tokens });
            }
            self.held.push(row);
            self.asked.resumed.push(row.sampled().token);
        }
        match chunk.end {
            None => Ok((self.emit_now(now).into_iter().collect(), Next::Goes)),
            Some(end) => self.end(end, chunk.versions, now),
        }
    }

    /// The reply broke off before its end: what has no version yet is ambiguous.
    pub fn cut(&mut self, now: &Weights) -> Option<Delta> {
        if let Some(delta) = self.emit_now(now) {
            return Some(delta);
        }
        let held = self.take_held()?;
        Some(self.delta(held, (Stamp::undeclared(), KvHistory::Ambiguous), None))
    }

    fn emit_now(&mut self, now: &Weights) -> Option<Delta> {
        let stamp = match &self.versions {
            Versions::Fixed(stamp) => stamp.clone(),
            Versions::Spans { proxied: true } if now.quiet_since(&self.began) => {
                self.began.label.as_deref().map_or_else(Stamp::undeclared, stamp)
            }
            Versions::Spans { .. } => return None,
        };
        let held = self.take_held()?;
        Some(self.delta(held, (stamp, KvHistory::Fresh), None))
    }

    fn end(
        &mut self,
        end: End,
        versions: Option<Vec<VersionSpan>>,
        now: &Weights,
    ) -> Result<(Vec<Delta>, Next), WireError> {
        let finish = match (&end, self.finish()) {
            (End::Aborted(_), _) => None,
            (_, Some(finish)) => Some(finish),
            // The engine's own limit, its context, is a limit too.
            (End::Length, None) => Some(FinishReason::Length),
            (End::Stop, None) => None,
        };
        let mut deltas = self.resolve(versions, now)?;
        let next = match (end, finish) {
            (End::Aborted(reason), _) => Next::Interrupted(reason),
            (_, Some(_)) => Next::Done,
            (_, None) => Next::Again,
        };
        match (deltas.last_mut(), finish) {
            (Some(last), finish) => last.finish = finish,
            (None, Some(_)) => {
                let stamp = self.began.label.as_deref().map_or_else(Stamp::undeclared, stamp);
                deltas.push(self.delta(BehaviorDistribution::default(), (stamp, KvHistory::Fresh), finish));
            }
            (None, None) => {}
        }
        Ok((deltas, next))
    }

    /// Gives the held tokens the versions of the spans, and holds the spans against what went out before.
    fn resolve(&mut self, versions: Option<Vec<VersionSpan>>, now: &Weights) -> Result<Vec<Delta>, WireError> {
        let tokens = self.emitted + self.held.len();
        let Some(spans) = versions.filter(|_| matches!(self.versions, Versions::Spans { .. })) else {
            return Ok(self.cut(now).into_iter().collect());
        };
        check_spans(&spans, tokens)?;
        self.agree(&spans)?;
        let held = std::mem::take(&mut self.held);
        // The caches are dropped by every update of ours; one that others made may have kept them.
        let ours = now.updates != self.began.updates;
        let mut deltas = Vec::new();
        let mut sent = self.emitted;
        let mut first = true;
        for span in spans.iter().filter(|span| span.end > span.start) {
            let kv = match (first, ours) {
                (true, _) => KvHistory::Fresh,
                (false, true) => KvHistory::Recomputed,
                (false, false) => KvHistory::Ambiguous,
            };
            first = false;
            if span.end <= sent {
                continue;
            }
            let rows = held.slice(sent - self.emitted..span.end - self.emitted);
            let at = self.asked.resumed.len() - (tokens - sent);
            deltas.push(self.delta_at(at, rows, (stamp(&span.version), kv)));
            sent = span.end;
        }
        self.emitted = tokens;
        Ok(deltas)
    }

    fn agree(&self, spans: &[VersionSpan]) -> Result<(), WireError> {
        let before = self.began.label.clone().unwrap_or_default();
        let said = stamp(&before);
        let differs = |span: &&VersionSpan| span.start < self.emitted && stamp(&span.version) != said;
        match spans.iter().find(differs) {
            Some(span) if span.end > span.start => Err(WireError::Relabelled {
                start: span.start,
                end: span.end.min(self.emitted),
                before,
                after: span.version.clone(),
            }),
            _ => Ok(()),
        }
    }

    fn take_held(&mut self) -> Option<BehaviorDistribution> {
        let held = std::mem::take(&mut self.held);
        self.emitted += held.len();
        (!held.is_empty()).then_some(held)
    }

    fn delta(&self, behavior: BehaviorDistribution, of: (Stamp, KvHistory), finish: Option<FinishReason>) -> Delta {
        let at = self.asked.resumed.len() - behavior.len();
        Delta { finish, ..self.delta_at(at, behavior, of) }
    }

    fn delta_at(&self, start: usize, behavior: BehaviorDistribution, of: (Stamp, KvHistory)) -> Delta {
        let ((stamp, kv), profile) = (of, self.profile.clone());
        Delta { rollout: self.id(), start: start as u32, behavior, stamp, kv, profile, finish: None }
    }
}
