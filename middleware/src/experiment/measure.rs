//! Policies held against each other: answers drawn by one, scored under the weights of another, through the ports.

use super::{
    ExperimentError, Setting,
    play::{FIRST, Reward},
};
use crate::{
    dispatch::{Driver, History, Judge, Settings, Station},
    ledger::Ledger,
    task::Task,
};
use lockstep_core::{
    BatchPlan, SamplingParams, ScoredBatch, TokenId, WeightVersion,
    dispatch::Rules,
    dlc::statistics::exact_kl,
    plan::PromptGroup,
    ports::{Control, PublishedWeights, Scorer},
    reward::Outcome as RewardOutcome,
    sampling::{Limits, Truncation},
};
use lockstep_engine::SamplerPort;
use std::{path::Path, sync::Arc, time::Duration};

/// Plans of looks at a distance are numbered from here, so that none is that of a batch.
const FIRST_LOOK: u64 = 1 << 20;

/// A sampler in the same process that says nothing for so long is lost.
const LEASE: Duration = Duration::from_secs(600);

/// Prompts of looks, counted from here: never those of a batch.
const FIRST_PROMPT: u64 = 1 << 15;

/// An exact sampler that draws with whatever weights it is given, and keeps what it drew in a ledger.
#[expect(missing_debug_implementations, reason = "its task is a trait object without one")]
pub struct Looker {
    sampler: Arc<SamplerPort>,
    driver: Driver,
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
        let sampler = Arc::new(sampler);
        // Nobody trains on a look, so its plan is never closed.
        let rules = Rules { max_open_plans: u32::MAX, ..Rules::default() };
        let judged = task.clone();
        let judge: Judge = Arc::new(move |rollout| {
            let prompt = judged.prompt(FIRST_PROMPT + u64::from(rollout.group()));
            RewardOutcome::Reward(Reward::of(&*judged, prompt, rollout))
        });
        let driver = driver(directory, sampler.clone(), (rules, FIRST_LOOK), judge)?;
        Ok(Self { sampler, driver, setting: setting.clone(), task, stop: stop.to_vec(), looks: 0 })
    }

    /// Answers to the prompts of a look, drawn with published weights; `seed` fixes the draws.
    ///
    /// # Errors
    /// Weights that do not load, a sampler or ledger that fails.
    pub async fn draw(&mut self, weights: &PublishedWeights, seed: u64) -> Result<ScoredBatch, ExperimentError> {
        self.sampler.load_weights(weights).await?;
        let Setting { evaluation_prompts, evaluation_answers, .. } = self.setting;
        let params = params(&self.stop, seed)?;
        let groups = (0..u64::from(evaluation_prompts)).map(|at| PromptGroup {
            prompt: self.task.prompt(FIRST_PROMPT + at).ids.clone(),
            answers: vec![params.clone(); evaluation_answers as usize],
        });
        let plan = BatchPlan::open(FIRST_LOOK + self.looks, groups.collect())?;
        self.looks += 1;
        self.driver.open(plan)?;
        Ok(self.driver.next().await?)
    }
}

/// A driver on a fresh ledger, whose one sampler draws all answers of a plan at a time; plans are numbered from `first`.
pub(super) fn driver(
    directory: &Path,
    sampler: Arc<SamplerPort>,
    (rules, first): (Rules, u64),
    judge: Judge,
) -> Result<Driver, ExperimentError> {
    let (ledger, _) = Ledger::open(directory)?;
    let station = Station { name: "sampler".into(), sampler, slots: u32::MAX };
    let settings = Settings { rules, lease: LEASE, first };
    let mut driver = Driver::start(settings, vec![station], judge, (ledger, History::default(), FIRST))?;
    driver.draw()?;
    Ok(driver)
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
pub async fn distance(
    batch: &ScoredBatch,
    scorer: &dyn Scorer,
    version: WeightVersion,
) -> Result<f64, ExperimentError> {
    let scored = scorer.score(batch.batch(), version).await?;
    let (mut sum, mut tokens) = (0.0, 0usize);
    for (rollout, scores) in batch.batch().rollouts().iter().zip(&scored.rollouts) {
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
