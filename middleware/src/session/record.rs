//! What of a turn outlives the process, and what a session is made of.

use lockstep_core::{FinishReason, Segment, Span, TokenId};
use serde::{Deserialize, Serialize};

use super::SessionError;

/// One turn, as the ledger keeps it: enough to rebuild its session with those before it.
///
/// All fields are plain, so that any format of serde can hold it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// The session.
    pub session: String,
    /// 0, and one more with each fork: the rollout within the session. A fork ends the rollout before it.
    pub branch: u32,
    /// The turn within the branch, from 0.
    pub turn: u32,
    /// JSON: the tools of the conversation.
    pub tools: String,
    /// JSON: the messages of this turn, as they were shown, its answer at the end; with turn 0, all there are.
    pub messages: String,
    /// What was rendered: the whole prompt with turn 0, later what follows the ids that are there.
    pub observed: Vec<TokenId>,
    /// What was sampled.
    pub sampled: Vec<TokenId>,
    /// Why the answer ended.
    pub finish: FinishReason,
}

/// Ids of one origin within a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionSpan {
    /// Prompt, tool output, the end of a turn: never trained.
    Observed(Vec<TokenId>),
    /// Drawn by the sampler.
    Sampled(Vec<TokenId>),
}

impl SessionSpan {
    /// Its ids.
    pub fn tokens(&self) -> &[TokenId] {
        match self {
            Self::Observed(tokens) | Self::Sampled(tokens) => tokens,
        }
    }
}

/// The spans of a session with what the ledger knows of its sampled tokens: `answers` holds the segments of each turn, in
/// order.
///
/// # Errors
/// Segments that hold other ids than the session.
pub fn join<'a>(
    session: &str,
    spans: &'a [SessionSpan],
    answers: &[&'a [Segment]],
) -> Result<Vec<Span<'a>>, SessionError> {
    let (mut joined, mut answers, mut place) = (Vec::new(), answers.iter(), 0);
    for span in spans {
        let expected = match span {
            SessionSpan::Observed(tokens) => {
                joined.push(Span::Observed(tokens));
                continue;
            }
            SessionSpan::Sampled(tokens) => tokens,
        };
        let segments: &[Segment] = answers.next().copied().unwrap_or_default();
        let found: Vec<TokenId> = segments.iter().flat_map(|s| s.behavior.tokens().iter().copied()).collect();
        if let Some(at) = (0..expected.len().max(found.len())).find(|&at| expected.get(at) != found.get(at)) {
            let name = |token: Option<&TokenId>| token.map_or_else(|| "nothing".to_owned(), |id| format!("token {id}"));
            let (expected, found) = (name(expected.get(at)), name(found.get(at)));
            return Err(SessionError::OtherIds { session: session.into(), at: place + at, expected, found });
        }
        place += expected.len();
        joined.extend(segments.iter().map(Span::Sampled));
    }
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_core::{
        BehaviorDistribution, Evidence, SamplerProfile, Stamp, Support, WeightVersion,
        delta::KvHistory,
        profile::{Dtypes, LogProbMeaning, TieRule},
    };
    use std::sync::Arc;

    fn ids(ids: &[u32]) -> Vec<TokenId> {
        ids.iter().map(|&id| TokenId(id)).collect()
    }

    fn segment(tokens: &[u32]) -> Segment {
        let dtype = || "f32".to_owned();
        let profile = SamplerProfile {
            engine: "test".into(),
            version: "0".into(),
            filters: vec![],
            ties: TieRule::LowerId,
            log_probs: LogProbMeaning::Drawn,
            dtypes: Dtypes { weights: dtype(), activations: dtype(), kv_cache: dtype(), head: dtype() },
        };
        let mut behavior = BehaviorDistribution::default();
        ids(tokens).iter().for_each(|&token| behavior.push(&Support::singleton(token)));
        let evidence = Evidence::Label("test".into());
        let stamp = Stamp::declared(WeightVersion { epoch: 0, step: 0 }, evidence).unwrap();
        Segment { behavior, stamp, kv: KvHistory::Fresh, profile: Arc::new(profile) }
    }

    #[test]
    fn spans_are_joined_with_their_segments() {
        let spans = [
            SessionSpan::Observed(ids(&[1, 2])),
            SessionSpan::Sampled(ids(&[3, 4, 5])),
            SessionSpan::Observed(ids(&[6])),
            SessionSpan::Sampled(ids(&[7])),
        ];
        let (first, second) = ([segment(&[3, 4]), segment(&[5])], [segment(&[7])]);
        let joined = join("a", &spans, &[&first, &second]).unwrap();
        let (one, two) = (ids(&[1, 2]), ids(&[6]));
        let expected = [
            Span::Observed(&one),
            Span::Sampled(&first[0]),
            Span::Sampled(&first[1]),
            Span::Observed(&two),
            Span::Sampled(&second[0]),
        ];
        assert_eq!(joined, expected);
    }

    #[test]
    fn segments_of_other_ids_are_named() {
        let spans = [SessionSpan::Observed(ids(&[1])), SessionSpan::Sampled(ids(&[3, 4]))];
        let refused = |segments: &[Segment]| join("a", &spans, &[segments]).unwrap_err().to_string();
        let other = refused(&[segment(&[3, 9])]);
        assert_eq!(other, "session a: its segments hold token 9 at sampled position 1, the session token 4");
        let short = refused(&[segment(&[3])]);
        assert_eq!(short, "session a: its segments hold nothing at sampled position 1, the session token 4");
        assert!(join("a", &spans, &[]).is_err(), "no segments at all");
    }
}
