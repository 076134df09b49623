//! Conversations, token ids in and token ids out: a turn's prompt is the ids of the turn before and the ids of what is
//! new, and no answer is ever encoded again.

use super::{
    Ask, Change, ChatModel, Conversation, Finding, Limits, Policy, SessionError, SessionRecord, SessionSpan, Show,
    history::{self, Mark},
    start::{self, Sent, Start},
    store::{Session, Store, TurnEnd},
    suffix,
};
use lockstep_core::{FinishReason, TokenId};
use serde_json::Value as Json;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Which conversation a request belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key<'a> {
    /// The one of this `X-Session-ID`; it starts with its first request.
    Session(&'a str),
    /// The one whose history the messages continue, where there is exactly one.
    History,
}

/// How sessions behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// What becomes of a history that is not the one that was sampled.
    pub policy: Policy,
    /// How much is remembered.
    pub limits: Limits,
}

/// A request's place in its conversation, and what the engine is to continue.
#[derive(Debug, Clone)]
pub struct Turn {
    /// The session.
    pub session: String,
    /// The rollout within the session.
    pub branch: u32,
    /// The turn within the branch, from 0.
    pub turn: u32,
    /// What the engine gets: the ids of the turn before, then those of what is new.
    pub prompt: Vec<TokenId>,
    /// How much of the prompt was there before.
    pub known: usize,
    /// What the reader of this turn should know.
    pub findings: Vec<Finding>,
    anonymous: bool,
    /// Branch and turns of the session when this turn was made; `None` where there was none.
    base: Option<(u32, usize)>,
    tools: Vec<Json>,
    messages: Vec<Json>,
    marks: Vec<Mark>,
    /// Messages that are known to the session.
    old: usize,
}

/// What the engine answered.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The ids, stop token included where the engine gives it.
    pub sampled: Vec<TokenId>,
    /// Why it ended.
    pub finish: FinishReason,
    /// The assistant's message as the client got it.
    pub shown: Json,
}

/// All conversations of one model.
#[derive(Debug)]
pub struct Sessions {
    model: ChatModel,
    settings: Settings,
    store: Mutex<Store>,
}

impl Sessions {
    /// No conversation yet.
    pub fn new(model: ChatModel, settings: Settings) -> Self {
        Self { model, settings, store: Mutex::default() }
    }

    /// The model.
    pub fn model(&self) -> &ChatModel {
        &self.model
    }

