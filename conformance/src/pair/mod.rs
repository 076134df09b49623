//! A sampler/trainer pair small enough to hold in the hand: every port, in memory, exact.
//!
//! A softmax table over hashed contexts is the model; sampler and trainer compute it with the same f64 arithmetic, so at
//! equal versions the numeric term is 0 and the lag is 0 bit by bit. For trying the suite and for testing the checks.

mod history;
mod model;
mod sampler;
mod template;
mod trainer;
mod truncate;

use crate::{mix::pick, target::Ask, target::Target, tolerance::NumericClass};
use lockstep_core::TokenId;
use std::sync::Arc;

pub use history::History;
pub use model::Model;
pub use sampler::MemorySampler;
pub use template::Appending;
pub use trainer::{MemoryTrainer, Store};

/// Ids in the vocabulary.
pub const VOCABULARY: u32 = 32;

/// The id that ends an answer.
pub const STOP: TokenId = TokenId(0);

const PROMPTS: u32 = 4;
const PROMPT_LENGTH: u32 = 6;

/// Spacing of the logits of [`rounded`]: that of bf16 between 8 and 16.
const SPACING: f64 = 0.0625;

/// A pair of its own with all six ports; different seeds give different weights and questions.
pub fn target(seed: u64) -> Target {
    with_spacing(seed, 0.0)
}

/// The same with a numeric term: the sampler rounds its logits as bf16 does, draws from those and reports them.
pub fn rounded(seed: u64) -> Target {
    Target { numeric: NumericClass::Bf16, ..with_spacing(seed, SPACING) }
}

fn with_spacing(seed: u64, spacing: f64) -> Target {
    let store = Arc::new(Store::default());
    let trainer = Arc::new(MemoryTrainer::new(Model::seeded(seed), store.clone()));
    let sampler = Arc::new(MemorySampler::new(trainer.current(), store, spacing));
    let ask = ask(seed);
    let queue = Arc::new(History::recorded(&ask, &sampler));
    Target {
        sampler: Some(sampler.clone()),
        control: Some(sampler),
        scorer: Some(trainer.clone()),
        trainer: Some(trainer.clone()),
        probe: Some(trainer),
        queue: Some(queue),
        template: Some(Arc::new(Appending)),
        ask,
        numeric: NumericClass::F32,
        exact_lag: true,
        ..Target::default()
    }
}

fn ask(seed: u64) -> Ask {
    let id = |prompt: u32, at: u32| TokenId(1 + pick(VOCABULARY - 1, &[seed, 0xa5, u64::from(prompt), u64::from(at)]));
    let prompt = |prompt| (0..PROMPT_LENGTH).map(|at| id(prompt, at)).collect();
    Ask {
        prompts: (0..PROMPTS).map(prompt).collect(),
        vocabulary: VOCABULARY,
        stop: vec![STOP],
        seed,
        ..Ask::default()
    }
}
