//! Faults of chat templates: histories written anew.

use crate::{check::Fault, target::Target, template::ChatTemplate};
use serde_json::{Value, json};
use std::sync::Arc;

/// Strips thinking.
pub const THINKING_STRIPPED: Fault = Fault {
    id: "thinking-stripped",
    does: "strips thinking from answers that a user's message follows",
    break_target: |target| rewriting(target, thinking_stripped),
};

/// Inserts an empty think block.
pub const EMPTY_THINK: Fault = Fault {
    id: "empty-think",
    does: "inserts an empty think block into the last answer, and removes it when a message follows",
    break_target: |target| rewriting(target, empty_think),
};

/// Drops new lines.
pub const NEWLINE_DROPPED: Fault = Fault {
    id: "newline-dropped",
    does: "drops the new line after the end of a turn when a message follows",
    break_target: |target| rewriting(target, newline_dropped),
};

/// Opens what the history does not have.
pub const OPENING_LOST: Fault = Fault {
    id: "opening-lost",
    does: "ends an answer's prompt with an opened think block that its history leaves out",
    break_target: |target| {
        rewriting(target, |inner, messages, open| {
            Ok(inner.render(messages, open)? + if open { "<think>\n" } else { "" })
        })
    },
};

/// Cuts white space.
pub const ANSWER_TRIMMED: Fault = Fault {
    id: "answer-trimmed",
    does: "cuts white space off the ends of answers",
    break_target: |target| {
        rewriting(target, |inner, messages, open| {
            let trimmed = |message: &Value| {
                let content = message["content"].as_str().map(str::trim);
                with(message, "content", content.filter(|_| is(message, "assistant")))
            };
            inner.render(&messages.iter().map(trimmed).collect::<Vec<_>>(), open)
        })
    },
};

type Render = fn(&dyn ChatTemplate, &[Value], bool) -> Result<String, String>;

struct Rewriting {
    inner: Arc<dyn ChatTemplate>,
    render: Render,
}

impl ChatTemplate for Rewriting {
    fn render(&self, messages: &[Value], open: bool) -> Result<String, String> {
        (self.render)(&*self.inner, messages, open)
    }

    fn known(&self) -> Vec<String> {
        self.inner.known()
    }
}

fn rewriting(mut target: Target, render: Render) -> Target {
    target.template = target.template.map(|inner| Arc::new(Rewriting { inner, render }) as _);
    target
}

fn is(message: &Value, role: &str) -> bool {
    message["role"] == role
}

fn with(message: &Value, key: &str, text: Option<&str>) -> Value {
    let mut message = message.clone();
    if let Some(text) = text {
        message[key] = json!(text);
    }
    message
}

fn thinking_stripped(inner: &dyn ChatTemplate, messages: &[Value], open: bool) -> Result<String, String> {
    let last = messages.iter().rposition(|message| is(message, "user")).unwrap_or(0);
    let stripped = |(at, message): (usize, &Value)| with(message, "reasoning_content", (at < last).then_some(""));
    inner.render(&messages.iter().enumerate().map(stripped).collect::<Vec<_>>(), open)
}

fn empty_think(inner: &dyn ChatTemplate, messages: &[Value], open: bool) -> Result<String, String> {
    let mut messages = messages.to_vec();
    if let Some(last) = messages.last_mut().filter(|last| is(last, "assistant")) {
        let content = format!("<think>\n\n</think>\n\n{}", last["content"].as_str().unwrap_or_default());
        last["content"] = json!(content);
    }
    inner.render(&messages, open)
}

fn newline_dropped(inner: &dyn ChatTemplate, messages: &[Value], open: bool) -> Result<String, String> {
    let (mut out, mut before) = (String::new(), String::new());
    for end in 1..=messages.len() {
        let text = inner.render(&messages[..end], false)?;
        let piece = text.strip_prefix(&before).unwrap_or(&text);
        let followed = open || end < messages.len();
        out += if followed { piece.strip_suffix('\n').unwrap_or(piece) } else { piece };
        before = text;
    }
    let opened = inner.render(messages, open)?;
    Ok(out + opened.strip_prefix(&before).unwrap_or_default())
}
