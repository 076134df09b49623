//! Texts that end an answer: found in the decoded text, at the token that completes one.

use super::{refusal::Refusal, text::Decode};
use lockstep_core::TokenId;

/// The stop texts of one answer, and the end of its text so far.
pub struct Stops {
    decoder: Box<dyn Decode>,
    texts: Vec<String>,
    tail: String,
    longest: usize,
}

impl Stops {
    /// Looks for these texts, none of them empty.
    pub fn new(decoder: Box<dyn Decode>, texts: Vec<String>) -> Self {
        let longest = texts.iter().map(String::len).max().unwrap_or(0);
        Self { decoder, texts, tail: String::new(), longest }
    }

    /// Reads the next tokens. Where a stop text is complete: how many of them belong to the answer.
    ///
    /// # Errors
    /// A tokenizer that fails.
    pub fn ends_at(&mut self, tokens: &[TokenId]) -> Result<Option<usize>, Refusal> {
        for (at, &token) in tokens.iter().enumerate() {
            self.tail.push_str(&self.decoder.push(token)?);
            if find(&self.tail, &self.texts).is_some() {
                return Ok(Some(at + 1));
            }
            let from = self.tail.len().saturating_sub(self.longest);
            let from = (from..=self.tail.len()).find(|&at| self.tail.is_char_boundary(at)).unwrap_or(0);
            self.tail.drain(..from);
        }
        Ok(None)
    }
}

impl std::fmt::Debug for Stops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stops").field("texts", &self.texts).finish_non_exhaustive()
    }
}

/// Where the first stop text in a text begins, and which one it is.
pub fn find<'a>(text: &str, stops: &'a [String]) -> Option<(usize, &'a str)> {
    stops.iter().filter_map(|stop| text.find(stop.as_str()).map(|at| (at, stop.as_str()))).min()
}

/// Bytes at the end of a text that may be the beginning of a stop text: they are not shown yet.
pub fn held_back(text: &str, stops: &[String]) -> usize {
    let longest = |stop: &String| {
        (1..stop.len()).rev().find(|&n| stop.is_char_boundary(n) && text.ends_with(&stop[..n])).unwrap_or(0)
    };
    stops.iter().map(longest).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Letters;

    impl Decode for Letters {
        fn push(&mut self, id: TokenId) -> Result<String, Refusal> {
            Ok(char::from_u32(id.0).map(String::from).unwrap_or_default())
        }

        fn finish(&mut self) -> Result<String, Refusal> {
            Ok(String::new())
        }
    }

    fn ids(text: &str) -> Vec<TokenId> {
        text.chars().map(|letter| TokenId(letter as u32)).collect()
    }

    #[test]
    fn a_stop_text_is_found_across_deltas_at_the_token_that_completes_it() {
        let mut stops = Stops::new(Box::new(Letters), vec!["END".into(), "\n\n".into()]);
        assert_eq!(stops.ends_at(&ids("ab E")).unwrap(), None);
        assert_eq!(stops.ends_at(&ids("N")).unwrap(), None);
        assert_eq!(stops.ends_at(&ids("Dcd")).unwrap(), Some(1));
        let mut never = Stops::new(Box::new(Letters), vec!["END".into()]);
        assert_eq!(never.ends_at(&ids("EN DE ND")).unwrap(), None);
    }

    #[test]
    fn a_possible_beginning_is_held_back() {
        let stops = vec!["END".to_owned(), "é!".to_owned()];
        assert_eq!(held_back("the EN", &stops), 2);
        assert_eq!(held_back("caf é", &stops), 2);
        assert_eq!(held_back("the ENd", &stops), 0);
        assert_eq!(find("x END é!", &stops), Some((2, "END")));
    }
}
