//! What an engine's reply means, whatever the engine: rows of tokens, spans of versions, an end. Knows no dialect.

use lockstep_core::{
    TokenId,
    ports::SampleRequest,
    sampling::Truncation,
    support::{RowError, Support, SupportError},
};

/// A reply that cannot be believed. Positions count the rollout's sampled tokens, those it was resumed from included.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WireError {
    /// No JSON of the reply's shape.
    #[error("reply of {bytes} bytes cannot be read: {reason}")]
    NotAReply {
        /// What the reader says.
        reason: String,
        /// Length of the reply.
        bytes: usize,
    },
    /// The engine says that it failed.
    #[error("engine says: {0}")]
    Engine(String),
    /// Something the reply must have is not there.
    #[error("reply has no {field}: {advice}")]
    Missing {
        /// The field.
        field: &'static str,
        /// What to do about it.
        advice: &'static str,
    },
    /// Lists that do not fit together.
    #[error("from position {position}: {found} {what} for {tokens} tokens")]
    Lengths {
        /// First position of the reply's tokens.
        position: usize,
        /// The list.
        what: &'static str,
        /// Its length.
        found: usize,
        /// Tokens of the reply.
        tokens: usize,
    },
    /// A value that is no token id.
    #[error("at position {position}: {what} is {value}, which is no token id")]
    NotAnId {
        /// Its row.
        position: usize,
        /// Which id.
        what: &'static str,
        /// What stands there.
        value: String,
    },
    /// A value that is no log-probability.
    #[error("at position {position}: the {what} of token {token} is {value}")]
    NotALogProb {
        /// Its row.
        position: usize,
        /// Its token.
        token: TokenId,
        /// What it is called on the wire.
        what: &'static str,
        /// What stands there.
        value: String,
    },
    /// A row about another token than was drawn.
    #[error("at position {position}: token {token} was drawn, but the row is about token {row}")]
    OtherToken {
        /// The row.
        position: usize,
        /// The drawn token.
        token: TokenId,
        /// The row's token.
        row: TokenId,
    },
    /// A support of which only a part came.
    #[error(
        "at position {position}: {listed} ids carry mass {known}, and nothing says which ids carry the rest; {advice}"
    )]
    Incomplete {
        /// The row.
        position: usize,
        /// Ids that came.
        listed: usize,
        /// Their mass.
        known: f64,
        /// What to do about it.
        advice: &'static str,
    },
    /// Kept ids without a log-prob, though the list had room for it.
    #[error(
        "at position {position}: the mask keeps {kept} ids, but {listed} have a log-prob, though there was room for {room}"
    )]
    MaskUnlisted {
        /// The row.
        position: usize,
        /// Kept ids.
        kept: usize,
        /// Ids with a log-prob.
        listed: usize,
        /// Ids that should have one.
        room: usize,
    },
    /// Kept ids that cannot carry the mass that is missing.
    #[error(
        "at position {position}: {others} kept ids without a log-prob would carry mass {rest}, though none exceeds {bound}"
    )]
    RestTooLarge {
        /// The row.
        position: usize,
        /// Kept ids without a log-prob.
        others: usize,
        /// The mass that is missing.
        rest: f64,
        /// The smallest known probability.
        bound: f64,
    },
    /// A row that contradicts itself.
    #[error(transparent)]
    Row(#[from] RowError),
    /// Version spans that do not cover the tokens.
    #[error("version spans cover tokens {found}, the reply has {tokens}")]
    Spans {
        /// What they cover, as text.
        found: String,
        /// Tokens of the reply.
        tokens: usize,
    },
    /// A label that contradicts what was said before.
    #[error(
        "tokens {start}..{end} came while the weights were labelled {before:?}, the reply's end labels them {after:?}"
    )]
    Relabelled {
        /// First token.
        start: usize,
        /// One past the last.
        end: usize,
        /// The label that was known.
        before: String,
        /// The label of the spans.
        after: String,
    },
    /// More tokens than were asked for.
    #[error("{found} tokens, though {asked} were asked for")]
    TooMany {
        /// Tokens there are.
        found: usize,
        /// Tokens asked for.
        asked: usize,
    },
    /// An engine that did something else than it was asked.
    #[error("{field} was asked as {asked}, the engine used {used}")]
    Settings {
        /// The setting.
        field: String,
        /// What was asked.
        asked: String,
        /// What the engine echoed.
        used: String,
    },
    /// An end nobody knows.
    #[error("finish reason {0}, which is not known")]
    Finish(String),
    /// Tokens out of order.
    #[error("chunk starts at token {found}, but {expected} tokens are there")]
    Gap {
        /// Tokens so far.
        expected: usize,
        /// Start of the chunk.
        found: usize,
    },
}

