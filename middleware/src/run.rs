//! A training run: plans filled by the sampler, rewarded, trained on, one after the other.

use crate::{
    config::{Config, ConfigError, Stage},
    dispatch::{DispatchError, Driver, History, Judge, Settings, Station},
    journal::{Journal, WriteError},
    ledger::{Ledger, LedgerError, Record, ResyncRecord},
    metrics::{StepMetrics, StepTiming},
    progress::Progress,
    resync::{Outcome as Resynced, ResyncEvent, Resyncs},
    step::{self, Pair},
    task::{Prompt, Task},
};
use lockstep_core::{
    BatchPlan, FinishReason, Rollout, RolloutId, SamplingParams, ScoredBatch, TokenId, WeightVersion,
    plan::{PlanError, PromptGroup},
    ports::{PortError, Sampler, StepOptions, StepReport},
    reward::Outcome,
    sampling::{Limits, SamplingError},
};
use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

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
    /// Every answer of the batch has tokens of several versions, and none of them an ESS.
    #[error("step {step}: no answer was drawn at one version alone; the newest is {version}")]
    NoEss {
        /// The step.
        step: u64,
        /// The newest version in it.
        version: WeightVersion,
    },
    /// The metrics of steps that the trainer remembers are not there.
    #[error("{} has {found} whole lines, the trainer goes on from step {steps}", path.display())]
    Metrics {
        /// The file.
        path: std::path::PathBuf,
        /// Lines there are.
        found: usize,
        /// Steps the trainer has made.
        steps: u64,
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
    metrics: Journal,
    timings: Journal,
    resyncs: Journal,
}

struct State {
    sampler: WeightVersion,
    resyncs: Resyncs,
    driver: Driver,
}

impl Run {
    /// Runs every step; what is done is in `done` and in the files of `out`, whenever it ends. Where `out` holds a run that was
    /// ended from outside, this one goes on from its ledger and from the trainer's state.
    ///
    /// # Errors
    /// Whatever [`RunError`] names.
    pub async fn train(&self, out: &Path, done: &Mutex<Progressed>) -> Result<(), RunError> {
        let (ledger, records) = Ledger::open(&out.join("ledger"))?;
        let history = History::of(records).map_err(DispatchError::from)?;
        let first = self.pair.trainer.version().await?;
        let mut files = self.files(out, first.step, done)?;
        let lease = Duration::from_secs(self.config.batch.lease_seconds.into());
        let settings = Settings { rules: self.config.dispatch(), lease, first: 0 };
        let station = Station { name: "sampler".into(), sampler: self.sampler.clone(), slots: u32::MAX };
        let driver =
            Driver::start(settings, vec![station], judge(&self.config, self.task.clone()), (ledger, history, first))?;
        let resyncs = Resyncs::new(self.config.policy(), self.config.sync_every, self.config.stage == Stage::Dlc);
        let mut state = State { sampler: first, resyncs, driver };
        self.give_weights(first, &mut state).await?;
        state.driver.draw()?;
        let progress = Progress::new("training", self.config.steps);
        for number in first.step + 1..=self.config.steps {
            let (metrics, timing, events) = self.step(number, &mut state).await?;
            events.iter().try_for_each(|event| told(event, &mut files.resyncs))?;
            files.metrics.append(&metrics)?;
            files.timings.append(&timing)?;
            progress.at(number, &line(&metrics, self.config.trigger.watched(&metrics.ess)));
            done.lock().unwrap_or_else(PoisonError::into_inner).metrics.push(metrics);
        }
        progress.finish();
        Ok(())
    }

    /// The files of the run, cut to the `steps` that the trainer remembers.
    fn files(&self, out: &Path, steps: u64, done: &Mutex<Progressed>) -> Result<Files, RunError> {
        let path = out.join("metrics.jsonl");
        let (metrics, lines) = Journal::resume(path.clone(), steps as usize)?;
        let read = lines.iter().map_while(|line| serde_json::from_str(line).ok());
        let read: Vec<StepMetrics> = read.collect();
        if read.len() as u64 != steps {
            return Err(RunError::Metrics { path, found: read.len(), steps });
        }
        done.lock().unwrap_or_else(PoisonError::into_inner).metrics.extend(read);
        let (timings, _) = Journal::resume(out.join("timings.jsonl"), steps as usize)?;
        let early = |line: &str| serde_json::from_str(line).is_ok_and(|event: ResyncEvent| event.step() <= steps);
        let (resyncs, _) = Journal::resume_while(out.join("resyncs.jsonl"), early)?;
        Ok(Files { metrics, timings, resyncs })
    }

