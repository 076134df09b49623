//! Qwen3 as its chats have it: the real tokenizer and template, and the padded vocabulary of the model.

use lockstep::session::{ChatModel, ModelFiles, ModelOptions};
use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// Ids of the model; the tokenizer knows 151,669.
pub const VOCABULARY: u32 = 151_936;

fn fetched(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/test-data").join(name);
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

/// A template that only ever appends.
pub const PLAIN: &str = "{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.reasoning_content %}{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>\\n{\"name\": ' + call.function.name|tojson + ', \"arguments\": ' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments|tojson(separators=(',', ':')) }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
";
