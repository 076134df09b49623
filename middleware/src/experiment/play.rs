//! One arm: the built-in pair behind its ports, trained step by step through the middleware's own dispatch, ledger and step.

use super::{
    Arm, ExperimentError, Plan, Setting, Sync,
    measure::{Looker, distance, driver, params},
    outcome::{Evaluation, Outcome, StepRecord, Synced},
    read_json, write_json, wrong,
};
use crate::{
    dispatch::{Driver, Judge},
    ledger::{Record, ResyncRecord},
    small_model,
    step::{self, Pair},
    task::{Prompt, Task, sorting::Sorting},
    text::EngineText,
};
use lockstep_core::{
    BatchPlan, FinishReason, Rollout, RolloutId, TokenId, WeightVersion,
    dispatch::Rules,
    dlc::{EssReport, Forecaster, Inputs, Policy, PolicyDecision, Reason, Rule},
    plan::PromptGroup,
    ports::{PublishedWeights, Scorer, StepOptions, StepReport, Trainer},
    reward::Outcome as RewardOutcome,
};
use lockstep_engine::{
    AdamW, Optimiser, Qwen3, Qwen3Sampler, Qwen3Trainer, SamplerPort, Tokenizer, TrainerPort, trainer::Settings,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// The version of the weights an arm starts from.
pub(super) const FIRST: WeightVersion = WeightVersion { epoch: 0, step: 0 };

/// Where an experiment keeps what.
#[derive(Debug, Clone)]
pub struct Places(PathBuf);

impl Places {
    /// The places of a directory.
    pub fn of(directory: &Path) -> Self {
        Self(directory.to_owned())
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// The result of an arm; it is there when the arm is done.
    pub fn outcome(&self, name: &str) -> PathBuf {
        self.0.join("arms").join(format!("{name}.json"))
    }

    /// What an arm printed.
    pub fn log(&self, name: &str) -> PathBuf {
        self.0.join("logs").join(format!("{name}.log"))
    }

    /// What an arm needs while it runs.
    pub fn work(&self, name: &str) -> PathBuf {
        self.0.join("work").join(name)
    }

    /// The weights a reference had after each look.
    pub fn reference(&self, name: &str) -> PathBuf {
        self.0.join("references").join(name)
    }

    /// The noise floor.
    pub fn floor(&self) -> PathBuf {
        self.0.join("floor.json")
    }
}

/// The reward of an answer.
pub(super) struct Reward;

impl Reward {
    pub(super) fn of(task: &dyn Task, prompt: &Prompt, rollout: &Rollout) -> f64 {
        let stop = usize::from(matches!(rollout.finish(), FinishReason::Stop(_)));
        let spoken: Vec<TokenId> = rollout.sampled().take(rollout.len() - stop).collect();
        task.reward(prompt, &spoken)
    }
}

/// What every arm starts from.
#[expect(missing_debug_implementations, reason = "its task is a trait object without one")]
pub struct Stage {
    /// The plan of the experiment.
    pub plan: Plan,
    /// Where it lies.
    pub places: Places,
    /// Directory of the start weights.
    pub model: PathBuf,
    /// Prompts and rewards.
    pub task: Arc<dyn Task>,
    /// Ids that end an answer.
    pub stop: Vec<TokenId>,
}

impl Stage {
    /// Opens an experiment's directory; makes the small model where it is not there yet.
    ///
    /// # Errors
    /// No plan, no model.
    pub async fn open(directory: &Path) -> Result<Self, ExperimentError> {
        let plan = Plan::read(directory)?;
        let model = small_model::cached().await?;
        let text = Arc::new(EngineText(Tokenizer::load(&model.join("tokenizer.json"))?));
        let task = Arc::new(Sorting::new(plan.setting.task_seed, text).map_err(ExperimentError::Task)?);
        let stop = lockstep_engine::Config::load(&model)?.eos.into_iter().map(TokenId).collect();
        Ok(Self { plan, places: Places::of(directory), model, task, stop })
    }

    pub(super) fn setting(&self) -> &Setting {
        &self.plan.setting
    }

    /// A sampler on the start weights.
    pub(super) fn sampler(&self, numerics: &str) -> Result<SamplerPort, ExperimentError> {
        let numerics = numerics
            .parse()
            .map_err(|error: lockstep_engine::numerics::UnknownNumerics| ExperimentError::Task(error.to_string()))?;
        let sampler = Qwen3Sampler::new(&Qwen3::load(&self.model)?, FIRST)?.with_numerics(numerics)?;
        SamplerPort::new(sampler).map_err(|source| ExperimentError::System { what: "starting the sampler", source })
    }

    /// A trainer on these weights, publishing into `directory`.
    pub(super) fn trainer(
        &self,
        model: Qwen3,
        learning_rate: f64,
        directory: &Path,
    ) -> Result<TrainerPort, ExperimentError> {
        let rule = AdamW { lr: learning_rate, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0 };
        let optimiser = Optimiser::new(model.weights(), rule, 1.0);
        let trainer = Qwen3Trainer::new(model, optimiser, FIRST, Settings::new(directory));
        TrainerPort::new(trainer).map_err(|source| ExperimentError::System { what: "starting the trainer", source })
    }

    /// Prompt `at` of a step.
    fn prompt(&self, number: u64, at: u64) -> &Prompt {
        self.task.prompt((number - 1) * u64::from(self.setting().prompts) + at)
    }

    /// Judges answers of a step's batch, whose plan has the step's number.
    fn judge(&self) -> Judge {
        let (task, prompts) = (self.task.clone(), u64::from(self.setting().prompts));
        Arc::new(move |rollout| {
            let RolloutId { plan, .. } = rollout.id();
            let prompt = task.prompt((plan - 1) * prompts + u64::from(rollout.group()));
            RewardOutcome::Reward(Reward::of(&*task, prompt, rollout))
        })
    }

    pub(super) fn looker(&self, name: &str) -> Result<Looker, ExperimentError> {
        let sampler = self.sampler("exact")?;
        let ledger = self.places.work(name).join("looks");
        Looker::new(sampler, &ledger, (self.setting(), self.task.clone(), &self.stop))
    }

    /// The outcomes of the references, and where the weights of a look lie.
    pub(super) fn references(&self) -> Result<Vec<Outcome>, ExperimentError> {
        let references = self.plan.arms.iter().filter(|arm| arm.reference);
        references.map(|arm| read_json(&self.places.outcome(&arm.name()))).collect()
    }

    /// The weights a reference had after `step`.
    pub(super) fn published(&self, reference: &Outcome, step: u64) -> Result<PublishedWeights, ExperimentError> {
        let name = reference.arm.name();
        let found = reference.published.iter().find(|(at, _)| *at == step).map(|(_, weights)| weights);
        let weights =
            found.ok_or_else(|| ExperimentError::NotDone { arm: name.clone(), needs: format!("step {step}") })?;
        let path = self.places.reference(&name).join(format!("{step}.safetensors"));
        Ok(PublishedWeights { path: path.to_string_lossy().into_owned(), ..weights.clone() })
    }
}

/// Runs one arm of a plan to its end and writes its outcome.
///
/// # Errors
/// Whatever [`ExperimentError`] names; the arm then has no outcome and can be run again.
pub async fn arm(stage: &Stage, name: &str) -> Result<(), ExperimentError> {
    let arm = stage.plan.arm(name)?.clone();
    let work = stage.places.work(name);
    let _ = std::fs::remove_dir_all(&work);
    let schedule = stage.schedule(&arm)?;
    let mut player = Player::new(stage, &arm, schedule)?;
    let outcome = player.play().await?;
    drop(player);
    let directory = stage.places.root().join("arms");
    std::fs::create_dir_all(&directory).map_err(|source| ExperimentError::System { what: "creating arms", source })?;
    write_json(&stage.places.outcome(name), &outcome)?;
    let _ = std::fs::remove_dir_all(&work);
    Ok(())
}

impl Stage {
    /// The steps after which the sampler gets new weights; `None` where a policy decides.
    fn schedule(&self, arm: &Arm) -> Result<Option<Vec<u64>>, ExperimentError> {
        let steps = self.setting().steps;
        match &arm.sync {
            Sync::Every(n) => Ok(Some((1..=steps).filter(|step| step.is_multiple_of(*n)).collect())),
            Sync::Never => Ok(Some(Vec::new())),
            Sync::Policy(_) | Sync::ClippedEss => Ok(None),
            Sync::AsOftenAs(name) => {
                let path = self.places.outcome(name);
                if !path.is_file() {
                    return Err(ExperimentError::NotDone { arm: arm.name(), needs: name.clone() });
                }
                let followed: Outcome = read_json(&path)?;
                let syncs = followed.synced.len() as u64;
                Ok(Some((1..=syncs).map(|k| (k * steps).div_ceil(syncs + 1)).collect()))
            }
        }
    }
}

struct Player<'a> {
    stage: &'a Stage,
    arm: &'a Arm,
    schedule: Option<Vec<u64>>,
    trainer: Arc<TrainerPort>,
    pair: Pair,
    driver: Driver,
    looker: Looker,
    references: Vec<Outcome>,
    forecaster: Forecaster,
    drawn_at: WeightVersion,
    null: Option<EssReport>,
    outcome: Outcome,
}

impl<'a> Player<'a> {
    fn new(stage: &'a Stage, arm: &'a Arm, schedule: Option<Vec<u64>>) -> Result<Self, ExperimentError> {
        let work = stage.places.work(&arm.name());
        let sampler = Arc::new(stage.sampler(&arm.numerics)?);
        let rate = arm.learning_rate.unwrap_or(stage.setting().learning_rate);
        let trainer = Arc::new(stage.trainer(Qwen3::load(&stage.model)?, rate, &work.join("weights"))?);
        let pair = Pair { control: sampler.clone(), scorer: trainer.clone(), trainer: trainer.clone() };
        let driver = driver(&work.join("ledger"), sampler.clone(), (Rules::default(), 1), stage.judge())?;
        let references = if arm.reference { Vec::new() } else { stage.references()? };
        let policy = arm_policy(arm);
        Ok(Self {
            stage,
            arm,
            schedule,
            trainer,
            pair,
            driver,
            looker: stage.looker(&arm.name())?,
            references,
            forecaster: Forecaster::new(policy.trigger.threshold),
            drawn_at: FIRST,
            null: None,
            outcome: Outcome::new(arm.clone()),
        })
    }

    async fn play(&mut self) -> Result<Outcome, ExperimentError> {
        let looks = self.stage.setting().evaluations();
        for number in 1..=self.stage.setting().steps {
            if let Some(rule) = self.arm.correction.rule()? {
                self.step(number, rule).await?;
            }
            if looks.contains(&number) {
                self.look(number).await?;
                crate::progress::say(&format!("{} {number}", self.arm.name()));
            }
        }
        Ok(self.outcome.clone())
    }

    async fn step(&mut self, number: u64, rule: Rule) -> Result<(), ExperimentError> {
        self.driver.open(self.plan(number)?)?;
        let batch = self.driver.next().await?;
        let scored = step::score(&self.pair, &batch).await?;
        let options = StepOptions { rule, horizon: self.stage.setting().horizon };
        let clipped = match self.arm.sync {
            Sync::ClippedEss => Some(wrong::lags(&self.pair, batch.batch(), &scored).await?),
            _ => None,
        };
        let report = step::update(&self.pair, &batch, &scored, &options).await?;
        self.driver.consumed(&batch, &report)?;
        let ess = *report.ess_at(self.drawn_at).ok_or(ExperimentError::NoEss { step: number })?;
        if report.before == self.drawn_at {
            self.null = Some(ess);
        }
        let judged = clipped.map_or(ess, |lags| wrong::clipped_ess(&lags, ess));
        let (inputs, decision) = self.decide(number, &report, judged);
        self.outcome.steps.push(StepRecord {
            step: number,
            reward: batch.mean_reward(),
            ess,
            terms: report.terms,
            forecast: inputs.forecast,
            loss: report.loss,
            gradient_norm: report.gradient_norm,
        });
        if matches!(decision, PolicyDecision::Resync(_)) {
            let (weights, stamp) = step::resync(&self.pair, report.after, &[]).await?;
            self.driver.write(&Record::Resync(ResyncRecord { weights, stamp }))?;
            self.drawn_at = report.after;
            self.forecaster.resynchronised();
            self.outcome.synced.push(Synced { step: number, inputs, decision });
        } else {
            self.pair.trainer.retain(&[self.drawn_at]).await?;
        }
        Ok(())
    }

    /// What the arm's schedule or policy says after a step. The last one brings no weights: nobody would draw with them.
    fn decide(&mut self, number: u64, report: &StepReport, ess: EssReport) -> (Inputs, PolicyDecision) {
        let updates = report.after.step - self.drawn_at.step;
        let policy = arm_policy(self.arm);
        let seen = (policy.trigger.watched(&ess), report.terms.shape.lag_variance);
        let forecast = self.forecaster.observe(updates - 1, seen);
        let inputs = Inputs { updates, ess, null: self.null, forecast };
        let last = number == self.stage.setting().steps;
        let decision = match &self.schedule {
            _ if last => PolicyDecision::Keep,
            Some(steps) if steps.contains(&number) => PolicyDecision::Resync(Reason::Interval),
            Some(_) => PolicyDecision::Keep,
            None => policy.decide(&inputs),
        };
        (inputs, decision)
    }

    /// The same prompts in every arm; the draws are the arm's own.
    fn plan(&self, number: u64) -> Result<BatchPlan, ExperimentError> {
        let Setting { prompts, answers, .. } = *self.stage.setting();
        let params = params(&self.stage.stop, self.arm.seed)?;
        let groups = (0..u64::from(prompts)).map(|at| PromptGroup {
            prompt: self.stage.prompt(number, at).ids.clone(),
            answers: vec![params.clone(); answers as usize],
        });
        Ok(BatchPlan::open(number, groups.collect())?)
    }

    /// Distance from every reference, and the reward the policy itself would get.
    async fn look(&mut self, number: u64) -> Result<(), ExperimentError> {
        let version = self.trainer.version().await?;
        let own = self.trainer.publish(version).await?;
        let batch = self.looker.draw(&own, self.arm.seed).await?;
        let reward = batch.mean_reward();
        let mut distances = Vec::with_capacity(self.references.len());
        for reference in &self.references {
            let weights = self.stage.published(reference, number)?;
            let batch = self.looker.draw(&weights, reference.arm.seed).await?;
            distances.push(distance(&batch, &*self.trainer as &dyn Scorer, version).await?);
        }
        if self.arm.reference {
            self.keep(number, own)?;
        }
        self.outcome.evaluations.push(Evaluation { step: number, distances, reward });
        Ok(())
    }

    fn keep(&mut self, number: u64, weights: PublishedWeights) -> Result<(), ExperimentError> {
        let directory = self.stage.places.reference(&self.arm.name());
        let copy = |source| ExperimentError::System { what: "keeping a reference's weights", source };
        std::fs::create_dir_all(&directory).map_err(copy)?;
        std::fs::copy(&weights.path, directory.join(format!("{number}.safetensors"))).map_err(copy)?;
        // The directory is not part of the outcome: it may be moved.
        let path = format!("{number}.safetensors");
        self.outcome.published.push((number, PublishedWeights { path, ..weights }));
        Ok(())
    }
}

/// The policy of an arm; the default's level and threshold where it has none, for its forecasts.
fn arm_policy(arm: &Arm) -> Policy {
    match &arm.sync {
        Sync::Policy(policy) => *policy,
        _ => Policy::default(),
    }
}
