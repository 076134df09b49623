//! The built-in task: put eight letters in order.

use super::{Prompt, Task, Text, exact_match, mix};
use lockstep_core::TokenId;
use std::sync::Arc;

/// Letters to sort.
pub const LETTERS: usize = 8;

/// Distinct letters, from `a`.
pub const ALPHABET: u64 = 16;

/// Prompts before the sequence repeats.
const PROMPTS: u64 = 1 << 16;

/// Letters in some order, `>`, and the same letters in order: `hgca..>` is answered by `acgh..`.
pub struct Sorting {
    prompts: Vec<Prompt>,
    text: Arc<dyn Text>,
}

impl Sorting {
    /// The task for one seed.
    ///
    /// # Errors
    /// A tokenizer without the letters.
    pub fn new(seed: u64, text: Arc<dyn Text>) -> Result<Self, String> {
        let prompts = (0..PROMPTS).map(|number| {
            let (prompt, answer) = problem(seed, number);
            Ok(Prompt { ids: text.encode(&prompt)?, answer })
        });
        Ok(Self { prompts: prompts.collect::<Result<_, String>>()?, text })
    }
}

/// Problem and solution of a number.
pub fn problem(seed: u64, number: u64) -> (String, String) {
    let letter = |at: usize| {
        let drawn = mix(mix(seed, number), at as u64) % ALPHABET;
        char::from(b'a' + drawn as u8)
    };
    let mut letters: Vec<char> = (0..LETTERS).map(letter).collect();
    let prompt = letters.iter().chain(&['>']).collect();
    letters.sort_unstable();
    (prompt, letters.into_iter().collect())
}

impl Task for Sorting {
    fn name(&self) -> String {
        "sorting".into()
    }

    fn longest_prompt(&self) -> usize {
        LETTERS + 1
    }

    fn prompt(&self, number: u64) -> &Prompt {
        &self.prompts[(number % PROMPTS) as usize]
    }

    fn reward(&self, prompt: &Prompt, answer: &[TokenId]) -> f64 {
        exact_match(&*self.text, prompt, answer)
    }
}

impl std::fmt::Debug for Sorting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sorting").field("prompts", &self.prompts.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::problem;

    #[test]
    fn a_problem_is_a_function_of_seed_and_number() {
        let (prompt, answer) = problem(3, 14);
        assert_eq!((prompt.clone(), answer.clone()), problem(3, 14));
        let mut letters: Vec<char> = prompt.trim_end_matches('>').chars().collect();
        letters.sort_unstable();
        assert_eq!(letters.into_iter().collect::<String>(), answer);
        assert_ne!(prompt, problem(4, 14).0);
        assert_ne!(prompt, problem(3, 15).0);
    }
}
