//! Prompts and rewards of a run. A prompt is a function of its number and the seed alone, so that an order can be resumed.

pub mod jsonl;
pub mod sorting;

use lockstep_core::TokenId;

/// A prompt, and what its answers are held against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Its ids.
    pub ids: Vec<TokenId>,
    /// The right answer, as text.
    pub answer: String,
}

/// A source of prompts with checked answers.
pub trait Task: Send + Sync {
    /// What it is, in a word or a file name.
    fn name(&self) -> String;

    /// Ids of the longest prompt.
    fn longest_prompt(&self) -> usize;

    /// The prompt of a number; every number has one.
    fn prompt(&self, number: u64) -> &Prompt;

    /// The reward of an answer: 1 when its text, the stop token aside, is the right one, else 0. Text is read here for the
    /// first and only time; the ids are what is trained on.
    fn reward(&self, prompt: &Prompt, answer: &[TokenId]) -> f64;
}

/// Turns text into ids and shows ids as text.
pub trait Text: Send + Sync {
    /// The ids of a text, nothing added.
    ///
    /// # Errors
    /// A text the tokenizer cannot express, in one line.
    fn encode(&self, text: &str) -> Result<Vec<TokenId>, String>;

    /// The text of ids; `None` where an id has none.
    fn decode(&self, ids: &[TokenId]) -> Option<String>;
}

/// 1 when the answer says what it should, surrounding white space aside.
fn exact_match(text: &dyn Text, prompt: &Prompt, answer: &[TokenId]) -> f64 {
    let said = text.decode(answer);
    let right = said.as_deref().map(str::trim) == Some(prompt.answer.trim());
    f64::from(u8::from(right))
}

/// A well-mixed 64-bit value of two numbers (the finaliser of SplitMix64, Steele et al. 2014).
pub(crate) fn mix(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
