//! The sessions that are known, within limits, and which of them a history can mean.

use super::{
    SessionError,
    history::{self, Digest, Mark},
};
use lockstep_core::TokenId;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

/// How much is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Sessions; the one used longest ago is forgotten first.
    pub sessions: usize,
    /// Token ids of all sessions together, 4 bytes each.
    pub tokens: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { sessions: 65_536, tokens: 256 << 20 }
    }
}

impl std::fmt::Display for Limits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} sessions, {} tokens", self.sessions, self.tokens)
    }
}

/// Names of forgotten sessions that are remembered, for each session that may be known: 16 bytes each.
const FORGOTTEN_FOR_EACH: usize = 16;

/// The end of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TurnEnd {
    /// Messages up to it, the answer's included.
    pub(super) messages: usize,
    /// Ids before the answer.
    pub(super) prompt: usize,
    /// Ids up to its end.
    pub(super) ids: usize,
    /// The mark of the history up to it.
    pub(super) history: Digest,
}

/// One conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) branch: u32,
    pub(super) tools: Digest,
    pub(super) marks: Vec<Mark>,
    pub(super) ids: Vec<TokenId>,
    pub(super) turns: Vec<TurnEnd>,
}

/// Where a history that was sent goes on: a session, and how many of its turns are in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    number: u64,
    /// Turns.
    pub(super) turns: usize,
}

#[derive(Debug, Default)]
pub(super) struct Store {
    sessions: HashMap<String, (u64, u64, Session)>,
    names: HashMap<u64, String>,
    used: BTreeMap<u64, String>,
    ends: HashMap<Digest, BTreeSet<Place>>,
    tokens: usize,
    clock: u64,
    numbers: u64,
    anonymous: u64,
    forgotten: HashSet<Digest>,
    forgotten_order: VecDeque<Digest>,
}

impl Store {
    /// A session by its name, which counts as used now.
    pub(super) fn session(&mut self, name: &str) -> Option<&Session> {
        self.clock += 1;
        let (_, used, session) = self.sessions.get_mut(name)?;
        self.used.remove(used);
        *used = self.clock;
        self.used.insert(self.clock, name.to_owned());
        Some(session)
    }

    /// A session by its name.
    pub(super) fn peek(&self, name: &str) -> Option<&Session> {
        self.sessions.get(name).map(|(_, _, session)| session)
    }

    /// Whether the session was known and is not any more.
    pub(super) fn is_forgotten(&self, name: &str) -> bool {
        self.forgotten.contains(&history::short(name.as_bytes()))
    }

    /// Sessions that are known.
    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Ids that are held.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// A name that no session has or had.
    pub(super) fn free_name(&mut self) -> String {
        loop {
            self.anonymous += 1;
            let name = format!("history-{}", self.anonymous);
            if self.peek(&name).is_none() && !self.is_forgotten(&name) {
                return name;
            }
        }
    }

    /// The turns that end with this history, of all sessions, with the names of these.
    pub(super) fn ending(&self, history: &Digest) -> Vec<(String, usize)> {
        let places = self.ends.get(history).into_iter().flatten();
        places.filter_map(|place| Some((self.names.get(&place.number)?.clone(), place.turns))).collect()
    }

    /// Puts a session in the place of the one of its name, and forgets others until the limits hold.
    pub(super) fn put(&mut self, name: &str, session: Session, limits: Limits) -> Result<(), SessionError> {
        let tokens = session.ids.len();
        if tokens > limits.tokens {
            return Err(SessionError::TooLong { session: name.into(), tokens, limit: limits.tokens });
        }
        self.take(name);
        (self.clock, self.numbers) = (self.clock + 1, self.numbers + 1);
        for (turn, end) in session.turns.iter().enumerate() {
            self.ends.entry(end.history).or_default().insert(Place { number: self.numbers, turns: turn + 1 });
        }
        self.tokens += tokens;
        self.names.insert(self.numbers, name.to_owned());
        self.used.insert(self.clock, name.to_owned());
        self.sessions.insert(name.to_owned(), (self.numbers, self.clock, session));
        self.shrink(limits);
        Ok(())
    }

    fn shrink(&mut self, limits: Limits) {
        while self.sessions.len() > limits.sessions.max(1) || self.tokens > limits.tokens {
            let Some((_, oldest)) = self.used.first_key_value() else { break };
            let oldest = oldest.clone();
            self.take(&oldest);
            let name = history::short(oldest.as_bytes());
            if self.forgotten.insert(name) {
                self.forgotten_order.push_back(name);
            }
            if self.forgotten_order.len() > FORGOTTEN_FOR_EACH * limits.sessions {
                self.forgotten_order.pop_front().inspect(|name| {
                    self.forgotten.remove(name);
                });
            }
        }
    }

    fn take(&mut self, name: &str) {
        let Some((number, used, session)) = self.sessions.remove(name) else { return };
        self.used.remove(&used);
        self.names.remove(&number);
        self.tokens -= session.ids.len();
        for (turn, end) in session.turns.iter().enumerate() {
            let Some(places) = self.ends.get_mut(&end.history) else { continue };
            places.remove(&Place { number, turns: turn + 1 });
            if places.is_empty() {
                self.ends.remove(&end.history);
            }
        }
    }
}
