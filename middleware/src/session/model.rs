//! A model's tokenizer and chat template: text to ids once, when it enters; ids to text only to be shown.

use super::{
    Ask, Clock, Conversation, Decoder, SessionError, Show, SpecialInText, analysis, messages,
    shield::{Piece, Shield, Specials},
    template::{Sources, Template},
};
use lockstep_core::TokenId;
use serde_json::{Map, Value as Json};
use std::{
    path::Path,
    sync::{Arc, OnceLock},
};
use tokenizers::{AddedToken, Tokenizer};

/// The files of a model, read.
#[derive(Debug, Clone)]
pub struct ModelFiles {
    /// `tokenizer.json`.
    pub tokenizer: Vec<u8>,
    /// `tokenizer_config.json`; null where the model has none.
    pub tokenizer_config: Json,
    /// `chat_template.jinja`, which goes before the one in `tokenizer_config`.
    pub template: Option<String>,
    /// Ids the model can sample: `vocab_size` of `config.json`, padding included.
    pub vocabulary: u32,
}

/// How a model's chats are read and rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelOptions {
    /// What special tokens in a message's text become.
    pub special_in_text: SpecialInText,
    /// Where templates take the time from.
    pub clock: Clock,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self { special_in_text: SpecialInText::Text, clock: Clock::Local }
    }
}

/// A conversation as text and as ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// What the template wrote.
    pub text: String,
    /// Its ids.
    pub ids: Vec<TokenId>,
}

/// A tokenizer, its chat template and what is known of them. Clones share it.
#[derive(Debug, Clone)]
pub struct ChatModel(Arc<Model>);

#[derive(Debug)]
struct Model {
    tokenizer: Tokenizer,
    /// The same tokenizer, for which special tokens are text; made when first needed.
    literal: OnceLock<Tokenizer>,
    specials: Specials,
    known: usize,
    table_end: u32,
    vocabulary: u32,
    template: Option<Template>,
    options: ModelOptions,
    analysis: OnceLock<analysis::Analysis>,
}

impl ModelFiles {
    /// Reads `tokenizer.json`, `config.json`, and, where they exist, `tokenizer_config.json` and `chat_template.jinja`.
    ///
    /// # Errors
    /// A file that is missing, cannot be read, or is no JSON; a `config.json` without `vocab_size`.
    pub fn read(directory: &Path) -> Result<Self, SessionError> {
        let read = |name: &str| {
            let path = directory.join(name);
            std::fs::read(&path).map_err(|source| SessionError::Read { path, source })
        };
        let optional = |name: &str| if directory.join(name).exists() { read(name).map(Some) } else { Ok(None) };
        let json = |name: &str, bytes: &[u8]| {
            let contents = |e: serde_json::Error| SessionError::Contents { file: name.into(), reason: e.to_string() };
            serde_json::from_slice::<Json>(bytes).map_err(contents)
        };
        let config = json("config.json", &read("config.json")?)?;
        let tokenizer_config = match optional("tokenizer_config.json")? {
            Some(bytes) => json("tokenizer_config.json", &bytes)?,
            None => Json::Null,
        };
        let contents = |reason: &str, file: &str| SessionError::Contents { file: file.into(), reason: reason.into() };
        let template = match optional("chat_template.jinja")? {
            Some(bytes) => {
                Some(String::from_utf8(bytes).map_err(|_| contents("it is not UTF-8", "chat_template.jinja"))?)
            }
            None => None,
        };
        let size = config.get("vocab_size").or_else(|| config["text_config"].get("vocab_size"));
        let size = size.and_then(Json::as_u64).and_then(|size| u32::try_from(size).ok());
        let vocabulary = size.ok_or_else(|| contents("it has no vocab_size", "config.json"))?;
        Ok(Self { tokenizer: read("tokenizer.json")?, tokenizer_config, template, vocabulary })
    }
}

impl ChatModel {
    /// Reads a model's directory, with the default options.
    ///
    /// # Errors
    /// As [`ModelFiles::read`] and [`ChatModel::new`].
    pub fn load(directory: &Path) -> Result<Self, SessionError> {
        Self::new(&ModelFiles::read(directory)?, ModelOptions::default())
    }