    async fn step(&self, number: u64, state: &mut State) -> Result<Stepped, RunError> {
        let mut timing = StepTiming { step: number, ..StepTiming::default() };
        let mut clock = Instant::now();
        while let Some(next) = state.driver.may_open().filter(|&next| next < self.config.steps) {
            state.driver.open(plan(&self.config, &*self.task, &self.stop, next)?)?;
        }
        let batch = state.driver.next().await?;
        timing.sample_seconds = lap(&mut clock);
        let scored = state.driver.during(step::score(&self.pair, &batch)).await??;
        timing.score_seconds = lap(&mut clock);
        let options = StepOptions { rule: self.config.rule()?, horizon: self.config.trigger.horizon };
        let report = state.driver.during(step::update(&self.pair, &batch, &scored, &options)).await??;
        state.driver.consumed(&batch, &report)?;
        timing.train_seconds = lap(&mut clock);
        let held = state.sampler;
        let resynced = state.resyncs.after(number, &report, held);
        let resynced = resynced.ok_or(RunError::NoEss { step: number, version: held })?;
        for event in &resynced.events {
            state.driver.write(&Record::Synchronisation(event.clone()))?;
        }
        if resynced.resync.is_some() {
            self.give_weights(report.after, state).await?;
        } else {
            let live: Vec<WeightVersion> = state.driver.live_versions().into_iter().chain([held]).collect();
            state.driver.during(self.pair.trainer.retain(&live)).await??;
        }
        timing.resync_seconds = lap(&mut clock);
        let null_ess = resynced.null.map(|null| self.config.trigger.watched(&null));
        let outcome = Came { drawn_at: newest(&batch).unwrap_or(held), null_ess, resynced: &resynced };
        Ok((summarise(number, &batch, &report, outcome), timing, resynced.events))
    }

    async fn give_weights(&self, version: WeightVersion, state: &mut State) -> Result<(), RunError> {
        let live: Vec<WeightVersion> = state.driver.live_versions().into_iter().collect();
        let given = state.driver.during(step::resync(&self.pair, version, &live)).await?;
        let (weights, stamp) = given?;
        state.driver.write(&Record::Resync(ResyncRecord { weights, stamp }))?;
        state.sampler = version;
        Ok(())
    }
}

/// Membership of plan `number`: as many prompts as configured, in order, each with its group of answers that end at `stop`.
///
/// # Errors
/// Sampling parameters that are none, a plan that is none.
pub(crate) fn plan(config: &Config, task: &dyn Task, stop: &[TokenId], number: u64) -> Result<BatchPlan, RunError> {
    let prompts = u64::from(config.batch.prompts);
    let limits = Limits { stop: stop.to_vec(), max_new_tokens: config.sampling.max_new_tokens };
    let params = SamplingParams::new(config.sampling.temperature, config.truncation(), limits, config.seed)?;
    let groups = (0..prompts).map(|at| PromptGroup {
        prompt: task.prompt(number * prompts + at).ids.clone(),
        answers: vec![params.clone(); config.batch.answers as usize],
    });
    Ok(BatchPlan::open(number, groups.collect())?)
}

/// Judges an answer of a sealed batch: its text, the stop token aside, against its prompt.
pub(crate) fn judge(config: &Config, task: Arc<dyn Task>) -> Judge {
    let prompts = u64::from(config.batch.prompts);
    Arc::new(move |rollout| {
        let RolloutId { plan, .. } = rollout.id();
        let prompt: &Prompt = task.prompt(plan * prompts + u64::from(rollout.group()));
        Outcome::Reward(task.reward(prompt, &spoken(rollout)))
    })
}

/// The newest weights that drew tokens of a batch.
fn newest(batch: &ScoredBatch) -> Option<WeightVersion> {
    let segments = batch.batch().rollouts().iter().flat_map(Rollout::segments);
    segments.filter_map(|segment| segment.stamp.version()).max()
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

/// What a step leaves: its line, its times, and what was decided about the sampler's weights.
type Stepped = (StepMetrics, StepTiming, Vec<ResyncEvent>);

/// Writes down what was decided about the sampler's weights, and says it in the log.
fn told(event: &ResyncEvent, journal: &mut Journal) -> Result<(), WriteError> {
    event.log();
    journal.append(event)
}

struct Came<'a> {
    drawn_at: WeightVersion,
    null_ess: Option<f64>,
    resynced: &'a Resynced,
}

fn summarise(step: u64, batch: &ScoredBatch, report: &StepReport, came: Came<'_>) -> StepMetrics {
    let rollouts = batch.batch().rollouts();
    let truncated = rollouts.iter().filter(|rollout| rollout.finish() == FinishReason::Length).count();
    let Came { drawn_at, null_ess, resynced } = came;
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
