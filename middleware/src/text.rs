//! The engine's tokenizer as a task sees it.

use crate::task::Text;
use lockstep_core::TokenId;
use lockstep_engine::Tokenizer;

/// A `tokenizer.json`.
#[derive(Debug, Clone)]
pub struct EngineText(pub Tokenizer);

impl Text for EngineText {
    fn encode(&self, text: &str) -> Result<Vec<TokenId>, String> {
        let ids = self.0.encode(text).map_err(|error| error.to_string())?;
        Ok(ids.into_iter().map(TokenId).collect())
    }

    fn decode(&self, ids: &[TokenId]) -> Option<String> {
        self.0.decode(&ids.iter().map(|id| id.0).collect::<Vec<u32>>())
    }
}
