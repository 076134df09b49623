//! An answer: the fold of its deltas. Knows nothing of rewards.

use crate::{
    behavior::BehaviorDistribution,
    delta::{Delta, FinishReason, KvHistory},
    profile::SamplerProfile,
    sampling::SamplingParams,
    token::{RolloutId, TokenId},
    version::Stamp,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A maximal run of sampled tokens with one version, one profile and one KV history.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// The tokens and their supports.
    pub behavior: BehaviorDistribution,
    /// The weights that drew them.
    pub stamp: Stamp,
    /// The cache they were drawn on.
    pub kv: KvHistory,
    /// The engine that drew them.
    pub profile: Arc<SamplerProfile>,
}

/// A piece of a rollout.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Span<'a> {
    /// Prompt or tool output: never trained.
    Observed(&'a [TokenId]),
    /// Drawn by the sampler.
    Sampled(&'a Segment),
}

/// What was asked: a rollout before its first token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Its name.
    pub id: RolloutId,
    /// Index of its group within the plan; answers to one prompt share it.
    pub group: u32,
    /// The prompt's ids.
    pub prompt: Vec<TokenId>,
    /// How to sample.
    pub params: SamplingParams,
}

/// Deltas that do not make an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FoldError {
    /// A delta of another rollout.
    #[error("delta of rollout {found} among those of {expected}")]
    OtherRollout {
        /// The rollout being folded.
        expected: RolloutId,
        /// The delta's rollout.
        found: RolloutId,
    },
    /// Tokens lost or doubled.
    #[error("rollout {rollout}: delta starts at token {found}, but {expected} tokens are there")]
    Gap {
        /// The rollout.
        rollout: RolloutId,
        /// Tokens so far.
        expected: usize,
        /// Start of the delta.
        found: u32,
    },
    /// Tokens after the end.
    #[error("rollout {0}: a delta follows the one that finished it")]
    AfterFinish(RolloutId),
    /// An end, but nothing before it.
    #[error("rollout {0}: finished without a token")]
    NoTokens(RolloutId),
    /// No end.
    #[error("rollout {rollout}: unfinished after {tokens} tokens")]
    Unfinished {
        /// The rollout.
        rollout: RolloutId,
        /// Tokens so far.
        tokens: usize,
    },
}

/// One answer, complete. Has no reward field, so that nothing upstream of a batch can look at one.
#[derive(Debug, Clone, PartialEq)]
pub struct Rollout {
    request: Request,
    segments: Vec<Segment>,
    finish: FinishReason,
    attempts: u32,
}

impl Rollout {
    /// Joins the deltas of one answer, in order of arrival, into segments by version.
    ///
    /// # Errors
    /// Another rollout's delta, a gap or an overlap, tokens after the end, no end, no tokens.
    pub fn fold(request: Request, deltas: impl IntoIterator<Item = Delta>) -> Result<Self, FoldError> {
        let rollout = request.id;
        let (mut segments, mut finish, mut tokens) = (Vec::<Segment>::new(), None, 0);
        for delta in deltas {
            if delta.rollout != rollout {
                return Err(FoldError::OtherRollout { expected: rollout, found: delta.rollout });
            }
            if finish.is_some() {
                return Err(FoldError::AfterFinish(rollout));
            }
            if delta.start as usize != tokens {
                return Err(FoldError::Gap { rollout, expected: tokens, found: delta.start });
            }
            tokens += delta.behavior.len();
            finish = delta.finish;
            append(&mut segments, delta);
        }
        let finish = finish.ok_or(FoldError::Unfinished { rollout, tokens })?;
        if tokens == 0 {
            return Err(FoldError::NoTokens(rollout));
        }
        Ok(Self { request, segments, finish, attempts: 1 })
    }

    /// The same answer, sampled from its first token so many times before it was complete.
    #[must_use]
    pub fn with_attempts(self, attempts: u32) -> Self {
        Self { attempts, ..self }
    }

    /// Its name.
    pub fn id(&self) -> RolloutId {
        self.request.id
    }

    /// What was asked.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Index of its group within the plan.
    pub fn group(&self) -> u32 {
        self.request.group
    }

    /// The prompt's ids.
    pub fn prompt(&self) -> &[TokenId] {
        &self.request.prompt
    }

    /// How it was sampled.
    pub fn params(&self) -> &SamplingParams {
        &self.request.params
    }

