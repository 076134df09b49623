//! A chat template as `transformers` runs it: the same filters, the same functions, the same white space.
//!
//! Knows text alone; token ids are [`super::model`]'s.

use super::{SessionError, json};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value, syntax::SyntaxConfig, value::Serde};
use serde_json::{Map, Value as Json};

/// Steps a template may take: a thousand times what a long conversation needs.
const FUEL: u64 = 1 << 30;

/// Whether a rendering ends with what makes the model answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// `add_generation_prompt=True`.
    Answer,
    /// `add_generation_prompt=False`.
    Nothing,
}

/// What is rendered: messages as the client sent them, fields nobody knows included.
#[derive(Debug, Clone, Copy)]
pub struct Conversation<'a> {
    /// The messages.
    pub messages: &'a [Json],
    /// The tools, in the client's order of keys; empty where there are none.
    pub tools: &'a [Json],
    /// `chat_template_kwargs`, such as `enable_thinking`.
    pub variables: Option<&'a Map<String, Json>>,
}

impl<'a> Conversation<'a> {
    /// Messages and tools, and no variables.
    pub fn new(messages: &'a [Json], tools: &'a [Json]) -> Self {
        Self { messages, tools, variables: None }
    }
}

/// Where `strftime_now` takes the time from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// This machine's clock and time zone.
    Local,
    /// Always this many seconds after 1970, in UTC.
    Fixed(i64),
}

/// The templates of a model.
#[derive(Debug)]
pub(super) struct Template {
    env: Environment<'static>,
    has_tool_use: bool,
    reads_clock: bool,
    special: Map<String, Json>,
}

const DEFAULT: &str = "chat_template";
const TOOL_USE: &str = "chat_template (tool_use)";

impl Template {
    /// Compiles the template, and the one for conversations with tools where there is another.
    pub(super) fn new(sources: &Sources, special: Map<String, Json>, clock: Clock) -> Result<Self, SessionError> {
        let mut env = Environment::new();
        let white_space = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(white_space.map_err(|error| SessionError::Template(reason(&error)))?);
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.set_fuel(Some(FUEL));
        env.add_filter("tojson", json::tojson);
        env.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        env.add_function("strftime_now", move |format: String| now(clock, &format));
        let mut add = |name: &'static str, source: &str| {
            let contents = |e: Error| SessionError::Contents { file: name.into(), reason: reason(&e) };
            env.add_template_owned(name, without_generation_tags(source)).map_err(contents)
        };
        add(DEFAULT, &sources.default)?;
        if let Some(source) = &sources.tool_use {
            add(TOOL_USE, source)?;
        }
        let reads_clock = sources.default.contains("strftime_now");
        Ok(Self { env, has_tool_use: sources.tool_use.is_some(), reads_clock, special })
    }

    /// Whether it asks for the time.
    pub(super) fn reads_clock(&self) -> bool {
        self.reads_clock
    }

    /// The text of a conversation whose messages are already as templates expect them.
    pub(super) fn render(&self, conversation: Conversation<'_>, ask: Ask) -> Result<String, SessionError> {
        let tools = !conversation.tools.is_empty();
        let name = if tools && self.has_tool_use { TOOL_USE } else { DEFAULT };
        let mut context = self.special.clone();
        context.insert("messages".into(), Json::Array(conversation.messages.to_vec()));
        context.insert("tools".into(), if tools { Json::Array(conversation.tools.to_vec()) } else { Json::Null });
        context.insert("documents".into(), Json::Null);
        context.insert("add_generation_prompt".into(), Json::Bool(ask == Ask::Answer));
        for (name, value) in conversation.variables.into_iter().flatten() {
            context.insert(name.clone(), value.clone());
        }
        let template = self.env.get_template(name);
        let text = template.and_then(|template| template.render(Value::from(Serde(&context))));
        text.map_err(|error| SessionError::Template(reason(&error)))
    }
}

/// The sources of a model's templates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sources {
    /// For every conversation, or for those without tools.
    pub(super) default: String,
    /// For conversations with tools, where the model has such a template.
    pub(super) tool_use: Option<String>,
}

impl Sources {
    /// `chat_template` of a `tokenizer_config.json`: a string, or a list of named ones.
    pub(super) fn of(value: &Json) -> Result<Option<Self>, String> {
        if value.is_null() {
            return Ok(None);
        }
        if let Some(default) = value.as_str() {
            return Ok(Some(Self { default: default.to_owned(), tool_use: None }));
        }
        let named = |name: &str| {
            let list = value.as_array().into_iter().flatten();
            let one = list.into_iter().find(|one| one["name"] == name)?;
            one["template"].as_str().map(str::to_owned)
        };
        let default = named("default").ok_or("chat_template is neither a text nor a list with a default")?;
        Ok(Some(Self { default, tool_use: named("tool_use") }))
    }
}

/// `{% generation %}` marks the model's own tokens for a trainer's mask and writes nothing.
fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let Some(end) = rest[at..].find("%}").map(|end| at + end + 2) else { break };
        let tag = &rest[at..end];
        text.push_str(&rest[..at]);
        let word = tag.trim_matches(['{', '%', '}', '-', '+', ' ', '\n', '\t']);
        match word {
            "generation" => text.push_str(&tag.replace(word, "if true")),
            "endgeneration" => text.push_str(&tag.replace(word, "endif")),
            _ => text.push_str(tag),
        }
        rest = &rest[end..];
    }
    text.push_str(rest);
    text
}

fn now(clock: Clock, format: &str) -> Result<String, Error> {
    let wrong = |error: jiff::Error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}"));
    let now = match clock {
        Clock::Local => jiff::Zoned::now(),
        Clock::Fixed(seconds) => {
            jiff::Timestamp::from_second(seconds).map_err(wrong)?.to_zoned(jiff::tz::TimeZone::UTC)
        }
    };
    jiff::fmt::strtime::format(format, &now).map_err(wrong)
}

fn reason(error: &Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) if error.kind() != ErrorKind::InvalidOperation => format!("{what} (line {line})"),
        _ => what,
    }
}
