//! A training run: plans filled by the sampler, rewarded, trained on, one after the other.

use crate::{
    config::{Config, ConfigError, Stage},
    dispatch::{self, DispatchError},
    journal::{Journal, WriteError},
    ledger::{Ledger, LedgerError, Record, ResyncRecord},
    metrics::{StepMetrics, StepTiming},
    progress::Progress,
    resync::{Outcome as Resynced, ResyncEvent, Resyncs},
    step::{self, Pair},
    task::{Prompt, Task},
};
use lockstep_core::{
    Batch, BatchPlan, FinishReason, RewardBook, Rollout, SamplingParams, ScoredBatch, TokenId, WeightVersion,
    dlc::PolicyDecision,
    plan::{PlanError, PromptGroup},
    ports::{PortError, Sampler, StepOptions, StepReport},
    reward::RewardError,
    sampling::{Limits, SamplingError},
};
use std::{path::Path, sync::Arc, time::Instant};

/// A run that could not go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The sampling parameters.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// Filling a plan.
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    /// Sampler or trainer.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A file of the run.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The rewards.
    #[error(transparent)]
    Reward(#[from] RewardError),
    /// The sampler's answers carry no ESS at its own version.
    #[error("step {step}: no answer was drawn at the sampler's version {version}")]
    NoEss {
        /// The step.
        step: u64,
        /// The sampler's version.
        version: WeightVersion,
    },
}

/// Everything a run works with.
pub struct Run {
    /// What to do.
    pub config: Config,
    /// Draws the answers.
    pub sampler: Arc<dyn Sampler>,
    /// Scores, updates, re-synchronises.
    pub pair: Pair,
    /// Prompts and rewards.
    pub task: Arc<dyn Task>,
    /// Ids that end an answer.
    pub stop: Vec<TokenId>,
}

/// What a run has done so far.
#[derive(Debug, Default, Clone)]
pub struct Progressed {
    /// One entry a step.
    pub metrics: Vec<StepMetrics>,
}

struct Files {
    ledger: Ledger,
    metrics: Journal,
    timings: Journal,
    resyncs: Journal,
}

struct State {
    sampler: WeightVersion,
    resyncs: Resyncs,
}

impl Run {
    /// Runs every step; what is done is in `done` and in the files of `out`, whenever it ends.
    ///
    /// # Errors
    /// Whatever [`RunError`] names.
    pub async fn train(&self, out: &Path, done: &std::sync::Mutex<Progressed>) -> Result<(), RunError> {
        let (ledger, _) = Ledger::open(&out.join("ledger"))?;
        let metrics = Journal::create(out.join("metrics.jsonl"))?;
        let timings = Journal::create(out.join("timings.jsonl"))?;
        let resyncs = Journal::create(out.join("resyncs.jsonl"))?;
        let mut files = Files { ledger, metrics, timings, resyncs };
        let first = self.pair.trainer.version().await?;
        let resyncs = Resyncs::new(self.config.policy(), self.config.sync_every, self.config.stage == Stage::Dlc);
        let mut state = State { sampler: first, resyncs };
        self.give_weights(first, &mut state, &mut files.ledger).await?;
        let progress = Progress::new("training", self.config.steps);
        for number in 1..=self.config.steps {
            let (metrics, timing, events) = self.step(number, &mut state, &mut files.ledger).await?;
            events.iter().try_for_each(|event| told(event, &mut files.resyncs))?;
            files.metrics.append(&metrics)?;
            files.timings.append(&timing)?;
            progress.at(number, &line(&metrics, self.config.trigger.watched(&metrics.ess)));
            done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).metrics.push(metrics);
        }
        progress.finish();
        Ok(())
    }

    async fn step(
        &self,
        number: u64,
        state: &mut State,
        ledger: &mut Ledger,
    ) -> Result<(StepMetrics, StepTiming, Vec<ResyncEvent>), RunError> {
        let mut timing = StepTiming { step: number, ..StepTiming::default() };
        let mut clock = Instant::now();
        let batch = dispatch::fill(self.plan(number - 1)?, &*self.sampler, ledger).await?;
        let batch = self.reward(batch, ledger)?;
        timing.sample_seconds = lap(&mut clock);
        let scored = step::score(&self.pair, &batch).await?;
        timing.score_seconds = lap(&mut clock);
        let options = StepOptions { rule: self.config.rule()?, horizon: self.config.trigger.horizon };
        let report = step::update(&self.pair, &batch, &scored, &options).await?;
        self.consumed(&batch, &report, ledger)?;
        timing.train_seconds = lap(&mut clock);
        let drawn_at = state.sampler;
        let resynced = state.resyncs.after(number, &report, drawn_at);
        let resynced = resynced.ok_or(RunError::NoEss { step: number, version: drawn_at })?;
        if resynced.resync.is_some() {
            self.give_weights(report.after, state, ledger).await?;
        } else {
            self.pair.trainer.retain(&[drawn_at]).await?;
        }
        timing.resync_seconds = lap(&mut clock);
        let null_ess = resynced.null.map(|null| self.config.trigger.watched(&null));
        let outcome = Outcome { drawn_at, null_ess, resynced: &resynced };
        Ok((summarise(number, &batch, &report, outcome), timing, resynced.events))
    }

    /// Membership of plan `number`: as many prompts as configured, in order, each with its group of answers.
    fn plan(&self, number: u64) -> Result<BatchPlan, RunError> {
        let prompts = u64::from(self.config.batch.prompts);
        let limits = Limits { stop: self.stop.clone(), max_new_tokens: self.config.sampling.max_new_tokens };
        let temperature = self.config.sampling.temperature;
        let params = SamplingParams::new(temperature, self.config.truncation(), limits, self.config.seed)?;
        let groups = (0..prompts).map(|at| PromptGroup {
            prompt: self.task.prompt(number * prompts + at).ids.clone(),
            answers: vec![params.clone(); self.config.batch.answers as usize],
        });
        Ok(BatchPlan::open(number, groups.collect())?)
    }

    /// Reward enters here, for the first time.
    fn reward(&self, batch: Batch, ledger: &mut Ledger) -> Result<ScoredBatch, RunError> {
        let mut book = RewardBook::default();
        for rollout in batch.rollouts() {
            let reward = self.task.reward(self.prompt_of(rollout), &spoken(rollout));
            book.post(rollout.id(), reward)?;
            ledger.append(&Record::Reward { rollout: rollout.id(), reward })?;
        }
        ledger.sync()?;
        Ok(batch.with_rewards(&mut book)?)
    }

    fn prompt_of(&self, rollout: &Rollout) -> &Prompt {
        let prompts = u64::from(self.config.batch.prompts);
        self.task.prompt(rollout.id().plan * prompts + u64::from(rollout.group()))
    }

    fn consumed(&self, batch: &ScoredBatch, report: &StepReport, ledger: &mut Ledger) -> Result<(), LedgerError> {
        let rollouts = batch.batch().rollouts().iter().map(Rollout::id).collect();
        let (plan, before, after) = (batch.batch().plan(), report.before, report.after);
        ledger.append(&Record::Consumed { plan, rollouts, before, after })?;
        ledger.sync()
    }

    async fn give_weights(
        &self,
        version: WeightVersion,
        state: &mut State,
        ledger: &mut Ledger,
    ) -> Result<(), RunError> {
        let (weights, stamp) = step::resync(&self.pair, version).await?;
        ledger.append(&Record::Resync(ResyncRecord { weights, stamp }))?;
        ledger.sync()?;
        state.sampler = version;
        Ok(())
    }
}

