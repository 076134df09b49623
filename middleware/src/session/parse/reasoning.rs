//! Reasoning between `<think>` and `</think>`, as Qwen3 writes it: at the start of the answer, or not at all.
//!
//! New lines around the reasoning and before the text belong to the tags and are not shown.

use super::{ParseFinding, Shown, tags};

pub(super) const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before the first letter of the answer.
    Start,
    /// After the tag, before the first letter of the reasoning.
    Opened,
    Within,
    /// After the closing tag, before the first letter of the text.
    Closed,
    Text,
}

/// The state of an answer's reasoning.
#[derive(Debug, Clone)]
pub(super) struct Reasoning {
    at: At,
    held: String,
}

impl Reasoning {
    /// At the start of an answer, or within the reasoning that its prompt opened.
    pub(super) fn new(within: bool) -> Self {
        Self { at: if within { At::Opened } else { At::Start }, held: String::new() }
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<Shown> {
        self.held.push_str(text);
        let mut shown = Vec::new();
        while self.step(&mut shown) {}
        shown
    }

    /// One step; whether another can follow.
    fn step(&mut self, shown: &mut Vec<Shown>) -> bool {
        match self.at {
            At::Start => {
                let begun = self.held.trim_start_matches(['\n', ' ']);
                if begun.starts_with(OPEN) {
                    tags::until(&mut self.held, OPEN);
                    self.at = At::Opened;
                    return true;
                }
                if OPEN.starts_with(begun) {
                    return false;
                }
                self.at = At::Text;
                true
            }
            At::Opened => self.skip_new_lines(At::Within),
            At::Within => {
                if let Some(reasoning) = tags::until(&mut self.held, CLOSE) {
                    shown.push(Shown::Reasoning(reasoning.trim_end_matches('\n').to_owned()));
                    self.at = At::Closed;
                    return true;
                }
                let sure = self.held.len() - tags::started(&self.held, CLOSE);
                let sure = self.held[..sure].trim_end_matches('\n').len();
                shown.push(Shown::Reasoning(self.held.drain(..sure).collect()));
                false
            }
            At::Closed => self.skip_new_lines(At::Text),
            At::Text => {
                shown.push(Shown::Text(std::mem::take(&mut self.held)));
                false
            }
        }
    }

    fn skip_new_lines(&mut self, next: At) -> bool {
        let lines = self.held.len() - self.held.trim_start_matches('\n').len();
        self.held.drain(..lines);
        if self.held.is_empty() {
            return false;
        }
        self.at = next;
        true
    }

    pub(super) fn finish(&mut self, findings: &mut Vec<ParseFinding>) -> Vec<Shown> {
        let left = std::mem::take(&mut self.held);
        match self.at {
            At::Start | At::Text => vec![Shown::Text(left)],
            At::Closed => Vec::new(),
            At::Opened | At::Within => {
                findings.push(ParseFinding::UnfinishedReasoning);
                vec![Shown::Reasoning(left.trim_end_matches('\n').to_owned())]
            }
        }
    }
}
