//! JSON as engines write it: numbers that may be none, and the bare words `NaN` and `Infinity`.

use crate::wire::WireError;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use std::fmt;

/// A value where a number belongs: the number, or the text of what stands there instead.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Number {
    /// A number.
    Is(f64),
    /// Something else, as it would be written.
    Other(String),
}

impl Default for Number {
    fn default() -> Self {
        Self::Other("missing".into())
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is(value) => write!(f, "{value:?}"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

impl Number {
    /// The number as a token id.
    pub(crate) fn id(&self) -> Option<u32> {
        match *self {
            Self::Is(value) if value >= 0.0 && value <= f64::from(u32::MAX) && value.fract() == 0.0 => {
                Some(value as u32)
            }
            _ => None,
        }
    }
}

struct NumberVisitor;

impl<'de> Visitor<'de> for NumberVisitor {
    type Value = Number;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_f64<E>(self, value: f64) -> Result<Number, E> {
        Ok(Number::Is(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Number, E> {
        Ok(Number::Is(value as f64))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Number, E> {
        Ok(Number::Is(value as f64))
    }

    fn visit_unit<E>(self) -> Result<Number, E> {
        Ok(Number::Other("null".into()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Number, E> {
        Ok(Number::Other(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Number, E> {
        let bare = BARE.iter().any(|word| word.trim_start_matches('-') == value.trim_start_matches('-'));
        Ok(Number::Other(if bare { value.to_owned() } else { format!("{:?}", shortened(value)) }))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Number, A::Error> {
        while values.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Number::Other("a list".into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut values: A) -> Result<Number, A::Error> {
        while values.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Number::Other("an object".into()))
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor)
    }
}

/// Words that Python writes where JSON has no number.
const BARE: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Reads a reply. Bare words become texts, so that the row they stand in can be named.
///
/// # Errors
/// What is no JSON, or JSON of another shape.
pub(crate) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    let first = match serde_json::from_slice(bytes) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let quoted = quote_bare_words(bytes);
    let again = quoted.and_then(|quoted| serde_json::from_slice(&quoted).ok());
    again.ok_or_else(|| WireError::NotAReply { reason: first.to_string(), bytes: bytes.len() })
}

/// The text with its bare words in quotes; `None` when there are none.
fn quote_bare_words(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len() + 16);
    let (mut at, mut inside, mut found) = (0, false, false);
    while let Some(&byte) = bytes.get(at) {
        let word = BARE.iter().find(|word| !inside && bytes[at..].starts_with(word.as_bytes()));
        if let Some(word) = word {
            out.extend([b"\"", word.as_bytes(), b"\""].concat());
            at += word.len();
            found = true;
            continue;
        }
        let escaped = inside && byte == b'\\';
        inside ^= byte == b'"';
        out.push(byte);
        at += 1;
        if escaped {
            out.extend(bytes.get(at));
            at += 1;
        }
    }
    found.then_some(out)
}

/// The first characters of a text, for an error.
pub(crate) fn shortened(text: &str) -> String {
    const LENGTH: usize = 400;
    let short: String = text.chars().take(LENGTH).collect();
    if short.len() < text.len() { format!("{short} ..") } else { short }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_words_become_named_values_and_texts_stay_as_they_are() {
        let read = |text: &str| read::<Vec<Number>>(text.as_bytes());
        let values = read(r#"[NaN, -Infinity, -1.5, null, "a NaN \" NaN"]"#).unwrap();
        let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["NaN", "-Infinity", "-1.5", "null", r#""a NaN \" NaN""#]);
        assert!(read("[NaN").unwrap_err().to_string().contains("4 bytes"));
    }

    #[test]
    fn only_whole_numbers_in_range_are_ids() {
        for (value, id) in [(3.0, Some(3)), (3.5, None), (-1.0, None), (5e9, None)] {
            assert_eq!(Number::Is(value).id(), id);
        }
        assert_eq!(Number::default().id(), None);
    }
}
