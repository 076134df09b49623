//! A chat template as a check sees it: messages in, text out.

use serde_json::Value;

/// Writes conversations as the text that a model reads.
pub trait ChatTemplate: Send + Sync {
    /// The text of some messages in OpenAI's form; `open` adds what an answer begins after.
    ///
    /// # Errors
    /// Why it refuses them.
    fn render(&self, messages: &[Value], open: bool) -> Result<String, String>;

    /// What is known of it besides, a sentence each.
    fn known(&self) -> Vec<String> {
        vec![]
    }
}