/// The sampled ids without the stop token.
fn spoken(rollout: &Rollout) -> Vec<TokenId> {
    let stop = usize::from(matches!(rollout.finish(), FinishReason::Stop(_)));
    rollout.sampled().take(rollout.len() - stop).collect()
}

fn lap(clock: &mut Instant) -> f64 {
    let seconds = clock.elapsed().as_secs_f64();
    *clock = Instant::now();
    seconds
}

/// Writes down what was decided about the sampler's weights, and says it in the log.
fn told(event: &ResyncEvent, journal: &mut Journal) -> Result<(), WriteError> {
    match event {
        ResyncEvent::Decided { decision: PolicyDecision::Refused { null_ess }, policy, .. } => {
            let level = policy.trigger.ess_level();
            tracing::warn!(?level, null_ess, "the trigger refuses this level: equal versions give this ESS too");
        }
        event => tracing::info!(?event, "synchronisation"),
    }
    journal.append(event)
}

struct Outcome<'a> {
    drawn_at: WeightVersion,
    null_ess: Option<f64>,
    resynced: &'a Resynced,
}

fn summarise(step: u64, batch: &ScoredBatch, report: &StepReport, outcome: Outcome<'_>) -> StepMetrics {
    let rollouts = batch.batch().rollouts();
    let truncated = rollouts.iter().filter(|rollout| rollout.finish() == FinishReason::Length).count();
    let Outcome { drawn_at, null_ess, resynced } = outcome;
    StepMetrics {
        step,
        plan: batch.batch().plan(),
        rollouts: rollouts.len(),
        reward: batch.mean_reward(),
        length: batch.batch().tokens() as f64 / rollouts.len() as f64,
        truncated_share: truncated as f64 / rollouts.len() as f64,
        sampler_version: drawn_at,
        trainer_version: report.before,
        ess: resynced.ess,
        null_ess,
        terms: report.terms,
        aliases: report.terms.aliases().into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        forecast: resynced.forecast,
        resync: resynced.resync,
        loss: report.loss,
        gradient_norm: report.gradient_norm,
    }
}

/// One step in one line.
fn line(metrics: &StepMetrics, ess: f64) -> String {
    let StepMetrics { reward, terms, sampler_version, resync, .. } = metrics;
    let (lag, numeric) = (terms.lag.kl, terms.numeric.kl);
    let resync = resync.map_or("", |_| " resync");
    format!(
        "reward {reward:.3} ESS {ess:.3} lag KL {lag:.1e} numeric KL {numeric:.1e} sampler {sampler_version}{resync}"
    )
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("config", &self.config).field("task", &self.task.name()).finish_non_exhaustive()
    }
}
