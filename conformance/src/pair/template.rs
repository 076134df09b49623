//! The template of the pair: ChatML that only ever appends.

use crate::template::ChatTemplate;
use serde_json::Value;

/// Each message between `<|im_start|>` and `<|im_end|>`, thinking and tool calls as they are.
#[derive(Debug, Clone, Copy)]
pub struct Appending;

fn text<'a>(message: &'a Value, key: &str) -> &'a str {
    message.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn body(message: &Value) -> String {
    let mut body = String::new();
    let reasoning = text(message, "reasoning_content");
    if !reasoning.is_empty() {
        body += &format!("<think>\n{reasoning}\n</think>\n\n");
    }
    body += text(message, "content");
    for call in message.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
        let function = &call["function"];
        let (name, arguments) = (text(function, "name"), text(function, "arguments"));
        body += &format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>");
    }
    body
}

impl ChatTemplate for Appending {
    fn render(&self, messages: &[Value], open: bool) -> Result<String, String> {
        let turn = |message: &Value| format!("<|im_start|>{}\n{}<|im_end|>\n", text(message, "role"), body(message));
        let text: String = messages.iter().map(turn).collect();
        Ok(text + if open { "<|im_start|>assistant\n" } else { "" })
    }
}
