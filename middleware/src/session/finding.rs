//! What was found out about a turn, each in one sentence. Nothing here is an error, and none of it is silent.

use super::history::Benign;
use lockstep_core::TokenId;
use std::fmt;

/// What becomes of a conversation whose history is not the one that was sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The sampled ids stay. An answer the client edited, and what the template would rewrite, is said and not done; any
    /// other change of the history is refused.
    #[default]
    Keep,
    /// A new rollout starts: from the ids of the turns that are unchanged, and the rest as the template renders it. The
    /// old rollout ends as it is.
    Fork,
}

/// How a history differs from the one that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// An answer is not the one that was shown.
    Answer {
        /// Its place among the messages, from 0.
        message: usize,
    },
    /// Another message is not the one that was sent before.
    Message {
        /// Its place, from 0.
        message: usize,
    },
    /// The tools are others.
    Tools,
    /// Messages that are known are not there.
    Shorter {
        /// Messages sent.
        sent: usize,
        /// Messages known.
        known: usize,
    },
    /// The template writes the history otherwise than it was.
    Template,
}

/// Something a turn did that its reader should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// Answers of others in a history: few-shot examples, or a conversation that began elsewhere.
    HistoryRendered {
        /// How many.
        answers: usize,
    },
    /// The client's history has another answer than was shown; policy `keep`.
    EditedAnswerKept {
        /// Its place among the messages, from 0.
        message: usize,
    },
    /// An answer came back written otherwise; nothing follows from it.
    Benign {
        /// Its place, from 0.
        message: usize,
        /// How it differs.
        how: Benign,
    },
    /// A new rollout began; policy `fork`.
    Forked {
        /// Why.
        change: Change,
        /// Turns whose ids it starts with.
        kept: usize,
    },
    /// A new session began with the ids of another one's turns.
    Branched {
        /// The other one.
        session: String,
        /// How many turns.
        turns: usize,
    },
    /// The answer before ended with another special token than the template's turns do.
    OtherStop {
        /// The token.
        token: TokenId,
    },
    /// A message holds the text of a special token, which was encoded as text.
    SpecialAsText {
        /// Its place, from 0.
        message: usize,
        /// The token's text.
        token: String,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer { message } => write!(f, "message {message} is not the answer that was shown"),
            Self::Message { message } => write!(f, "message {message} is not the one that was sent before"),
            Self::Tools => write!(f, "the tools are not those of the turns before"),
            Self::Shorter { sent, known } => write!(f, "the history has {sent} messages of the {known} that are known"),
            Self::Template => write!(f, "the chat template writes the history otherwise than it was sampled"),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HistoryRendered { answers } => {
                write!(f, "{answers} answers of the history were not sampled here: their ids are those of their text")
            }
            Self::EditedAnswerKept { message } => {
                write!(f, "message {message} is not the answer that was shown: the sampled ids stay")
            }
            Self::Benign { message, how: Benign::ReasoningDropped } => {
                write!(f, "message {message} came back without its reasoning: the sampled ids stay")
            }
            Self::Benign { message, how: Benign::Rewritten } => {
                write!(f, "message {message} came back with other white space or JSON: the sampled ids stay")
            }
            Self::Forked { change, kept } => {
                write!(f, "{change}: a new rollout starts from {kept} unchanged turns and the rendered rest")
            }
            Self::Branched { session, turns } => {
                write!(f, "a new session starts from the ids of the first {turns} turns of session {session}")
            }
            Self::OtherStop { token } => {
                write!(f, "the answer before ended with token {token}, and the template's end of a turn follows it")
            }
            Self::SpecialAsText { message, token } => {
                write!(
                    f,
                    "message {message} holds the text {token}, which is encoded as text and ends or starts nothing"
                )
            }
        }
    }
}
