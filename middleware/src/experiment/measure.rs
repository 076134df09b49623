//! Policies held against each other: answers drawn by one, scored under the weights of another, through the ports.

use super::{ExperimentError, Setting, play::Reward};
use crate::{dispatch, ledger::Ledger, task::Task};
use lockstep_core::{
    Batch, BatchPlan, SamplingParams, TokenId, WeightVersion,
    dlc::statistics::exact_kl,
    plan::PromptGroup,
    ports::{Control, PublishedWeights, Scorer},
    sampling::{Limits, Truncation},
};
use lockstep_engine::SamplerPort;
use std::{path::Path, sync::Arc};

/// Plans of looks at a distance are numbered from here, so that none is that of a batch.
const FIRST_LOOK: u64 = 1 << 20;

/// Prompts of looks, counted from here: never those of a batch.
const FIRST_PROMPT: u64 = 1 << 15;

/// An exact sampler that draws with whatever weights it is given, and keeps what it drew in a ledger.
#[expect(missing_debug_implementations, reason = "its task is a trait object without one")]
pub struct Looker {
    sampler: SamplerPort,
    ledger: Ledger,
    setting: Setting,
    task: Arc<dyn Task>,
    stop: Vec<TokenId>,
    looks: u64,
}

impl Looker {
    /// Draws with `sampler`, ledger in `directory`.
    ///
    /// # Errors
    /// A ledger that cannot be opened.
    pub fn new(
        sampler: SamplerPort,
        directory: &Path,
        (setting, task, stop): (&Setting, Arc<dyn Task>, &[TokenId]),
    ) -> Result<Self, ExperimentError> {
        let (ledger, _) = Ledger::open(directory)?;
        Ok(Self { sampler, ledger, setting: setting.clone(), task, stop: stop.to_vec(), looks: 0 })
    }

    /// Answers to the prompts of a look, drawn with published weights; `seed` fixes the draws.
    ///
    /// # Errors
    /// Weights that do not load, a sampler or ledger that fails.
    pub async fn draw(&mut self, weights: &PublishedWeights, seed: u64) -> Result<Batch, ExperimentError> {
        self.sampler.load_weights(weights).await?;
        let Setting { evaluation_prompts, evaluation_answers, .. } = self.setting;
        let params = params(&self.stop, seed)?;
        let groups = (0..u64::from(evaluation_prompts)).map(|at| PromptGroup {
            prompt: self.task.prompt(FIRST_PROMPT + at).ids.clone(),
            answers: vec![params.clone(); evaluation_answers as usize],
        });
        let plan = BatchPlan::open(FIRST_LOOK + self.looks, groups.collect())?;
        self.looks += 1;
        Ok(dispatch::fill(plan, &self.sampler, &mut self.ledger).await?)
    }

    /// Mean reward of a look's answers.
    pub fn reward(&self, batch: &Batch) -> f64 {
        let prompt = |group: u32| self.task.prompt(FIRST_PROMPT + u64::from(group));
        let rewards = batch.rollouts().iter().map(|rollout| Reward::of(&*self.task, prompt(rollout.group()), rollout));
        rewards.sum::<f64>() / batch.rollouts().len() as f64
    }
}

/// Untruncated, temperature 1; answers of the task's length at most.
pub(super) fn params(stop: &[TokenId], seed: u64) -> Result<SamplingParams, ExperimentError> {
    let longest = crate::task::sorting::LETTERS as u32 + 1;
    let limits = Limits { stop: stop.to_vec(), max_new_tokens: longest };
    Ok(SamplingParams::new(1.0, Truncation::NONE, limits, seed)?)
}

/// `KL(drawer || scorer)`, exact at each position of the answers and averaged over them, nats a token.
///
/// # Errors
/// A scorer that fails.
pub async fn distance(batch: &Batch, scorer: &dyn Scorer, version: WeightVersion) -> Result<f64, ExperimentError> {
    let scored = scorer.score(batch, version).await?;
    let (mut sum, mut tokens) = (0.0, 0usize);
    for (rollout, scores) in batch.rollouts().iter().zip(&scored.rollouts) {
        for (segment, scores) in rollout.segments().iter().zip(scores) {
            for (position, support) in segment.behavior.rows().enumerate() {
                let row = scores.row(&segment.behavior, position);
                sum += exact_kl((support.log_q(), support.log_rest()), (&row.log_p, row.log_rest));
                tokens += 1;
            }
        }
    }
    Ok(sum / tokens.max(1) as f64)
}
