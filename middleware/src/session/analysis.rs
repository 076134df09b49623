//! What a template does to a history, found out by rendering probes when the model is loaded.
//!
//! A template that only ever appends writes the first n messages as the start of the first n + 1, and each answer as its
//! prompt followed by its text. Whatever it does besides is named.

use super::{Ask, ChatModel, Conversation, SessionError, suffix};
use serde_json::{Value as Json, json};
use std::fmt;

/// Something a template does that ids once sampled would not survive if the history were rendered again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateFinding {
    /// Nothing can be appended to an answer.
    CannotContinue {
        /// Why.
        reason: String,
    },
    /// A kind of conversation it refuses.
    Refuses {
        /// Which.
        probe: &'static str,
        /// What it says.
        reason: String,
    },
    /// Thinking is gone from an answer once a user's message follows.
    StripsThinking,
    /// Thinking is gone from an answer once the result of its tool call follows.
    StripsThinkingInToolTurns,
    /// `reasoning_content` is written nowhere.
    LeavesOutReasoning,
    /// `reasoning_content` is written, but not between `<think>` and `</think>`.
    ThinkingOutsideBlock,
    /// An answer without thinking gets a think block that its prompt did not have.
    InsertsEmptyThink {
        /// Whether it is gone again once a message follows.
        last_only: bool,
    },
    /// What an answer's prompt ends with is not in its history.
    PromptNotInHistory {
        /// The text.
        text: String,
    },
    /// The end of a turn loses its new line once a message follows.
    DropsNewLine,
    /// White space around an answer is cut off.
    TrimsAnswers,
    /// Arguments of tool calls are written with its own spaces.
    RewritesArguments {
        /// The probe `{"b":1,"a":[1,2]}` as it writes it, where it can be found.
        written: String,
    },
    /// Tool results that follow each other share one turn, which a later one reopens.
    GroupsToolResults,
    /// It asks for the time.
    ReadsClock,
    /// It changes earlier messages in a way that has no name here.
    RewritesHistory {
        /// In which conversation.
        probe: &'static str,
    },
}

impl fmt::Display for TemplateFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CannotContinue { reason } => write!(f, "no message can follow an answer: {reason}"),
            Self::Refuses { probe, reason } => write!(f, "it refuses {probe}: {reason}"),
            Self::StripsThinking => write!(f, "it strips thinking from answers that a user's message follows"),
            Self::StripsThinkingInToolTurns => {
                write!(f, "it strips thinking from answers that a tool's result follows")
            }
            Self::LeavesOutReasoning => write!(f, "it leaves reasoning_content out"),
            Self::ThinkingOutsideBlock => write!(f, "it writes reasoning_content outside of the think block"),
            Self::InsertsEmptyThink { last_only: true } => {
                write!(
                    f,
                    "it inserts an empty think block before the last answer, and removes it when a message follows"
                )
            }
            Self::InsertsEmptyThink { last_only: false } => {
                write!(f, "it inserts an empty think block before answers that were sampled without one")
            }
            Self::PromptNotInHistory { text } => {
                write!(f, "an answer's prompt ends with {text:?}, which its history leaves out")
            }
            Self::DropsNewLine => write!(f, "it drops the new line after the end of a turn when a message follows"),
            Self::TrimsAnswers => write!(f, "it cuts white space off the ends of answers"),
            Self::RewritesArguments { written } => {
                write!(f, "it writes tool calls' arguments in its own JSON, {written}, whatever was sampled")
            }
            Self::GroupsToolResults => write!(f, "it writes tool results that follow each other into one turn"),
            Self::ReadsClock => write!(f, "it writes the time, so that a history differs from day to day"),
            Self::RewritesHistory { probe } => write!(f, "it changes earlier messages of {probe}"),
        }
    }
}

/// What is known of a model's template.
#[derive(Debug)]
pub(super) struct Analysis {
    pub(super) findings: Vec<TemplateFinding>,
    pub(super) turn_end: String,
}

