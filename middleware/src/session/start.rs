//! Where a request's conversation goes on: at the end of a session, at an earlier turn of it, or at its beginning.

use super::{
    Change, Finding, Limits, Policy, SessionError,
    history::{self, Digest, Likeness, Mark},
    store::{Session, Store},
};
use lockstep_core::TokenId;
use std::collections::BTreeSet;

/// Where a turn starts from.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) session: String,
    /// Whether the session was found by its history, or is to be found by it.
    pub(super) anonymous: bool,
    /// Branch and turns of the session as it is; `None` where there is none.
    pub(super) base: Option<(u32, usize)>,
    pub(super) branch: u32,
    pub(super) turn: u32,
    /// Whether the session's own rollout goes on.
    pub(super) continues: bool,
    /// Ids that are there.
    pub(super) ids: Vec<TokenId>,
    /// Marks of the messages they stand for, as those were shown.
    pub(super) marks: Vec<Mark>,
    pub(super) findings: Vec<Finding>,
}

/// What a request says of its history.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent<'a> {
    pub(super) tools: Digest,
    pub(super) marks: &'a [Mark],
}

impl Start {
    fn new(session: String, anonymous: bool) -> Self {
        let (ids, marks, findings) = (Vec::new(), Vec::new(), Vec::new());
        Self { session, anonymous, base: None, branch: 0, turn: 0, continues: false, ids, marks, findings }
    }

    fn at_end(name: &str, anonymous: bool, session: &Session) -> Self {
        Self {
            session: name.to_owned(),
            anonymous,
            base: Some((session.branch, session.turns.len())),
            branch: session.branch,
            turn: session.turns.len() as u32,
            continues: true,
            ids: session.ids.clone(),
            marks: session.marks.clone(),
            findings: Vec::new(),
        }
    }

    /// A new rollout that shares the first `kept` turns with the old one.
    pub(super) fn fork(&mut self, session: Option<&Session>, kept: usize, change: Change) {
        let branch = self.base.map_or(0, |(branch, _)| branch + 1);
        (self.branch, self.turn, self.continues) = (branch, 0, false);
        self.first_turns(session, kept);
        self.findings
            .retain(|finding| !matches!(finding, Finding::OtherStop { .. } | Finding::EditedAnswerKept { .. }));
        self.findings.push(Finding::Forked { change, kept });
    }

    fn first_turns(&mut self, session: Option<&Session>, kept: usize) {
        let end = kept.checked_sub(1).and_then(|last| session.map(|session| (session, &session.turns[last])));
        self.ids = end.map(|(session, end)| session.ids[..end.ids].to_vec()).unwrap_or_default();
        self.marks = end.map(|(session, end)| session.marks[..end.messages].to_vec()).unwrap_or_default();
    }
}

/// The session of this name.
///
/// # Errors
/// It was forgotten; its history changed and the policy is `keep`; nothing is new.
pub(super) fn named(
    store: &mut Store,
    name: &str,
    sent: Sent<'_>,
    (policy, limits): (Policy, Limits),
) -> Result<Start, SessionError> {
    let Some(session) = store.session(name) else {
        if store.is_forgotten(name) {
            return Err(SessionError::Forgotten { session: name.into(), limits });
        }
        let mut start = Start::new(name.to_owned(), false);
        if let Ok(Some(found)) = place(store, sent) {
            branch(&mut start, store, &found);
        }
        return Ok(start);
    };
    let compared = Compared::of(session, sent);
    let mut start = Start::at_end(name, false, session);
    let nothing_new = || SessionError::NothingNew { session: name.into(), messages: sent.marks.len() };
    match (compared.first(policy), policy) {
        (None, _) if sent.marks.len() == session.marks.len() => return Err(nothing_new()),
        (None, _) => start.findings.extend(compared.findings),
        (Some((change, _)), Policy::Keep) => {
            return Err(SessionError::HistoryChanged { session: name.into(), change });
        }
        (Some((change, at)), Policy::Fork) => {
            let unchanged = at.min(sent.marks.len().saturating_sub(1));
            let kept = session.turns.iter().take_while(|end| end.messages <= unchanged).count();
            start.fork(Some(session), kept, change);
        }
    }
    Ok(start)
}

