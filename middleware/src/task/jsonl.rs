//! Prompts from a JSONL file of `{"prompt": "..", "answer": ".."}`, in a seeded order.

use super::{Prompt, Task, Text, exact_match, mix};
use lockstep_core::TokenId;
use serde::{Deserialize, de::DeserializeOwned};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt: String,
    answer: String,
}

/// A file that holds no prompts.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What came back.
        #[source]
        source: std::io::Error,
    },
    /// A line is wrong.
    #[error("{} line {line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// There is no line.
    #[error("{} has no prompts", .0.display())]
    Empty(PathBuf),
}

/// Prompts and answers of a file.
pub struct JsonlTask {
    path: PathBuf,
    prompts: Vec<Prompt>,
    seed: u64,
    text: Arc<dyn Text>,
}

impl JsonlTask {
    /// Reads the whole file; blank lines are passed over.
    ///
    /// # Errors
    /// A file that cannot be read, a line that is no such object or has an empty prompt, by its number.
    pub fn load(path: &Path, seed: u64, text: Arc<dyn Text>) -> Result<Self, PromptError> {
        let prompts = read(path, |line| parse(line, &*text))?;
        let mut order: Vec<usize> = (0..prompts.len()).collect();
        order.sort_by_key(|&at| (mix(seed, at as u64), at));
        let prompts = order.into_iter().map(|at| prompts[at].1.clone()).collect();
        Ok(Self { path: path.to_owned(), prompts, seed, text })
    }
}

/// What stands in the lines of a file that are not blank, each with the number of its line, from 1; at least one.
pub(crate) fn read<T>(path: &Path, parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<(usize, T)>, PromptError> {
    let content = std::fs::read_to_string(path);
    let content = content.map_err(|source| PromptError::Read { path: path.to_owned(), source })?;
    let lines = (1..).zip(content.lines()).filter(|(_, line)| !line.trim().is_empty());
    let prompts = lines.map(|(line, written)| {
        let wrong = |what: String| PromptError::Line { path: path.to_owned(), line, what };
        Ok((line, parse(written).map_err(wrong)?))
    });
    let prompts = prompts.collect::<Result<Vec<_>, PromptError>>()?;
    if prompts.is_empty() { Err(PromptError::Empty(path.to_owned())) } else { Ok(prompts) }
}

/// The object of a line; its error leaves out the place, which is told with the file.
pub(crate) fn object<T: DeserializeOwned>(line: &str) -> Result<T, String> {
    serde_json::from_str(line).map_err(|error| {
        let what = error.to_string();
        what.split(" at line").next().unwrap_or(&what).to_owned()
    })
}

fn parse(line: &str, text: &dyn Text) -> Result<Prompt, String> {
    let line: Line = object(line)?;
    let ids = text.encode(&line.prompt)?;
    if ids.is_empty() {
        return Err("the prompt is empty".into());
    }
    Ok(Prompt { ids, answer: line.answer })
}

impl Task for JsonlTask {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn longest_prompt(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.ids.len()).max().unwrap_or_default()
    }

    fn prompt(&self, number: u64) -> &Prompt {
        &self.prompts[(number % self.prompts.len() as u64) as usize]
    }

    fn reward(&self, prompt: &Prompt, answer: &[TokenId]) -> f64 {
        exact_match(&*self.text, prompt, answer)
    }
}

impl std::fmt::Debug for JsonlTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let prompts = self.prompts.len();
        f.debug_struct("JsonlTask")
            .field("path", &self.path)
            .field("prompts", &prompts)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bytes;

    impl Text for Bytes {
        fn encode(&self, text: &str) -> Result<Vec<TokenId>, String> {
            Ok(text.bytes().map(|byte| TokenId(byte.into())).collect())
        }

        fn decode(&self, ids: &[TokenId]) -> Option<String> {
            String::from_utf8(ids.iter().map(|id| id.0 as u8).collect()).ok()
        }
    }

    fn load(content: &str) -> Result<JsonlTask, PromptError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("prompts.jsonl");
        std::fs::write(&path, content).unwrap();
        JsonlTask::load(&path, 1, Arc::new(Bytes))
    }

    #[test]
    fn a_bad_line_is_named_by_its_number() {
        let good = r#"{"prompt": "1+1=", "answer": "2"}"#;
        let message = |content: String| load(&content).unwrap_err().to_string();
        assert!(message(format!("{good}\n\nnot json\n")).contains("prompts.jsonl line 3: expected"));
        assert!(message(format!("{good}\n{{\"prompt\": \"x\"}}")).contains("line 2: missing field `answer`"));
        assert!(message(r#"{"prompt": "", "answer": "2"}"#.into()).contains("line 1: the prompt is empty"));
        assert!(message("\n\n".into()).contains("has no prompts"));
        let extra = r#"{"prompt": "x", "answer": "y", "reward": 1}"#;
        assert!(message(extra.into()).contains("unknown field `reward`"));
    }

    #[test]
    fn the_right_text_gets_the_reward() {
        let task = load(r#"{"prompt": "1+1=", "answer": "2"}"#).unwrap();
        let prompt = task.prompt(7).clone();
        let reward = |text: &str| task.reward(&prompt, &Bytes.encode(text).unwrap());
        assert_eq!((reward(" 2\n"), reward("22"), reward("")), (1.0, 0.0, 0.0));
    }
}
