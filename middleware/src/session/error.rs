//! What a conversation is refused for.

use lockstep_core::TokenId;
use std::path::PathBuf;

/// A conversation, a model's files or an answer that cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A file of the model cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What came back.
        #[source]
        source: std::io::Error,
    },
    /// A file of the model does not hold what it should.
    #[error("{file}: {reason}")]
    Contents {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A model that only completes.
    #[error("the model has no chat template: give chat_template.jinja, or chat_template in tokenizer_config.json")]
    NoTemplate,
    /// The template fails, or says no.
    #[error("the chat template refuses: {0}")]
    Template(String),
    /// A message is not one.
    #[error("message {at}: {what}")]
    Message {
        /// Its place, from 0.
        at: usize,
        /// What is wrong with it.
        what: String,
    },
    /// The tokenizer fails on a text.
    #[error("a text of {bytes} bytes has no ids: {reason}")]
    Encode {
        /// Its length.
        bytes: usize,
        /// What the tokenizer says.
        reason: String,
    },
    /// The tokenizer fails on ids.
    #[error("{ids} ids have no text: {reason}")]
    Decode {
        /// How many there are.
        ids: usize,
        /// What the tokenizer says.
        reason: String,
    },
    /// An id the model cannot sample.
    #[error("token {token} at position {at} is outside the model's vocabulary of {vocabulary}")]
    OutsideVocabulary {
        /// The id.
        token: TokenId,
        /// Its place, from 0.
        at: usize,
        /// Ids of the model.
        vocabulary: u32,
    },
    /// An id the model can sample and the tokenizer does not know: padding of the embedding.
    #[error("token {token} at position {at} has no text: the tokenizer knows {known} of the model's {vocabulary} ids")]
    NoText {
        /// The id.
        token: TokenId,
        /// Its place, from 0.
        at: usize,
        /// Ids the tokenizer has a text for.
        known: usize,
        /// Ids of the model.
        vocabulary: u32,
    },
    /// The template does not show where an answer ends.
    #[error("the chat template shows the answer of message {at} {times} times, so what follows it cannot be told")]
    AnswerNotShown {
        /// The message.
        at: usize,
        /// How often it is there.
        times: usize,
    },
    /// Nothing to answer.
    #[error("session {session}: all {messages} messages are known already; there is no new one to answer")]
    NothingNew {
        /// The session.
        session: String,
        /// Messages sent.
        messages: usize,
    },
    /// More than one session could be meant.
    #[error(
        "{sessions} sessions share this history of {messages} messages: send the id of the one that is meant as X-Session-ID"
    )]
    Ambiguous {
        /// How many there are.
        sessions: usize,
        /// Length of the history they share.
        messages: usize,
    },
    /// Put away to make room.
    #[error(
        "session {session} was forgotten to make room ({limits}): its ids are no longer known here; start a new session"
    )]
    Forgotten {
        /// The session.
        session: String,
        /// The limits.
        limits: super::Limits,
    },
    /// A conversation that no limit allows.
    #[error("session {session}: {tokens} tokens are over the limit of {limit} for all sessions together")]
    TooLong {
        /// The session.
        session: String,
        /// Its tokens.
        tokens: usize,
        /// The limit.
        limit: usize,
    },
    /// The client's history is another one, and the policy is `keep`.
    #[error(
        "session {session}: {change}; ids are kept as sampled (policy keep), so send what was shown, or use policy fork"
    )]
    HistoryChanged {
        /// The session.
        session: String,
        /// How it differs.
        change: super::Change,
    },
    /// Somebody else went on with it.
    #[error("session {session}: another answer was taken for turn {turn} meanwhile; a session has one answer a turn")]
    Overtaken {
        /// The session.
        session: String,
        /// The turn.
        turn: u32,
    },
    /// An answer without ids.
    #[error("session {0}: the answer has no token ids, and they are never made from its text")]
    NoIds(String),
    /// What was shown is no answer.
    #[error("session {session}: what was shown is not an assistant's message: {what}")]
    NotAnAnswer {
        /// The session.
        session: String,
        /// What is wrong with it.
        what: String,
    },
    /// Records that do not follow each other.
    #[error("session {session}: a record of branch {branch}, turn {turn} follows {known}")]
    Gap {
        /// The session.
        session: String,
        /// The record's branch.
        branch: u32,
        /// The record's turn.
        turn: u32,
        /// What is there.
        known: String,
    },
    /// A record that holds no JSON.
    #[error("session {session}: its record does not hold messages: {reason}")]
    Record {
        /// The session.
        session: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Segments that are not the session's.
    #[error("session {session}: its segments hold {found} at sampled position {at}, the session {expected}")]
    OtherIds {
        /// The session.
        session: String,
        /// Place among the sampled ids, from 0.
        at: usize,
        /// What the session has there.
        expected: String,
        /// What the segments have there.
        found: String,
    },
    /// A parser nobody has.
    #[error("there is no {kind} parser {name:?}: choose one of {known}")]
    UnknownParser {
        /// What it would parse.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The names there are.
        known: String,
    },
}