    /// The sampled tokens, by version.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Prompt and segments in order.
    pub fn spans(&self) -> impl Iterator<Item = Span<'_>> {
        std::iter::once(Span::Observed(&self.request.prompt)).chain(self.segments.iter().map(Span::Sampled))
    }

    /// The sampled ids, in order.
    pub fn sampled(&self) -> impl Iterator<Item = TokenId> + '_ {
        self.segments.iter().flat_map(|segment| segment.behavior.tokens().iter().copied())
    }

    /// Number of sampled tokens.
    pub fn len(&self) -> usize {
        self.segments.iter().map(|segment| segment.behavior.len()).sum()
    }

    /// True when no token was sampled.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Why it ended.
    pub fn finish(&self) -> FinishReason {
        self.finish
    }

    /// How often it was sampled from its first token: 1, unless tokens were lost.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }
}

fn append(segments: &mut Vec<Segment>, delta: Delta) {
    let Delta { behavior, stamp, kv, profile, .. } = delta;
    match segments.last_mut() {
        Some(last) if last.stamp == stamp && last.kv == kv && last.profile == profile => {
            last.behavior.extend(&behavior)
        }
        _ if behavior.is_empty() => {}
        _ => segments.push(Segment { behavior, stamp, kv, profile }),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        profile::{Dtypes, LogProbMeaning, TieRule},
        sampling::{Limits, Truncation},
        support::Support,
        version::{Evidence, WeightVersion},
    };

    pub(crate) fn request(index: u32, group: u32) -> Request {
        let limits = Limits { stop: vec![], max_new_tokens: 8 };
        let params = SamplingParams::new(1.0, Truncation::NONE, limits, 1).unwrap();
        Request { id: RolloutId { plan: 0, index }, group, prompt: vec![TokenId(1)], params }
    }

    fn profile() -> Arc<SamplerProfile> {
        let dtype = || "f32".to_owned();
        Arc::new(SamplerProfile {
            engine: "test".into(),
            version: "0".into(),
            filters: vec![],
            ties: TieRule::LowerId,
            log_probs: LogProbMeaning::Drawn,
            dtypes: Dtypes { weights: dtype(), activations: dtype(), kv_cache: dtype(), head: dtype() },
        })
    }

    pub(crate) fn delta(index: u32, start: u32, tokens: &[u32], step: u64) -> Delta {
        let mut behavior = BehaviorDistribution::default();
        tokens.iter().for_each(|&token| behavior.push(&Support::singleton(TokenId(token))));
        let version = WeightVersion { epoch: 0, step };
        Delta {
            rollout: RolloutId { plan: 0, index },
            start,
            behavior,
            stamp: Stamp::declared(version, Evidence::Label("test".into())).unwrap(),
            kv: KvHistory::Fresh,
            profile: profile(),
            finish: None,
        }
    }

    pub(crate) fn last(mut delta: Delta) -> Delta {
        delta.finish = Some(FinishReason::Length);
        delta
    }

    #[test]
    fn deltas_fold_into_maximal_segments_by_version() {
        let deltas = [delta(0, 0, &[5, 6], 0), delta(0, 2, &[7], 0), last(delta(0, 3, &[8], 1))];
        let rollout = Rollout::fold(request(0, 0), deltas).unwrap();
        let lengths: Vec<usize> = rollout.segments().iter().map(|segment| segment.behavior.len()).collect();
        assert_eq!(lengths, [3, 1]);
        assert_eq!(rollout.sampled().map(|token| token.0).collect::<Vec<_>>(), [5, 6, 7, 8]);
    }

    #[test]
    fn lost_doubled_and_foreign_tokens_are_named() {
        let fold = |deltas: Vec<Delta>| Rollout::fold(request(0, 0), deltas).unwrap_err().to_string();
        let gap = fold(vec![delta(0, 0, &[5], 0), last(delta(0, 2, &[7], 0))]);
        assert_eq!(gap, "rollout p0.r0: delta starts at token 2, but 1 tokens are there");
        assert_eq!(fold(vec![delta(1, 0, &[5], 0)]), "delta of rollout p0.r1 among those of p0.r0");
        assert_eq!(fold(vec![delta(0, 0, &[5], 0)]), "rollout p0.r0: unfinished after 1 tokens");
        let after = fold(vec![last(delta(0, 0, &[5], 0)), delta(0, 1, &[5], 0)]);
        assert_eq!(after, "rollout p0.r0: a delta follows the one that finished it");
    }
}