/// What a reply is read against.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// Size of the vocabulary.
    pub vocabulary: u32,
    /// Log-probs kept of each position; the others become mass.
    pub head: usize,
    /// The filters, as they were sent.
    pub truncation: Truncation,
    /// Sampled tokens that were there before.
    pub resumed: usize,
    /// Tokens that may still come.
    pub remaining: usize,
    /// Tokens that end the answer.
    pub stop: Vec<TokenId>,
}

impl Asked {
    /// What `request` asks of an engine with this vocabulary.
    pub fn new(request: &SampleRequest, vocabulary: u32, head: usize) -> Self {
        let params = &request.request.params;
        let resumed = request.resumed.len();
        let remaining = (params.limits().max_new_tokens as usize).saturating_sub(resumed);
        let (truncation, stop) = (*params.truncation(), params.limits().stop.clone());
        Self { vocabulary, head, truncation, resumed, remaining, stop }
    }
}

/// Output tokens of one reply that were drawn under one label.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct VersionSpan {
    /// The engine's label.
    pub version: String,
    /// First token, counted from the first of the reply.
    pub start: usize,
    /// One past the last.
    pub end: usize,
}

/// Why a reply ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// At a stop id, or at an end-of-text id of the engine's own.
    Stop,
    /// At the token limit.
    Length,
    /// The engine broke the answer off; what is there stays, and is resumed.
    Aborted(String),
}

/// A piece of a reply.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chunk {
    /// The drawn tokens and what they were drawn from.
    pub rows: Vec<Support>,
    /// The labels of every token of the reply so far, where the piece says.
    pub versions: Option<Vec<VersionSpan>>,
    /// Set on the last piece.
    pub end: Option<End>,
}

/// Refuses spans that do not cover `0..tokens` without gap or overlap.
///
/// # Errors
/// [`WireError::Spans`].
pub fn check_spans(spans: &[VersionSpan], tokens: usize) -> Result<(), WireError> {
    let mut next = 0;
    for span in spans {
        if span.start != next || span.end < span.start {
            break;
        }
        next = span.end;
    }
    let last = spans.last().map_or(0, |span| span.end);
    if next == tokens && last == tokens {
        return Ok(());
    }
    let text: Vec<String> = spans.iter().map(|span| format!("[{}, {})", span.start, span.end)).collect();
    let found = if text.is_empty() { "none".to_owned() } else { text.join(" ") };
    Err(WireError::Spans { found, tokens })
}

/// Refuses an id the model does not have.
///
/// # Errors
/// The id with its position.
pub(crate) fn check_vocabulary(ids: &[TokenId], vocabulary: u32, position: usize) -> Result<(), WireError> {
    match ids.iter().find(|token| token.0 >= vocabulary) {
        Some(&token) => Err(SupportError::OutsideVocabulary { token, vocabulary }.at(position).into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: usize, end: usize) -> VersionSpan {
        VersionSpan { version: "e0.s1".into(), start, end }
    }

    #[test]
    fn spans_cover_every_token_once() {
        assert_eq!(check_spans(&[span(0, 43), span(43, 300)], 300), Ok(()));
        for broken in [vec![], vec![span(0, 2)], vec![span(0, 2), span(3, 4)], vec![span(0, 3), span(2, 4)]] {
            assert!(check_spans(&broken, 4).is_err(), "{broken:?}");
        }
        let error = check_spans(&[span(0, 2), span(3, 4)], 4).unwrap_err();
        assert_eq!(error.to_string(), "version spans cover tokens [0, 2) [3, 4), the reply has 4");
    }
}