/// The session whose history these messages continue, or a new one.
///
/// # Errors
/// Several sessions could be meant.
pub(super) fn unnamed(store: &mut Store, sent: Sent<'_>) -> Result<Start, SessionError> {
    let found = place(store, sent)?;
    let Some(found) = found else { return Ok(Start::new(store.free_name(), true)) };
    if !found.at_end {
        let mut start = Start::new(store.free_name(), true);
        branch(&mut start, store, &found);
        return Ok(start);
    }
    let session = store.session(&found.session).ok_or(SessionError::Ambiguous { sessions: 0, messages: 0 })?;
    let mut start = Start::at_end(&found.session, true, session);
    start.findings = Compared::of(session, sent).findings;
    Ok(start)
}

fn branch(start: &mut Start, store: &Store, found: &Found) {
    start.first_turns(store.peek(&found.session), found.turns);
    start.findings.push(Finding::Branched { session: found.session.clone(), turns: found.turns });
}

/// A history that was found: so many turns of this session.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    session: String,
    turns: usize,
    /// Whether the session ends there.
    at_end: bool,
}

/// The longest known history that these messages continue. Several sessions that have it are told apart by the ids of their
/// tool calls; what remains is unambiguous where all have the same token ids and at most one ends there.
fn place(store: &Store, sent: Sent<'_>) -> Result<Option<Found>, SessionError> {
    let prefixes = history::prefixes(sent.tools, sent.marks);
    for (messages, prefix) in prefixes.iter().enumerate().take(sent.marks.len()).skip(1).rev() {
        let mut found: Vec<(Found, &Session)> = Vec::new();
        for (session, turns) in store.ending(prefix) {
            let Some(known) = store.peek(&session) else { continue };
            let pairs = || known.marks.iter().zip(sent.marks).take(messages);
            if pairs().all(|(shown, sent)| shown.likeness(sent) != Likeness::Other) {
                found.push((Found { session, turns, at_end: turns == known.turns.len() }, known));
            }
        }
        let same_calls =
            |known: &Session| known.marks.iter().zip(sent.marks).take(messages).all(|(a, b)| a.same_calls(b));
        if found.iter().any(|(_, known)| same_calls(known)) {
            found.retain(|(_, known)| same_calls(known));
        }
        let histories: BTreeSet<&[TokenId]> =
            found.iter().map(|(found, known)| &known.ids[..known.turns[found.turns - 1].ids]).collect();
        let ends = found.iter().filter(|(found, _)| found.at_end).count();
        if histories.len() > 1 || ends > 1 {
            return Err(SessionError::Ambiguous { sessions: found.len(), messages });
        }
        let best = found.into_iter().map(|(found, _)| found).min_by_key(|found| !found.at_end);
        if best.is_some() {
            return Ok(best);
        }
    }
    Ok(None)
}

/// A history that was sent, held against the one that is known.
struct Compared {
    edited: Option<usize>,
    change: Option<(Change, usize)>,
    findings: Vec<Finding>,
}

impl Compared {
    fn of(session: &Session, sent: Sent<'_>) -> Self {
        let mut compared = Self { edited: None, change: None, findings: Vec::new() };
        if session.tools != sent.tools {
            compared.change = Some((Change::Tools, 0));
            return compared;
        }
        for (message, (shown, came)) in session.marks.iter().zip(sent.marks).enumerate() {
            match shown.likeness(came) {
                Likeness::Same => {}
                Likeness::Benign(how) => compared.findings.push(Finding::Benign { message, how }),
                Likeness::Other if shown.is_answer() && came.is_answer() => {
                    compared.edited = compared.edited.or(Some(message));
                    compared.findings.push(Finding::EditedAnswerKept { message });
                }
                Likeness::Other => {
                    compared.change = Some((Change::Message { message }, message));
                    return compared;
                }
            }
        }
        let (sent, known) = (sent.marks.len(), session.marks.len());
        if sent < known {
            compared.change = Some((Change::Shorter { sent, known }, sent));
        }
        compared
    }

    /// The first change that the policy does not bear, and its place.
    fn first(&self, policy: Policy) -> Option<(Change, usize)> {
        let edited = self.edited.filter(|_| policy == Policy::Fork);
        let edited = edited.map(|message| (Change::Answer { message }, message));
        edited.into_iter().chain(self.change.clone()).min_by_key(|(_, at)| *at)
    }
}
