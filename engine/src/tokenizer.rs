//! Token ids in, token ids out. Text is encoded once, when it enters; what comes out is decoded only to be shown.

use crate::{Error, Result};
use std::path::{Path, PathBuf};

/// A `tokenizer.json`.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    pub fn load(path: &Path) -> Result<Self> {
        let file = |source| Error::File { path: path.into(), source };
        let bytes = std::fs::read(path).map_err(file)?;
        let contents = |e: tokenizers::Error| Error::Contents { path: path.into(), reason: e.to_string() };
        Ok(Self { path: path.into(), inner: tokenizers::Tokenizer::from_bytes(bytes).map_err(contents)? })
    }

    /// The ids of `text` and nothing besides: no begin, no end.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let contents = |e: tokenizers::Error| Error::Contents { path: self.path.clone(), reason: e.to_string() };
        Ok(self.inner.encode(text, false).map_err(contents)?.get_ids().to_vec())
    }

    /// Text to be shown; special tokens are written out. `None` where an id is outside the table, or the bytes of the ids
    /// cannot be decoded.
    pub fn decode(&self, ids: &[u32]) -> Option<String> {
        let known = ids.iter().all(|id| self.inner.id_to_token(*id).is_some());
        known.then(|| self.inner.decode(ids, false).ok())?
    }

    /// Ids in the table, added tokens included.
    pub fn vocab(&self) -> usize {
        self.inner.get_vocab_size(true)
    }
}
