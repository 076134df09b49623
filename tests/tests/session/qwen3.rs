//! Qwen3 as its chats have it: the real tokenizer and template, and the padded vocabulary of the model.

use lockstep::session::{ChatModel, ModelFiles, ModelOptions};
use lockstep_tests::proto;
use std::{path::PathBuf, sync::OnceLock};

/// Ids of the model; the tokenizer knows 151,669.
pub const VOCABULARY: u32 = 151_936;

fn fetched(name: &str) -> PathBuf {
    let path = proto::root().join("target/test-data").join(name);
    assert!(path.exists(), "{} is missing: run tests/setup.sh", path.display());
    path
}

/// The files of Qwen3.
pub fn files() -> ModelFiles {
    let read = |name: &str| std::fs::read(fetched(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let config = serde_json::from_slice(&read("qwen3-tokenizer_config.json"));
    ModelFiles {
        tokenizer: read("qwen3-tokenizer.json"),
        tokenizer_config: config.unwrap_or_else(|error| panic!("{error}")),
        template: None,
        vocabulary: VOCABULARY,
    }
}

/// Qwen3 with its own template.
pub fn qwen3() -> ChatModel {
    static MODEL: OnceLock<ChatModel> = OnceLock::new();
    MODEL
        .get_or_init(|| ChatModel::new(&files(), ModelOptions::default()).unwrap_or_else(|error| panic!("{error}")))
        .clone()
}

/// Qwen3's tokenizer with another template.
pub fn with_template(template: &str) -> ChatModel {
    let files = ModelFiles { template: Some(template.to_owned()), ..files() };
    ChatModel::new(&files, ModelOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}
