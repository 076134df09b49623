//! One answer on its way: its tokens so far, and those that wait for their delta.

use super::{FLUSH, Qwen3Sampler, SamplerError, support};
use crate::generate::Drawn;
use lockstep_core::behavior::BehaviorDistribution;
use lockstep_core::delta::{Delta, FinishReason, KvHistory};
use lockstep_core::ports::SampleRequest;
use lockstep_core::token::{RolloutId, TokenId};
use lockstep_core::version::Stamp;

/// A request that is being answered.
#[derive(Debug)]
pub(super) struct Answer {
    /// What was planned, and every token so far.
    pub(super) asked: SampleRequest,
    /// The weights that drew the last token, where one was drawn here.
    drawn_by: Option<Stamp>,
    /// How the cache of the present run came to be.
    kv: KvHistory,
    waiting: BehaviorDistribution,
    /// The delta that ends the answer is out.
    ended: bool,
}

impl Answer {
    pub(super) fn new(asked: SampleRequest) -> Self {
        Self { asked, drawn_by: None, kv: KvHistory::Fresh, waiting: BehaviorDistribution::default(), ended: false }
    }

    pub(super) fn id(&self) -> RolloutId {
        self.asked.request.id
    }

    /// A run of the engine begins. It builds a cache of its own, from the tokens there are, with the weights of `stamp`.
    pub(super) fn begin(&mut self, stamp: &Stamp) {
        if self.drawn_by.as_ref().is_some_and(|drawn_by| drawn_by != stamp) {
            self.kv = KvHistory::Recomputed;
        }
    }

    /// Takes a token; gives a delta when enough have come together, and with the last one.
    pub(super) fn push(&mut self, sampler: &Qwen3Sampler, drawn: Drawn) -> Result<Option<Delta>, SamplerError> {
        let (rollout, position) = (self.id(), self.asked.resumed.len());
        let token = TokenId(drawn.token);
        let vocabulary = sampler.model.config().vocab as u32;
        let support =
            support(drawn, vocabulary).map_err(|source| SamplerError::Support { rollout, position, source })?;
        self.waiting.push(&support);
        self.asked.resumed.push(token);
        self.drawn_by = Some(sampler.stamp());
        let finish = self.finish();
        let due = finish.is_some() || self.waiting.len() >= FLUSH;
        Ok(if due { self.flush(sampler, finish) } else { None })
    }

    /// Why the answer is at its end, where it is.
    fn finish(&self) -> Option<FinishReason> {
        let limits = self.asked.request.params.limits();
        let last = self.asked.resumed.last().copied();
        let stop = last.filter(|token| limits.stop.contains(token)).map(FinishReason::Stop);
        let full = self.asked.resumed.len() >= limits.max_new_tokens as usize;
        stop.or(full.then_some(FinishReason::Length))
    }

    /// A run of the engine is over: what still waits, or the end of an answer that was complete before it began.
    pub(super) fn pause(&mut self, sampler: &Qwen3Sampler) -> Option<Delta> {
        let finish = self.finish().filter(|_| !self.ended);
        self.flush(sampler, finish)
    }

    fn flush(&mut self, sampler: &Qwen3Sampler, finish: Option<FinishReason>) -> Option<Delta> {
        if self.waiting.is_empty() && finish.is_none() {
            return None;
        }
        self.ended = finish.is_some();
        let behavior = std::mem::take(&mut self.waiting);
        let start = (self.asked.resumed.len() - behavior.len()) as u32;
        let (rollout, stamp, profile) = (self.id(), sampler.stamp(), sampler.profile.clone());
        Some(Delta { rollout, start, behavior, stamp, kv: self.kv, profile, finish })
    }

    pub(super) fn ended(&self) -> bool {
        self.ended
    }
}
