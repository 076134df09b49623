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
