//! Ids to text, one id at a time: a character is shown when all its bytes are there.
//!
//! The text is for showing alone. It does not say which ids it came from: ids 94 and 95 of Qwen's table are both shown as
//! U+FFFD when no character follows from them.

use super::{ChatModel, SessionError};
use lockstep_core::TokenId;
use tokenizers::DecoderWrapper;

/// What becomes of special tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Special {
    /// Left out, as answers are shown.
    #[default]
    Skipped,
    /// Written out.
    Shown,
}

/// What becomes of ids that have no text: padding of the model's vocabulary, which a sampler can draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unknown {
    /// An error.
    #[default]
    Refused,
    /// Written as `<|unknown:151700|>`, and counted by [`Decoder::unknown`].
    Placeholder,
}

/// How ids are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Show {
    /// What becomes of special tokens.
    pub special: Special,
    /// What becomes of ids without a text.
    pub unknown: Unknown,
}

impl Show {
    /// As a client sees an answer: no special tokens, and a placeholder where there is no text.
    pub const ANSWER: Self = Self { special: Special::Skipped, unknown: Unknown::Placeholder };
    /// Everything there is.
    pub const ALL: Self = Self { special: Special::Shown, unknown: Unknown::Placeholder };
}

/// Ids that arrive one by one, as text.
#[derive(Debug, Clone)]
pub struct Decoder {
    model: ChatModel,
    show: Show,
    held: Held,
    at: usize,
    unknown: Vec<TokenId>,
}

/// What has arrived and is not shown yet.
#[derive(Debug, Clone)]
enum Held {
    /// The start of a character, where tokens are bytes.
    Bytes(Vec<u8>),
    /// Ids of any other tokenizer: those shown last, which the text of the next may depend on, and those not shown.
    Ids { shown: Vec<u32>, held: Vec<u32> },
}

/// Ids after which a character that is still unfinished is taken for broken: it has 4 bytes at most.
const LONGEST: usize = 4;

impl Decoder {
    pub(super) fn new(model: ChatModel, show: Show) -> Self {
        let held = match model.tokenizer().get_decoder() {
            Some(DecoderWrapper::ByteLevel(_)) => Held::Bytes(Vec::new()),
            _ => Held::Ids { shown: Vec::new(), held: Vec::new() },
        };
        Self { model, show, held, at: 0, unknown: Vec::new() }
    }

    /// Ids without a text so far, in order of arrival.
    pub fn unknown(&self) -> &[TokenId] {
        &self.unknown
    }

    /// What can be shown with this id; empty while a character is unfinished.
    ///
    /// # Errors
    /// An id outside the model's vocabulary; one without a text, where those are refused.
    pub fn push(&mut self, token: TokenId) -> Result<String, SessionError> {
        let at = self.at;
        let vocabulary = self.model.vocabulary();
        if token.0 >= vocabulary {
            return Err(SessionError::OutsideVocabulary { token, at, vocabulary });
        }
        let Some(text) = self.model.tokenizer().id_to_token(token.0) else {
            if self.show.unknown == Unknown::Refused {
                return Err(SessionError::NoText { token, at, known: self.model.known(), vocabulary });
            }
            self.at += 1;
            self.unknown.push(token);
            let before = self.finish()?;
            return Ok(format!("{before}<|unknown:{token}|>"));
        };
        self.at += 1;
        if self.model.is_special(token) && self.show.special == Special::Skipped {
            return Ok(String::new());
        }
        match &mut self.held {
            Held::Bytes(bytes) => {
                push_bytes(bytes, &text);
                Ok(characters(bytes, End::Open))
            }
            Held::Ids { held, .. } => {
                held.push(token.0);
                self.window(End::Open)
            }
        }
    }

    /// What is left when no id follows: the bytes of an unfinished character, as U+FFFD.
    ///
    /// # Errors
    /// A tokenizer that fails on the ids.
    pub fn finish(&mut self) -> Result<String, SessionError> {
        match &mut self.held {
            Held::Bytes(bytes) => Ok(characters(bytes, End::Closed)),
            Held::Ids { .. } => self.window(End::Closed),
        }
    }