    /// Builds a model from its files and analyses its template.
    ///
    /// # Errors
    /// A tokenizer or a template that cannot be read; a tokenizer with ids outside the model's vocabulary; added tokens of
    /// `tokenizer_config.json` that have other ids than `tokenizer.json` gives them.
    pub fn new(files: &ModelFiles, options: ModelOptions) -> Result<Self, SessionError> {
        let contents = |file: &str, reason: String| SessionError::Contents { file: file.into(), reason };
        let mut tokenizer =
            Tokenizer::from_bytes(&files.tokenizer).map_err(|error| contents("tokenizer.json", error.to_string()))?;
        add_tokens(&mut tokenizer, &files.tokenizer_config).map_err(|e| contents("tokenizer_config.json", e))?;
        let vocab = tokenizer.get_vocab(true);
        let table_end = vocab.values().max().map_or(0, |last| last + 1);
        if table_end > files.vocabulary {
            let reason = format!("vocab_size is {}, the tokenizer's last id {}", files.vocabulary, table_end - 1);
            return Err(contents("config.json", reason));
        }
        let mut special: Vec<(String, TokenId)> = tokenizer
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, token)| token.special)
            .map(|(id, token)| (token.content, TokenId(id)))
            .collect();
        special.sort_by_key(|(_, id)| *id);
        let specials = Specials::new(&special).map_err(|e| contents("tokenizer.json", e))?;
        let sources = match &files.template {
            Some(template) => Some(Sources { default: template.clone(), tool_use: None }),
            None => Sources::of(&files.tokenizer_config["chat_template"])
                .map_err(|e| contents("tokenizer_config.json", e))?,
        };
        let variables = special_variables(&files.tokenizer_config);
        let template = sources.map(|sources| Template::new(&sources, variables, options.clock)).transpose()?;
        let model = Self(Arc::new(Model {
            tokenizer,
            literal: OnceLock::new(),
            specials,
            known: vocab.len(),
            table_end,
            vocabulary: files.vocabulary,
            template,
            options,
            analysis: OnceLock::new(),
        }));
        let analysis = analysis::Analysis::of(&model)?;
        model.0.analysis.set(analysis).ok();
        Ok(model)
    }

    /// Ids the model can sample, padding included.
    pub fn vocabulary(&self) -> u32 {
        self.0.vocabulary
    }

    /// Ids the tokenizer has a text for.
    pub fn known(&self) -> usize {
        self.0.known
    }

    /// The first id after the tokenizer's table: it and those up to [`ChatModel::vocabulary`] are padding.
    pub fn table_end(&self) -> u32 {
        self.0.table_end
    }

    /// Whether the model has a chat template.
    pub fn has_template(&self) -> bool {
        self.0.template.is_some()
    }

    /// What the template does to a history; empty for one that only ever appends.
    pub fn findings(&self) -> &[analysis::TemplateFinding] {
        self.0.analysis.get().map_or(&[], |analysis| &analysis.findings)
    }

    /// What the template owes after an answer's text, such as `<|im_end|>` and a new line.
    pub fn turn_end(&self) -> &str {
        self.0.analysis.get().map_or("", |analysis| &analysis.turn_end)
    }

    /// Whether a token is special: a mark of the template, never part of a text.
    pub fn is_special(&self, token: TokenId) -> bool {
        self.0.specials.contains(token)
    }

    /// The id of a token by its whole text, such as `<|im_end|>`.
    pub fn token(&self, text: &str) -> Option<TokenId> {
        self.0.tokenizer.token_to_id(text).map(TokenId)
    }

    /// The ids of a text and nothing besides: no begin, no end. Special and added tokens in it are those tokens.
    ///
    /// # Errors
    /// A tokenizer that fails on it.
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>, SessionError> {
        encode(&self.0.tokenizer, text)
    }

    /// Text to be shown, of ids.
    ///
    /// # Errors
    /// An id outside the model's vocabulary; one without a text, where `show` refuses it.
    pub fn decode(&self, ids: &[TokenId], show: Show) -> Result<String, SessionError> {
        let mut decoder = self.decoder(show);
        let mut text = String::new();
        for &id in ids {
            text.push_str(&decoder.push(id)?);
        }
        text.push_str(&decoder.finish()?);
        Ok(text)
    }

    /// A decoder for ids that arrive one by one.
    pub fn decoder(&self, show: Show) -> Decoder {
        Decoder::new(self.clone(), show)
    }

    /// A conversation as the template writes it.
    ///
    /// # Errors
    /// No template, a message that is none, a template that refuses.
    pub fn render(&self, conversation: Conversation<'_>, ask: Ask) -> Result<Rendered, SessionError> {
        let written = self.written(conversation, ask)?;
        written.from(self, 0)
    }

    /// The text of a conversation as the template writes it, without its ids.
    ///
    /// # Errors
    /// As [`ChatModel::render`].
    pub fn text(&self, conversation: Conversation<'_>, ask: Ask) -> Result<String, SessionError> {
        let written = self.written(conversation, ask)?;
        if written.shield.is_none() { Ok(written.text) } else { Ok(written.from(self, 0)?.text) }
    }

    /// The first special token that a message's text holds and that is encoded as text: the message's place, the token.
    pub(super) fn special_as_text(&self, messages: &[Json]) -> Option<(usize, String)> {
        self.0.specials.within(messages).filter(|_| self.0.options.special_in_text == SpecialInText::Text)
    }

    /// What the template writes, special tokens of the messages still marked.
    pub(super) fn written(&self, conversation: Conversation<'_>, ask: Ask) -> Result<Written, SessionError> {
        let template = self.0.template.as_ref().ok_or(SessionError::NoTemplate)?;
        let messages = messages::for_template(conversation.messages)?;
        let (specials, tools) = (&self.0.specials, conversation.tools);
        let holds_special = specials.within(&messages).is_some() || specials.within(tools).is_some();
        if self.0.options.special_in_text == SpecialInText::Token || !holds_special {
            let text = template.render(Conversation { messages: &messages, ..conversation }, ask)?;
            return Ok(Written { text, shield: None });
        }
        let shield = Shield::outside(&[&messages, tools]);
        let shield = shield.ok_or_else(|| SessionError::Template("no character is free to mark text with".into()))?;
        let (messages, tools) = (specials.shielded(&messages, shield), specials.shielded(tools, shield));
        let text = template.render(Conversation { messages: &messages, tools: &tools, ..conversation }, ask)?;
        Ok(Written { text, shield: Some(shield) })
    }

    /// Whether the template asks for the time.
    pub(super) fn reads_clock(&self) -> bool {
        self.0.template.as_ref().is_some_and(Template::reads_clock)
    }

    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.0.tokenizer
    }

    fn literal(&self) -> &Tokenizer {
        self.0.literal.get_or_init(|| {
            let mut tokenizer = self.0.tokenizer.clone();
            tokenizer.set_encode_special_tokens(true);
            tokenizer
        })
    }
}

