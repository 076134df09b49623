//! Numbers for the texts of tokens.

use super::VOCABULARY;
use lockstep_core::TokenId;
use std::collections::HashMap;

/// The end of an answer, which such a server draws and does not name.
pub(super) const END: TokenId = TokenId(VOCABULARY - 1);

/// Texts of tokens and their numbers, given as they are first seen.
#[derive(Debug, Default)]
pub struct Texts {
    numbers: HashMap<String, TokenId>,
    texts: HashMap<TokenId, String>,
    next: u32,
}

impl Texts {
    /// The number of a text.
    pub fn number(&mut self, text: &str) -> TokenId {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        while self.texts.contains_key(&TokenId(self.next)) {
            self.next += 1;
        }
        let number = TokenId(self.next);
        self.keep(number, text);
        number
    }

    /// The text of some numbers; a number that no text has yet gets a word of digits.
    pub fn join(&mut self, numbers: &[TokenId]) -> String {
        numbers.iter().map(|&number| self.text(number)).collect()
    }

    fn text(&mut self, number: TokenId) -> String {
        if let Some(text) = self.texts.get(&number) {
            return text.clone();
        }
        let text = format!(" {}", number.0);
        self.keep(number, &text);
        text
    }

    fn keep(&mut self, number: TokenId, text: &str) {
        self.numbers.insert(text.to_owned(), number);
        self.texts.insert(number, text.to_owned());
    }
}
