//! What a check runs against: some ports, and what it takes to ask them sensible questions.

use crate::{course::Course, obstacle::Obstacle, template::ChatTemplate, tolerance::NumericClass};
use lockstep_core::{
    Batch, SamplingParams, TokenId,
    ports::{Control, Probe, Queue, Sampler, Scorer, Trainer},
    sampling::{Limits, Truncation},
};
use std::{fmt, sync::Arc};

/// A sampler/trainer pair, or the part of one that is there.
#[derive(Clone, Default)]
pub struct Target {
    /// Draws answers.
    pub sampler: Option<Arc<dyn Sampler>>,
    /// Changes the sampler's weights.
    pub control: Option<Arc<dyn Control>>,
    /// Scores under the trainer's weights.
    pub scorer: Option<Arc<dyn Scorer>>,
    /// Updates the weights.
    pub trainer: Option<Arc<dyn Trainer>>,
    /// Answers questions about gradients.
    pub probe: Option<Arc<dyn Probe>>,
    /// Saw what was generated and what was trained on.
    pub queue: Option<Arc<dyn Queue>>,
    /// Writes conversations as text.
    pub template: Option<Arc<dyn ChatTemplate>>,
    /// Trains anew, several ways.
    pub course: Option<Arc<dyn Course>>,
    /// Answers that were drawn before, in the place of a sampler that draws.
    pub recorded: Option<Arc<Batch>>,
    /// Replies among those that contradict themselves, each with its reason.
    pub contradictions: Vec<String>,
    /// How to ask.
    pub ask: Ask,
    /// The number format the pair claims; its numeric term is held against it.
    pub numeric: NumericClass,
    /// Whether the trainer repeats a score bit by bit, so that the lag at equal versions must be 0 and not merely small.
    pub exact_lag: bool,
}

/// What it takes to ask a pair sensible questions.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// A few prompts, as ids; a handful is enough, and answers to them should not be foregone.
    pub prompts: Vec<Vec<TokenId>>,
    /// Ids in the vocabulary.
    pub vocabulary: u32,
    /// Ids below which every id has a token, where the vocabulary is padded; `None` where it is not.
    pub tokens: Option<u32>,
    /// Length limit of an answer.
    pub max_new_tokens: u32,
    /// Ids that end an answer.
    pub stop: Vec<TokenId>,
    /// Divisor of the logits; not 1, so that forgetting it shows.
    pub temperature: f64,
    /// The filters; on, so that forgetting them shows.
    pub truncation: Truncation,
    /// One-token answers drawn for the frequency test, over all prompts.
    pub draws: u32,
    /// Ids a text round trip of this tokenizer changes, such as `[53122, 316]` for Qwen. May be empty: random ids are
    /// asked as well, which hardly any tokenizer would have written.
    pub drifting: Vec<Vec<TokenId>>,
    /// Seed of the questions. Rollout ids are derived from it, so change it where ids must not repeat.
    pub seed: u64,
}

impl Default for Ask {
    fn default() -> Self {
        Self {
            prompts: vec![],
            vocabulary: 0,
            tokens: None,
            max_new_tokens: 12,
            stop: vec![],
            temperature: 0.8,
            truncation: Truncation { top_k: 0, top_p: 0.9, min_p: 0.0 },
            draws: 4096,
            drifting: vec![],
            seed: 1,
        }
    }
}

impl Ask {
    /// Ids below this one have a token.
    pub fn defined(&self) -> u32 {
        self.tokens.unwrap_or(self.vocabulary)
    }

    /// Sampling parameters of one answer.
    ///
    /// # Errors
    /// A parameter out of range.
    pub fn params(&self, max_new_tokens: u32, seed: u64) -> Result<SamplingParams, Obstacle> {
        let limits = Limits { stop: self.stop.clone(), max_new_tokens };
        Ok(SamplingParams::new(self.temperature, self.truncation, limits, seed)?)
    }
}

fn needed<'a, T: ?Sized>(port: &'a Option<Arc<T>>, name: &str) -> Result<&'a Arc<T>, Obstacle> {
    port.as_ref().ok_or_else(|| Obstacle::NotApplicable(format!("the target has no {name} port")))
}

impl Target {
    /// The sampler.
    ///
    /// # Errors
    /// Not applicable without one; so do the others below.
    pub fn sampler(&self) -> Result<&Arc<dyn Sampler>, Obstacle> {
        needed(&self.sampler, "sampler")
    }

    /// The control plane.
    ///
    /// # Errors
    /// Not applicable without one.
    pub fn control(&self) -> Result<&Arc<dyn Control>, Obstacle> {
        needed(&self.control, "control")
    }

    /// The scorer.
    ///
    /// # Errors
    /// Not applicable without one.
    pub fn scorer(&self) -> Result<&Arc<dyn Scorer>, Obstacle> {
        needed(&self.scorer, "scorer")
    }

    /// The trainer.
    ///
    /// # Errors
    /// Not applicable without one.
    pub fn trainer(&self) -> Result<&Arc<dyn Trainer>, Obstacle> {
        needed(&self.trainer, "trainer")
    }

    /// The probe.
    ///
    /// # Errors
    /// Not applicable without one.
    pub fn probe(&self) -> Result<&Arc<dyn Probe>, Obstacle> {
        needed(&self.probe, "probe")
    }

    /// The queue.
    ///
    /// # Errors
    /// Not applicable without one.
    pub fn queue(&self) -> Result<&Arc<dyn Queue>, Obstacle> {
        needed(&self.queue, "queue")
    }

    /// The chat template.
    ///
    /// # Errors
    /// Not applicable without one.
    pub fn template(&self) -> Result<&Arc<dyn ChatTemplate>, Obstacle> {
        needed(&self.template, "chat template")
    }

    /// The course.
    ///
    /// # Errors
    /// Not applicable without one.
    pub fn course(&self) -> Result<&Arc<dyn Course>, Obstacle> {
        let absent = "the target has no course: training several ways needs a pair that is started anew each time, as the \
                      built-in one is";
        self.course.as_ref().ok_or_else(|| Obstacle::NotApplicable(absent.into()))
    }

    /// The same ports, asked otherwise.
    #[must_use]
    pub fn asking(&self, change: impl FnOnce(&mut Ask)) -> Self {
        let mut target = self.clone();
        change(&mut target.ask);
        target
    }

    /// The names of the ports that are there.
    pub fn ports(&self) -> Vec<&'static str> {
        let ports = [
            ("sampler", self.sampler.is_some()),
            ("control", self.control.is_some()),
            ("scorer", self.scorer.is_some()),
            ("trainer", self.trainer.is_some()),
            ("probe", self.probe.is_some()),
            ("queue", self.queue.is_some()),
            ("template", self.template.is_some()),
            ("course", self.course.is_some()),
        ];
        ports.into_iter().filter(|&(_, there)| there).map(|(name, _)| name).collect()
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Target");
        out.field("ports", &self.ports()).field("ask", &self.ask).field("numeric", &self.numeric);
        out.field("exact_lag", &self.exact_lag).finish()
    }
}