/// What a template wrote.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) text: String,
    shield: Option<Shield>,
}

impl Written {
    /// Text and ids from a byte on.
    pub(super) fn from(&self, model: &ChatModel, byte: usize) -> Result<Rendered, SessionError> {
        let text = &self.text[byte..];
        let Some(shield) = self.shield else {
            return Ok(Rendered { text: text.to_owned(), ids: model.encode(text)? });
        };
        let mut ids = Vec::new();
        for piece in model.0.specials.pieces(text, shield).map_err(SessionError::Template)? {
            match piece {
                Piece::Special(token) => ids.push(token),
                Piece::Text(text) => ids.extend(encode(model.literal(), &text)?),
            }
        }
        Ok(Rendered { text: shield.lifted(text), ids })
    }
}

fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<TokenId>, SessionError> {
    let failed = |e: tokenizers::Error| SessionError::Encode { bytes: text.len(), reason: e.to_string() };
    Ok(tokenizer.encode_fast(text, false).map_err(failed)?.get_ids().iter().map(|&id| TokenId(id)).collect())
}

/// `bos_token`, `eos_token` and their kind, which templates write by name.
fn special_variables(config: &Json) -> Map<String, Json> {
    let mut variables = Map::new();
    for (name, value) in config.as_object().into_iter().flatten() {
        let text = value.as_str().or_else(|| value["content"].as_str());
        if let Some(text) = text.filter(|_| name.ends_with("_token")) {
            variables.insert(name.clone(), Json::String(text.to_owned()));
        }
    }
    variables
}

/// Adds what `added_tokens_decoder` has and `tokenizer.json` lacks; ids must come out as they are written there.
fn add_tokens(tokenizer: &mut Tokenizer, config: &Json) -> Result<(), String> {
    let mut tokens = Vec::new();
    for (id, token) in config["added_tokens_decoder"].as_object().into_iter().flatten() {
        let id: u32 = id.parse().map_err(|_| format!("added_tokens_decoder: {id} is not an id"))?;
        let added: AddedToken = serde_json::from_value(with_defaults(token))
            .map_err(|error| format!("added_tokens_decoder {id}: {error}"))?;
        tokens.push((id, added));
    }
    tokens.sort_by_key(|(id, _)| *id);
    for (id, added) in tokens {
        if tokenizer.token_to_id(&added.content).is_none() {
            tokenizer.add_tokens([added.clone()]).map_err(|error| format!("{}: {error}", added.content))?;
        }
        let found = tokenizer.token_to_id(&added.content);
        if found != Some(id) {
            let found = found.map_or_else(|| "none".to_owned(), |id| id.to_string());
            return Err(format!("{} has id {id} there and {found} in tokenizer.json", added.content));
        }
    }
    Ok(())
}

fn with_defaults(token: &Json) -> Json {
    let field = |name: &str| token[name].as_bool().unwrap_or(false);
    serde_json::json!({
        "content": token["content"],
        "single_word": field("single_word"),
        "lstrip": field("lstrip"),
        "rstrip": field("rstrip"),
        "normalized": field("normalized"),
        "special": field("special"),
    })
}
