//! Prompts of a file, in a seeded order: the prompt of a place is a function of its number alone, so that the order goes on after a
//! restart.

use super::text::{Conversation, Text};
use crate::task::{
    jsonl::{self, PromptError},
    mix,
};
use lockstep_core::TokenId;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// What else is in a line is the user's own.
#[derive(Deserialize)]
struct Line {
    token_ids: Option<Vec<TokenId>>,
    prompt: Option<String>,
    messages: Option<Vec<Value>>,
}

/// The prompts, each with the line it is from.
#[derive(Debug)]
pub struct Prompts {
    prompts: Vec<(usize, Vec<TokenId>)>,
}

impl Prompts {
    /// Reads a JSONL file of `{"token_ids": [..]}`, `{"prompt": ".."}` or `{"messages": [..]}`; the latter two need a model's text.
    /// Blank lines are passed over.
    ///
    /// # Errors
    /// A file that cannot be read; by its number, a line that is none of these, is empty, or is outside the vocabulary.
    pub fn load(path: &Path, seed: u64, text: Option<&dyn Text>, vocabulary: u32) -> Result<Self, PromptError> {
        let mut prompts = jsonl::read(path, |line| {
            let ids = ids(line, text)?;
            match ids.iter().find(|id| id.0 >= vocabulary) {
                Some(id) => Err(format!("token {id} is outside the vocabulary of {vocabulary}")),
                None if ids.is_empty() => Err("the prompt is empty".into()),
                None => Ok(ids),
            }
        })?;
        prompts.sort_by_key(|&(line, _)| (mix(seed, line as u64), line));
        Ok(Self { prompts })
    }

    fn at(&self, plan: u64, group: u32, groups: u32) -> &(usize, Vec<TokenId>) {
        let number = plan * u64::from(groups) + u64::from(group);
        &self.prompts[(number % self.prompts.len() as u64) as usize]
    }

    /// The ids of a group of a plan; after the last prompt the first follows.
    pub(super) fn ids(&self, plan: u64, group: u32, groups: u32) -> &[TokenId] {
        &self.at(plan, group, groups).1
    }

    /// The line of the file it is from, from 1.
    pub(super) fn line(&self, plan: u64, group: u32, groups: u32) -> usize {
        self.at(plan, group, groups).0
    }
}

fn ids(line: &str, text: Option<&dyn Text>) -> Result<Vec<TokenId>, String> {
    let line: Line = jsonl::object(line)?;
    let text = || text.ok_or_else(|| "it is text, and the gateway was started without --model DIR".to_owned());
    match line {
        Line { token_ids: Some(ids), prompt: None, messages: None } => Ok(ids),
        Line { token_ids: None, prompt: Some(prompt), messages: None } => {
            text()?.encode(&prompt).map_err(|refusal| refusal.to_string())
        }
        Line { token_ids: None, prompt: None, messages: Some(messages) } => {
            let conversation = Conversation { messages, tools: Vec::new(), variables: None, session: None };
            let turn = text()?.turn(&conversation).map_err(|refusal| refusal.to_string())?;
            Ok(turn.prompt().to_vec())
        }
        _ => Err("it has not exactly one of token_ids, prompt, messages".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(content: &str) -> Result<Prompts, PromptError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("prompts.jsonl");
        std::fs::write(&path, content).unwrap();
        Prompts::load(&path, 1, None, 100)
    }

    #[test]
    fn every_prompt_has_its_place_and_comes_again_after_the_last() {
        let content: String = (1..=5).map(|id| format!("{{\"token_ids\": [{id}], \"answer\": {id}}}\n\n")).collect();
        let prompts = load(&content).unwrap();
        let drawn = |plan| (0..5).map(|group| prompts.ids(plan, group, 5)[0].0).collect::<Vec<_>>();
        let mut all = drawn(0);
        assert_eq!(all, drawn(1));
        assert_ne!(all, [1, 2, 3, 4, 5], "the order is seeded");
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3, 4, 5]);
        assert_eq!(prompts.line(0, 0, 5), 2 * prompts.ids(0, 0, 5)[0].0 as usize - 1);
    }

    #[test]
    fn a_bad_line_is_named_by_its_number() {
        let message = |content: &str| load(content).unwrap_err().to_string();
        assert!(message("{\"token_ids\": [1]}\nnot json\n").contains("prompts.jsonl line 2: expected"));
        assert!(message("{\"token_ids\": []}").contains("line 1: the prompt is empty"));
        assert!(message("{\"token_ids\": [100]}").contains("token 100 is outside the vocabulary of 100"));
        assert!(message("{\"prompt\": \"hi\"}").contains("without --model DIR"));
        assert!(message("{\"promt\": \"hi\"}").contains("not exactly one of token_ids, prompt, messages"));
        assert!(message("\n").contains("has no prompts"));
    }
}