    /// The text of the held ids after those shown last; nothing while it ends within a character.
    fn window(&mut self, end: End) -> Result<String, SessionError> {
        let Held::Ids { shown, held } = &mut self.held else { return Ok(String::new()) };
        if held.is_empty() {
            return Ok(String::new());
        }
        let decode = |ids: &[u32]| {
            let failed = |e: tokenizers::Error| SessionError::Decode { ids: ids.len(), reason: e.to_string() };
            self.model.tokenizer().decode(ids, false).map_err(failed)
        };
        let before = decode(shown)?;
        let whole = decode(&[shown.as_slice(), held].concat())?;
        let unfinished = whole.ends_with('\u{fffd}') && held.len() < LONGEST && end == End::Open;
        if unfinished {
            return Ok(String::new());
        }
        let text = whole.strip_prefix(&before).ok_or_else(|| SessionError::Decode {
            ids: shown.len() + held.len(),
            reason: "their text changes with the ids that follow".into(),
        })?;
        *shown = std::mem::take(held);
        Ok(text.to_owned())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Closed,
}

/// The bytes of a token of a byte-level table. A token with a character outside its alphabet stands for its own text.
fn push_bytes(bytes: &mut Vec<u8>, token: &str) {
    let decoded: Option<Vec<u8>> = token.chars().map(byte_of).collect();
    match decoded {
        Some(decoded) => bytes.extend(decoded),
        None => bytes.extend_from_slice(token.as_bytes()),
    }
}

/// GPT-2's alphabet: a printable byte is its own character, the n-th of the others is U+0100 + n.
fn byte_of(character: char) -> Option<u8> {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let code = character as u32;
    match u8::try_from(code) {
        Ok(byte) if printable(&byte) => Some(byte),
        Ok(_) => None,
        Err(_) => (0..=u8::MAX).filter(|byte| !printable(byte)).nth(code.checked_sub(0x100)? as usize),
    }
}

/// Takes what is complete from the bytes. Broken bytes are U+FFFD, one for each that no character can start with, as
/// `String::from_utf8_lossy` has it; the start of a character is kept while more may come.
fn characters(bytes: &mut Vec<u8>, end: End) -> String {
    let mut text = String::new();
    let mut from = 0;
    loop {
        let rest = &bytes[from..];
        let error = match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                from = bytes.len();
                break;
            }
            Err(error) => error,
        };
        text.push_str(&String::from_utf8_lossy(&rest[..error.valid_up_to()]));
        from += error.valid_up_to();
        match (error.error_len(), end) {
            (Some(broken), _) => from += broken,
            (None, End::Closed) => from = bytes.len(),
            (None, End::Open) => break,
        }
        text.push('\u{fffd}');
    }
    bytes.drain(..from);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_alphabet_has_every_byte_once() {
        let mut bytes: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=u8::MAX).collect::<Vec<u8>>());
        assert_eq!(byte_of('Ġ'), Some(b' '));
        assert_eq!(byte_of('Ċ'), Some(b'\n'));
    }

    #[test]
    fn an_unfinished_character_is_held() {
        let mut bytes = "é".as_bytes()[..1].to_vec();
        assert_eq!(characters(&mut bytes, End::Open), "");
        bytes.push("é".as_bytes()[1]);
        assert_eq!(characters(&mut bytes, End::Open), "é");
        bytes.extend([b'a', 0xf0, 0x9f]);
        assert_eq!(characters(&mut bytes, End::Open), "a");
        assert_eq!(characters(&mut bytes, End::Closed), "\u{fffd}");
    }

    proptest! {
        #[test]
        fn pieces_join_to_the_whole(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..4), 0..20)) {
            let (mut held, mut text) = (Vec::new(), String::new());
            for part in &parts {
                held.extend_from_slice(part);
                text.push_str(&characters(&mut held, End::Open));
            }
            text.push_str(&characters(&mut held, End::Closed));
            prop_assert_eq!(text, String::from_utf8_lossy(&parts.concat()).into_owned());
        }
    }
}