const USER: &str = "LockstepQuestion";
const ANSWER: &str = "LockstepReply";
const REASON: &str = "LockstepReason";
const COMPACT: &str = r#"{"b":1,"a":[1,2]}"#;

impl Analysis {
    pub(super) fn of(model: &ChatModel) -> Result<Self, SessionError> {
        if !model.has_template() {
            return Ok(Self { findings: Vec::new(), turn_end: String::new() });
        }
        let mut probes = Probes { model, findings: Vec::new() };
        let turn_end = match suffix::turn_end(model) {
            Ok(turn_end) => turn_end,
            Err(error) => {
                probes.find(TemplateFinding::CannotContinue { reason: error.to_string() });
                String::new()
            }
        };
        probes.plain();
        probes.thinking();
        probes.tools();
        probes.appends();
        if model.reads_clock() {
            probes.find(TemplateFinding::ReadsClock);
        }
        Ok(Self { findings: probes.findings, turn_end })
    }
}

fn user() -> Json {
    json!({"role": "user", "content": USER})
}

fn answer() -> Json {
    json!({"role": "assistant", "content": ANSWER})
}

fn thinking() -> Json {
    json!({"role": "assistant", "content": ANSWER, "reasoning_content": REASON})
}

fn calling(reasoning: Option<&str>) -> Json {
    let call = json!({"id": "call00001", "type": "function", "function": {"name": "f", "arguments": COMPACT}});
    let mut message = json!({"role": "assistant", "content": "", "tool_calls": [call]});
    if let Some(reasoning) = reasoning {
        message["reasoning_content"] = json!(reasoning);
    }
    message
}

fn result() -> Json {
    json!({"role": "tool", "tool_call_id": "call00001", "name": "f", "content": "LockstepResult"})
}

struct Probes<'a> {
    model: &'a ChatModel,
    findings: Vec<TemplateFinding>,
}