    /// Sessions that are known.
    pub fn len(&self) -> usize {
        self.store().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Token ids that are held.
    pub fn tokens(&self) -> usize {
        self.store().tokens()
    }

    /// The prompt of a conversation's next turn: the exact ids of the last one, then what is new as the template writes it.
    ///
    /// Nothing is remembered of it before [`Sessions::commit`].
    ///
    /// # Errors
    /// A history that several sessions share; a forgotten session; nothing new to answer; under policy `keep` a history
    /// that changed other than in an answer; messages or a template that cannot be rendered.
    pub fn extend(&self, key: Key<'_>, conversation: Conversation<'_>) -> Result<Turn, SessionError> {
        let marks = history::marks(conversation.messages)?;
        let sent = Sent { tools: history::tools(conversation.tools), marks: &marks };
        let mut start = {
            let store = &mut self.store();
            match key {
                Key::Session(name) => start::named(store, name, sent, (self.settings.policy, self.settings.limits))?,
                Key::History => start::unnamed(store, sent)?,
            }
        };
        let mut prompt = self.prompt(&mut start, conversation)?;
        if self.settings.policy == Policy::Fork && !start.ids.is_empty() {
            let rendered = self.model.render(conversation, Ask::Answer)?.ids;
            if self.model.decode(&rendered, Show::ALL)? != self.model.decode(&prompt, Show::ALL)? {
                start.fork(None, 0, Change::Template);
                prompt = rendered;
            }
        }
        self.say(&mut start, &marks, conversation);
        let old = start.marks.len();
        Ok(Turn {
            session: start.session,
            branch: start.branch,
            turn: start.turn,
            known: if start.continues { start.ids.len() } else { 0 },
            prompt,
            findings: start.findings,
            anonymous: start.anonymous,
            base: start.base,
            tools: conversation.tools.to_vec(),
            messages: conversation.messages.to_vec(),
            old: if start.continues { old } else { 0 },
            marks: start.marks.into_iter().chain(marks[old..].iter().copied()).collect(),
        })
    }

    /// Adds what the new messages give to say.
    fn say(&self, start: &mut Start, marks: &[Mark], conversation: Conversation<'_>) {
        let old = start.marks.len();
        let answers = marks[old..].iter().filter(|mark| mark.is_answer()).count();
        if answers > 0 {
            start.findings.push(Finding::HistoryRendered { answers });
        }
        if let Some((message, token)) = self.model.special_as_text(&conversation.messages[old..]) {
            start.findings.push(Finding::SpecialAsText { message: old + message, token });
        }
    }

    /// Takes the answer to a turn into its session, and returns what the ledger keeps of it.
    ///
    /// A session has one answer a turn. Where a turn was found by its history, further answers to it start sessions of
    /// their own, whose prompt is observed and never trained again.
    ///
    /// # Errors
    /// No ids; an id outside the vocabulary; a shown message that is no assistant's; a session that went on meanwhile, or
    /// was forgotten, or is too long.
    pub fn commit(&self, turn: &Turn, answer: &Answer) -> Result<SessionRecord, SessionError> {
        if answer.sampled.is_empty() {
            return Err(SessionError::NoIds(turn.session.clone()));
        }
        let vocabulary = self.model.vocabulary();
        if let Some(at) = answer.sampled.iter().position(|id| id.0 >= vocabulary) {
            return Err(SessionError::OutsideVocabulary { token: answer.sampled[at], at, vocabulary });
        }
        let not_one = |what: String| SessionError::NotAnAnswer { session: turn.session.clone(), what };
        let mark = Mark::of(turn.messages.len(), &answer.shown).map_err(|error| not_one(error.to_string()))?;
        if !mark.is_answer() {
            return Err(not_one("its role is not assistant".into()));
        }
        let mut store = self.store();
        let now = store.peek(&turn.session).map(|session| (session.branch, session.turns.len()));
        let (session, known, old) = match now == turn.base {
            true => (turn.session.clone(), turn.known, turn.old),
            false if turn.anonymous => (store.free_name(), 0, 0),
            false if store.is_forgotten(&turn.session) => {
                let (session, limits) = (turn.session.clone(), self.settings.limits);
                return Err(SessionError::Forgotten { session, limits });
            }
            false => return Err(SessionError::Overtaken { session: turn.session.clone(), turn: turn.turn }),
        };
        let fresh = session != turn.session;
        let shown = turn.messages[old..].iter().chain([&answer.shown]).cloned().collect();
        let record = SessionRecord {
            branch: if fresh { 0 } else { turn.branch },
            turn: if known == 0 { 0 } else { turn.turn },
            tools: Json::Array(turn.tools.clone()).to_string(),
            messages: Json::Array(shown).to_string(),
            observed: turn.prompt[known..].to_vec(),
            sampled: answer.sampled.clone(),
            finish: answer.finish,
            session,
        };
        let marks = turn.marks.iter().chain([&mark]).copied().collect();
        self.put(&mut store, &record, marks)?;
        Ok(record)
    }

    /// Rebuilds sessions from what the ledger kept of them, in its order.
    ///
    /// # Errors
    /// Records of one session that do not follow each other, or hold no messages.
    pub fn restore(&self, records: impl IntoIterator<Item = SessionRecord>) -> Result<(), SessionError> {
        let mut store = self.store();
        for record in records {
            let wrong =
                |e: serde_json::Error| SessionError::Record { session: record.session.clone(), reason: e.to_string() };
            let messages: Vec<Json> = serde_json::from_str(&record.messages).map_err(wrong)?;
            serde_json::from_str::<Vec<Json>>(&record.tools).map_err(wrong)?;
            let before = match record.turn {
                0 => &[][..],
                _ if store.is_forgotten(&record.session) => continue,
                _ => store.peek(&record.session).map_or(&[][..], |session| &session.marks),
            };
            let marks = before.iter().copied().chain(history::marks(&messages)?).collect();
            self.put(&mut store, &record, marks)?;
        }
        Ok(())
    }

    /// What a session is made of.
    pub fn spans(&self, session: &str) -> Option<Vec<SessionSpan>> {
        let store = self.store();
        let session = store.peek(session)?;
        let (mut spans, mut from) = (Vec::new(), 0);
        for end in &session.turns {
            spans.push(SessionSpan::Observed(session.ids[from..end.prompt].to_vec()));
            spans.push(SessionSpan::Sampled(session.ids[end.prompt..end.ids].to_vec()));
            from = end.ids;
        }
        Some(spans)
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, store: &mut Store, record: &SessionRecord, marks: Vec<Mark>) -> Result<(), SessionError> {
        let tools: Vec<Json> = serde_json::from_str(&record.tools).unwrap_or_default();
        let tools = history::tools(&tools);
        let gap = |known: String| SessionError::Gap {
            session: record.session.clone(),
            branch: record.branch,
            turn: record.turn,
            known,
        };
        let known = store.peek(&record.session);
        let mut session = match (record.turn, known) {
            (0, _) => Session { branch: record.branch, tools, marks: vec![], ids: vec![], turns: vec![] },
            (_, None) => return Err(gap("nothing".into())),
            (turn, Some(known)) if known.branch == record.branch && known.turns.len() == turn as usize => known.clone(),
            (_, Some(known)) => return Err(gap(format!("branch {}, {} turns", known.branch, known.turns.len()))),
        };
        session.ids.extend_from_slice(&record.observed);
        let prompt = session.ids.len();
        session.ids.extend_from_slice(&record.sampled);
        let history = history::prefixes(session.tools, &marks).last().copied().unwrap_or_default();
        session.turns.push(TurnEnd { messages: marks.len(), prompt, ids: session.ids.len(), history });
        session.marks = marks;
        store.put(&record.session, session, self.settings.limits)
    }

    /// Ids that are there and ids of what is new, or those of all messages where nothing is there.
    fn prompt(&self, start: &mut Start, conversation: Conversation<'_>) -> Result<Vec<TokenId>, SessionError> {
        if start.ids.is_empty() {
            return Ok(self.model.render(conversation, Ask::Answer)?.ids);
        }
        let suffix = suffix::after(&self.model, conversation, start.marks.len() - 1)?.ids;
        let (owed, other) = suffix::owed(&self.model, &start.ids, &suffix)?;
        start.findings.extend(other.map(|token| Finding::OtherStop { token }));
        Ok([start.ids.as_slice(), &suffix[owed..]].concat())
    }
}
