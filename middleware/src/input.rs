//! What a run of the built-in pair starts from, checked before anything is written.

use crate::{
    config::Config,
    small_model,
    task::{Task, Text, jsonl::JsonlTask, sorting::Sorting},
    text::EngineText,
};
use lockstep_core::TokenId;
use lockstep_engine::{Config as ModelConfig, Tokenizer};
use std::{error::Error, path::PathBuf, sync::Arc};

/// Model, prompts and end of answers.
pub struct Input {
    /// A Hugging Face directory.
    pub model: PathBuf,
    /// Prompts and rewards.
    pub task: Arc<dyn Task>,
    /// Ids that end an answer.
    pub stop: Vec<TokenId>,
    /// Ids this tokenizer would not have written for their own text.
    pub drifting: Vec<Vec<TokenId>>,
}

impl Input {
    /// Reads what the configuration names; makes the small model where it names none.
    ///
    /// # Errors
    /// A model directory, tokenizer or prompt file that cannot be used; answers longer than the model has positions for.
    pub async fn open(config: &Config) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let model = match &config.input.model {
            Some(model) => model.clone(),
            None => small_model::cached().await?,
        };
        let shape = ModelConfig::load(&model)?;
        let text = Arc::new(EngineText(Tokenizer::load(&model.join("tokenizer.json"))?));
        let drifting = drifting(&*text);
        let task: Arc<dyn Task> = match &config.input.prompts {
            Some(prompts) => Arc::new(JsonlTask::load(prompts, config.seed, text)?),
            None => Arc::new(Sorting::new(config.seed, text)?),
        };
        let (prompt, answer) = (task.longest_prompt(), config.sampling.max_new_tokens as usize);
        if prompt + answer > shape.max_positions {
            return Err(Box::new(TooLong { prompt, answer, positions: shape.max_positions }));
        }
        Ok(Self { model, task, stop: shape.eos.into_iter().map(TokenId).collect(), drifting })
    }
}

/// Prompts and answers that do not fit the model.
#[derive(Debug, thiserror::Error)]
#[error(
    "a prompt of {prompt} ids and sampling.max_new_tokens {answer} are more than the model's max_position_embeddings \
     {positions}"
)]
pub struct TooLong {
    prompt: usize,
    answer: usize,
    positions: usize,
}

/// Of a few pairs of words, those whose joined ids are not the ids of the joined text.
fn drifting(text: &dyn Text) -> Vec<Vec<TokenId>> {
    let seams = [("hel", "lo"), (" Pant", "om"), (" inter", "national"), ("\n", "\n"), ("<", "/"), (" t", "he")];
    let joined = seams.iter().filter_map(|(left, right)| {
        let ids = [text.encode(left).ok()?, text.encode(right).ok()?].concat();
        let whole = text.encode(&format!("{left}{right}")).ok()?;
        (ids != whole && !ids.is_empty()).then_some(ids)
    });
    joined.collect()
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Input").field("model", &self.model).field("task", &self.task.name()).finish_non_exhaustive()
    }
}
