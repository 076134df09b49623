//! The options that every command on the built-in pair's model and prompts has.

use crate::{
    config::{Config, ConfigError},
    journal::WriteError,
};
use clap::Args;
use std::path::{Path, PathBuf};

/// Model, prompts, seed and configuration.
#[derive(Debug, Args)]
pub(super) struct Asked {
    /// A Hugging Face directory of a Qwen3, in place of the small one; needs --prompts.
    #[arg(long, requires = "prompts")]
    model: Option<PathBuf>,
    /// A JSONL file of {"prompt": "..", "answer": ".."}; needs --model.
    #[arg(long, requires = "model")]
    prompts: Option<PathBuf>,
    /// Seed of prompts and draws.
    #[arg(long, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: Option<u64>,
    /// A configuration file in TOML; unknown keys are refused.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Sets a key of the configuration, as in `sampling.top_p=0.9`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Asked {
    /// The configuration file, then `--set`, then these options and `more`, the command's own.
    pub(super) fn configuration(&self, more: &[(&str, Option<String>)]) -> Result<Config, ConfigError> {
        let path = |path: &PathBuf| toml::Value::from(path.display().to_string()).to_string();
        let own = [
            ("seed", self.seed.map(|seed| seed.to_string())),
            ("input.model", self.model.as_ref().map(path)),
            ("input.prompts", self.prompts.as_ref().map(path)),
        ];
        let own = own.iter().chain(more).filter_map(|(key, value)| Some(format!("{key}={}", value.as_ref()?)));
        Config::resolve(self.config.as_deref(), &self.set.iter().cloned().chain(own).collect::<Vec<_>>())
    }
}

/// Makes a directory where there is none; says whether it is empty.
pub(super) fn is_empty(directory: &Path) -> Result<bool, WriteError> {
    let made = std::fs::create_dir_all(directory).and_then(|()| std::fs::read_dir(directory));
    Ok(made.map_err(|source| WriteError::new(directory, source))?.next().is_none())
}
