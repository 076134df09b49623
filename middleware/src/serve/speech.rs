//! The text side of the gateway: sessions, tokenizer and template of a model, and the parsers of its answers.

use super::{
    refusal::Refusal,
    text::{Conversation, Decode, Parse, Piece, Talk, Text},
};
use crate::session::{
    self, Answer, ChatModel, Decoder, Key, ParseFinding, Parser, Parsers, SessionError, SessionRecord, Sessions,
    Settings, Show, Shown, Turn,
};
use lockstep_core::{FinishReason, TokenId};
use serde_json::Value;
use std::{path::Path, sync::Arc};

/// A model that speaks.
#[derive(Debug)]
pub struct Speech {
    sessions: Arc<Sessions>,
    parsers: Parsers,
    calls: bool,
    stop: Vec<TokenId>,
}

impl Speech {
    /// Reads a model's directory; its answers go through the parsers of these names.
    ///
    /// # Errors
    /// Files that are missing or contradict each other, no id that ends an answer, a parser nobody knows.
    pub fn load(directory: &Path, tools: Option<&str>, reasoning: Option<&str>) -> Result<Self, SessionError> {
        let model = ChatModel::load(directory)?;
        let parsers = Parsers::named(tools, reasoning)?;
        let stop = stop_ids(directory)?;
        Ok(Self {
            sessions: Arc::new(Sessions::new(model, Settings::default())),
            parsers,
            calls: tools.is_some(),
            stop,
        })
    }

    /// Ids of the model.
    pub fn vocabulary(&self) -> u32 {
        self.sessions.model().vocabulary()
    }

    /// Sessions as a ledger kept them, in its order.
    ///
    /// # Errors
    /// Records that do not follow each other.
    pub fn restore(&self, records: Vec<SessionRecord>) -> Result<(), SessionError> {
        self.sessions.restore(records)
    }
}

/// The ids of `eos_token_id`: one or several, in `generation_config.json` or else in `config.json`.
fn stop_ids(directory: &Path) -> Result<Vec<TokenId>, SessionError> {
    for name in ["generation_config.json", "config.json"] {
        let path = directory.join(name);
        if !path.exists() {
            continue;
        }
        let bytes = std::fs::read(&path).map_err(|source| SessionError::Read { path, source })?;
        let contents = |reason: String| SessionError::Contents { file: name.to_owned(), reason };
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| contents(error.to_string()))?;
        let ids = match value.get("eos_token_id") {
            None | Some(Value::Null) => continue,
            Some(Value::Array(ids)) => ids.clone(),
            Some(id) => vec![id.clone()],
        };
        let ids = ids.into_iter().map(serde_json::from_value::<TokenId>).collect::<Result<_, _>>();
        return ids.map_err(|error| contents(format!("eos_token_id: {error}")));
    }
    let reason = "neither it nor generation_config.json has an eos_token_id, so nothing ends an answer".to_owned();
    Err(SessionError::Contents { file: "config.json".to_owned(), reason })
}

impl From<SessionError> for Refusal {
    fn from(error: SessionError) -> Self {
        let told = error.to_string();
        match error {
            SessionError::Overtaken { .. } | SessionError::Ambiguous { .. } | SessionError::HistoryChanged { .. } => {
                Self::conflict(told)
            }
            _ => Self::request(told),
        }
    }
}

struct Letters(Decoder);

impl Decode for Letters {
    fn push(&mut self, id: TokenId) -> Result<String, Refusal> {
        Ok(self.0.push(id)?)
    }

    fn finish(&mut self) -> Result<String, Refusal> {
        Ok(self.0.finish()?)
    }
}

struct Parsing(Option<Parser>);

fn piece(shown: Shown) -> Piece {
    match shown {
        Shown::Text(text) => Piece::Content(text),
        Shown::Reasoning(text) => Piece::Reasoning(text),
        Shown::Call { name, arguments, .. } => Piece::Call { name, arguments },
    }
}

fn note(findings: &[ParseFinding]) {
    for finding in findings {
        tracing::debug!(%finding, "an answer is shown as it is");
    }
}

impl Parse for Parsing {
    fn push(&mut self, text: &str) -> Vec<Piece> {
        let shown = self.0.as_mut().map(|parser| parser.push(text)).unwrap_or_default();
        shown.into_iter().map(piece).collect()
    }

    fn finish(&mut self) -> Vec<Piece> {
        let (shown, findings) = self.0.take().map(Parser::finish).unwrap_or_default();
        note(&findings);
        shown.into_iter().map(piece).collect()
    }
}

struct Talking {
    sessions: Arc<Sessions>,
    parsers: Parsers,
    turn: Turn,
}

impl Talk for Talking {
    fn prompt(&self) -> &[TokenId] {
        &self.turn.prompt
    }

    fn parser(&self) -> Box<dyn Parse> {
        Box::new(Parsing(Some(self.parsers.start(self.sessions.model(), &self.turn.prompt))))
    }

    fn commit(&self, sampled: Vec<TokenId>, finish: FinishReason, shown: Value) -> Result<SessionRecord, Refusal> {
        Ok(self.sessions.commit(&self.turn, &Answer { sampled, finish, shown })?)
    }
}

impl Text for Speech {
    fn stop_ids(&self) -> Vec<TokenId> {
        self.stop.clone()
    }

    fn encode(&self, text: &str) -> Result<Vec<TokenId>, Refusal> {
        Ok(self.sessions.model().encode(text)?)
    }

    fn decoder(&self) -> Box<dyn Decode> {
        Box::new(Letters(self.sessions.model().decoder(Show::ANSWER)))
    }

    fn shown(&self, id: TokenId) -> String {
        self.sessions.model().decode(&[id], Show::ALL).unwrap_or_else(|_| format!("token_id:{id}"))
    }

    fn turn(&self, conversation: &Conversation) -> Result<Box<dyn Talk>, Refusal> {
        let Conversation { messages, tools, variables, session } = conversation;
        if !tools.is_empty() && !self.calls {
            let known = session::TOOL_PARSERS.join(", ");
            let message =
                format!("the gateway was started without a parser for tool calls: pass --tool-parser, one of {known}");
            return Err(Refusal::field("tools", message));
        }
        let key = session.as_deref().map_or(Key::History, Key::Session);
        let said = session::Conversation { messages, tools, variables: variables.as_ref() };
        let turn = self.sessions.extend(key, said)?;
        for finding in &turn.findings {
            tracing::info!(session = turn.session, ?finding, "a turn of a conversation");
        }
        Ok(Box::new(Talking { sessions: self.sessions.clone(), parsers: self.parsers.clone(), turn }))
    }
}