impl Probes<'_> {
    fn find(&mut self, finding: TemplateFinding) {
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    /// The text of a probe; a refusal is a finding.
    fn text(&mut self, probe: &'static str, messages: &[Json], ask: Ask) -> Option<String> {
        match self.model.render(Conversation::new(messages, &[]), ask) {
            Ok(rendered) => Some(rendered.text),
            Err(error) => {
                self.find(TemplateFinding::Refuses { probe, reason: error.to_string() });
                None
            }
        }
    }

    /// Messages without tools or thinking.
    fn plain(&mut self) {
        const PROBE: &str = "a plain conversation";
        let messages = [user(), answer(), user()];
        let prompt = self.text(PROBE, &messages[..1], Ask::Answer);
        let last = self.text(PROBE, &messages[..2], Ask::Nothing);
        let earlier = self.text(PROBE, &messages, Ask::Nothing);
        let (Some(prompt), Some(last), Some(earlier)) = (prompt, last, earlier) else { return };
        let (Some((lead, end)), Some((lead_earlier, rest))) = (last.split_once(ANSWER), earlier.split_once(ANSWER))
        else {
            return;
        };
        self.leads(&prompt, lead, lead_earlier);
        if !rest.starts_with(end) {
            let shorter = end.strip_suffix('\n').filter(|shorter| rest.starts_with(shorter));
            self.find(match shorter {
                Some(_) => TemplateFinding::DropsNewLine,
                None => TemplateFinding::RewritesHistory { probe: PROBE },
            });
        }
        let spaced = "  LockstepReply \n";
        let messages = [user(), json!({"role": "assistant", "content": spaced}), user()];
        if self.text(PROBE, &messages, Ask::Nothing).is_some_and(|text| !text.contains(spaced)) {
            self.find(TemplateFinding::TrimsAnswers);
        }
    }

    /// What stands before an answer: in its prompt, as the last message, as an earlier one.
    fn leads(&mut self, prompt: &str, last: &str, earlier: &str) {
        for (lead, last_only) in [(last, earlier == prompt), (earlier, false)] {
            if lead == prompt {
                continue;
            }
            let finding = match (lead.strip_prefix(prompt), prompt.strip_prefix(lead)) {
                (Some(extra), _) if extra.contains("think") => TemplateFinding::InsertsEmptyThink { last_only },
                (_, Some(text)) => TemplateFinding::PromptNotInHistory { text: text.to_owned() },
                _ => TemplateFinding::RewritesHistory { probe: "a plain conversation" },
            };
            let said = matches!(finding, TemplateFinding::InsertsEmptyThink { .. })
                && self.findings.iter().any(|found| matches!(found, TemplateFinding::InsertsEmptyThink { .. }));
            if !said {
                self.find(finding);
            }
        }
    }

    fn thinking(&mut self) {
        const PROBE: &str = "answers with thinking";
        let messages = [user(), thinking(), user()];
        let Some(last) = self.text(PROBE, &messages[..2], Ask::Nothing) else { return };
        let Some((before, after)) = last.split_once(REASON) else {
            return self.find(TemplateFinding::LeavesOutReasoning);
        };
        let opened =
            before.rfind("<think>").is_some_and(|open| before.rfind("</think>").is_none_or(|close| close < open));
        if !opened || !after.contains("</think>") {
            self.find(TemplateFinding::ThinkingOutsideBlock);
        }
        if self.text(PROBE, &messages, Ask::Nothing).is_some_and(|text| !text.contains(REASON)) {
            self.find(TemplateFinding::StripsThinking);
        }
        let messages = [user(), calling(Some(REASON)), result(), answer()];
        if self.text("a tool conversation", &messages, Ask::Nothing).is_some_and(|text| !text.contains(REASON)) {
            self.find(TemplateFinding::StripsThinkingInToolTurns);
        }
    }

    fn tools(&mut self) {
        const PROBE: &str = "a tool conversation";
        let messages = [user(), calling(None), result(), result()];
        let Some(one) = self.text(PROBE, &messages[..3], Ask::Nothing) else { return };
        if !one.contains(COMPACT) {
            let start = one.find("{\"b\"").or_else(|| one.find("{'b'"));
            let written = start.and_then(|at| Some(&one[at..=at + one[at..].find('}')?]));
            let written = written.unwrap_or("which was not found").to_owned();
            self.find(TemplateFinding::RewritesArguments { written });
        }
        if self.text(PROBE, &messages, Ask::Nothing).is_some_and(|two| !two.starts_with(&one)) {
            self.find(TemplateFinding::GroupsToolResults);
        }
    }

    /// Whether, think blocks aside, the first messages are written as the start of more.
    fn appends(&mut self) {
        let system = json!({"role": "system", "content": "LockstepSystem"});
        let probes: [(&'static str, Vec<Json>); 3] = [
            ("a plain conversation", vec![user(), answer(), user(), answer(), user()]),
            ("a conversation with a system message", vec![system, user(), answer(), user()]),
            ("a tool conversation", vec![user(), calling(None), result(), answer(), user(), answer()]),
        ];
        for (probe, messages) in probes {
            let texts: Vec<Option<String>> =
                (2..=messages.len()).map(|n| self.text(probe, &messages[..n], Ask::Nothing)).collect();
            let texts: Vec<String> = texts.into_iter().flatten().map(|text| without_blocks(&text)).collect();
            let named = |finding: &TemplateFinding| {
                matches!(finding, TemplateFinding::DropsNewLine | TemplateFinding::RewritesHistory { .. })
            };
            let appends = texts.windows(2).all(|pair| pair[1].starts_with(pair[0].trim_end_matches('\n')));
            if !appends && !self.findings.iter().any(named) {
                self.find(TemplateFinding::RewritesHistory { probe });
            }
        }
    }
}

/// The text without think blocks and the new lines after them.
fn without_blocks(text: &str) -> String {
    let (mut kept, mut rest) = (String::new(), text);
    while let Some(open) = rest.find("<think>") {
        let Some(close) = rest[open..].find("</think>") else { break };
        kept.push_str(&rest[..open]);
        rest = rest[open + close + "</think>".len()..].trim_start_matches('\n');
    }
    kept.push_str(rest);
    kept
}
