//! One exchange as a line of the file.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::PathBuf;

/// A file that cannot be written, read or served.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The disk said no.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What came back.
        #[source]
        source: std::io::Error,
    },
    /// A line that is no exchange.
    #[error("line {line} of {} is no exchange: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// An address that is none.
    #[error("{0:?} is no address of the form http://host:port")]
    Address(String),
}

/// Bytes as they came: as text where they are UTF-8, as base64 where a character was cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Chunk {
    /// UTF-8.
    Text(String),
    /// Anything else.
    Base64(String),
}

impl Chunk {
    /// The bytes to be written.
    pub fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Base64(STANDARD.encode(bytes)),
        }
    }

    /// The bytes that were written.
    ///
    /// # Errors
    /// Text that is no base64.
    pub fn bytes(&self) -> Result<Vec<u8>, base64::DecodeError> {
        match self {
            Self::Text(text) => Ok(text.clone().into_bytes()),
            Self::Base64(text) => STANDARD.decode(text),
        }
    }
}

/// What was asked and what was answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    /// Place in the order of arrival, from 0.
    pub number: u64,
    /// The method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The request's body.
    pub request: Chunk,
    /// Status of the answer.
    pub status: u16,
    /// Its content type, where it has one.
    pub content_type: Option<String>,
    /// Its body, in the pieces in which it came.
    pub chunks: Vec<Chunk>,
    /// Why the answer broke off, where it did.
    pub broken: Option<String>,
}

/// A request's body, so that the order of keys and white space make no difference where it is JSON.
pub(super) fn canonical(body: &[u8]) -> Vec<u8> {
    match serde_json::from_slice::<Value>(body) {
        Ok(value) => sorted(value).to_string().into_bytes(),
        Err(_) => body.to_vec(),
    }
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut entries: Vec<(String, Value)> =
                object.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(entries.into_iter().collect())
        }
        Value::Array(values) => Value::Array(values.into_iter().map(sorted).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_character_comes_back_as_it_was() {
        let cut = &"é".as_bytes()[..1];
        assert_eq!(Chunk::of(cut), Chunk::Base64("ww==".into()));
        assert_eq!(Chunk::of(cut).bytes().unwrap(), cut);
        assert_eq!(Chunk::of(b"ok").bytes().unwrap(), b"ok");
    }

    #[test]
    fn bodies_are_compared_by_what_they_say() {
        let same = canonical(br#"{"b": {"y": 2, "x": 1}, "a": [1]}"#);
        assert_eq!(same, canonical(br#"{"a":[1],"b":{"x":1,"y":2}}"#));
        assert_ne!(same, canonical(br#"{"a":[1],"b":{"x":1,"y":3}}"#));
        assert_eq!(canonical(b"no json"), b"no json");
    }
}
