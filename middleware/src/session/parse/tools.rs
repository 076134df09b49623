//! Tool calls between `<tool_call>` and `</tool_call>`: Hermes' format, which Qwen3 writes.
//!
//! White space around calls belongs to the tags. A call that is not one is shown as the text it is.

use super::{ParseFinding, Shown, tags};
use serde::Deserialize;
use serde_json::value::RawValue;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// What stands between the tags. Other keys are passed over.
#[derive(Deserialize)]
struct Call<'a> {
    name: String,
    #[serde(borrow)]
    arguments: &'a RawValue,
}

/// The state of an answer's tool calls.
#[derive(Debug, Clone, Default)]
pub(super) struct ToolCalls {
    held: String,
    /// White space that is shown only if text follows it.
    space: String,
    within: bool,
    calls: usize,
}

impl ToolCalls {
    pub(super) fn push(&mut self, text: &str, findings: &mut Vec<ParseFinding>) -> Vec<Shown> {
        self.held.push_str(text);
        let mut shown = Vec::new();
        loop {
            if !self.within {
                match tags::until(&mut self.held, OPEN) {
                    Some(before) => {
                        self.text(&before, &mut shown);
                        self.within = true;
                    }
                    None => {
                        let certain = tags::certain(&mut self.held, OPEN);
                        self.text(&certain, &mut shown);
                        return shown;
                    }
                }
            }
            let Some(inside) = tags::until(&mut self.held, CLOSE) else { return shown };
            self.within = false;
            match parse(&inside) {
                Ok((name, arguments)) => {
                    self.space.clear();
                    shown.push(Shown::Call { index: self.calls, name, arguments });
                    self.calls += 1;
                }
                Err(reason) => {
                    findings.push(ParseFinding::MalformedCall { reason });
                    self.text(&format!("{OPEN}{inside}{CLOSE}"), &mut shown);
                }
            }
        }
    }

    /// Shows text; white space at its end waits for more.
    fn text(&mut self, text: &str, shown: &mut Vec<Shown>) {
        self.space.push_str(text);
        let length = self.space.trim_end().len();
        if length > 0 {
            shown.push(Shown::Text(self.space.drain(..length).collect()));
        }
    }

    pub(super) fn finish(&mut self, findings: &mut Vec<ParseFinding>) -> Vec<Shown> {
        let mut left = std::mem::take(&mut self.space);
        if self.within {
            findings.push(ParseFinding::UnfinishedCall);
            left.push_str(OPEN);
        } else if self.calls > 0 && self.held.is_empty() {
            left.clear();
        }
        left.push_str(&std::mem::take(&mut self.held));
        if left.is_empty() { Vec::new() } else { vec![Shown::Text(left)] }
    }
}

fn parse(inside: &str) -> Result<(String, String), String> {
    let call: Call<'_> = serde_json::from_str(inside).map_err(|error| error.to_string())?;
    let arguments = call.arguments.get();
    if !arguments.starts_with('{') {
        return Err(format!("the arguments of {} are {arguments}, not an object", call.name));
    }
    if call.name.is_empty() {
        return Err("it has no name".into());
    }
    Ok((call.name, arguments.to_owned()))
}
