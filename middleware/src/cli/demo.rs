//! `lockstep demo`: the main job, end to end.

use super::{
    DONE, INTERRUPTED, Outcome,
    asked::{Asked, is_empty},
    print, unless_interrupted,
};
use crate::{
    built_in::BuiltInPair,
    config::{Config, ConfigError, Stage},
    dispatch::History,
    input::Input,
    journal::{WriteError, write_whole},
    ledger::Ledger,
    metrics::StepMetrics,
    progress::say,
    report::{self, RunSummary},
    run::{Progressed, Run, RunError},
    saving,
};
use clap::Args;
use lockstep_core::WeightVersion;
use lockstep_engine::Compute;
use std::{
    error::Error,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// Arguments of `lockstep demo`.
///
/// Without any: makes a small Qwen3 that sorts letters (cached), then trains it by GRPO with a sampler that keeps its weights
/// until the effective sample size of the lag ratio falls below one half.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    asked: Asked,
    /// How far Lockstep goes.
    #[arg(long)]
    stage: Option<Stage>,
    /// Gives the sampler new weights after every N steps; 0 leaves it to the trigger.
    #[arg(long, value_name = "N")]
    sync_every: Option<u64>,
    /// Training steps.
    #[arg(long)]
    steps: Option<u64>,
    /// Where the run is written: new, empty, or a run of the same configuration that was ended from outside and goes on. By
    /// default the first free runs/demo-N.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    on: super::engine::On,
}

pub(super) async fn run(arguments: Arguments) -> Outcome {
    let config = arguments.configuration()?;
    let device = arguments.on.device;
    device.open()?;
    let Some(input) = unless_interrupted(Input::open(&config)).await else {
        say("interrupted before the first step; nothing was written");
        return Ok(INTERRUPTED);
    };
    let input = input?;
    let out = claim(arguments.out.as_deref(), &config)?;
    write_whole(&out.join("config.toml"), &config.to_toml())?;
    let done = Mutex::new(Progressed::default());
    let trained = unless_interrupted(train(&config, input, (&out, device), &done)).await;
    let ended = trained.map_or(Ok(true), |trained| trained.map(|()| false));
    let metrics = done.into_inner().unwrap_or_else(PoisonError::into_inner).metrics;
    if ended.is_err() && !metrics.is_empty() {
        // What ended the run is what must be told, also where its report cannot be written.
        let _ = write_report(&config, &metrics, &out);
    }
    let interrupted = ended?;
    let report = write_report(&config, &metrics, &out)?;
    table(&metrics).iter().for_each(|row| print(row));
    print(&format!("report: {}", report.display()));
    if interrupted {
        say(&format!("interrupted after step {} of {}", metrics.len(), config.steps));
        return Ok(INTERRUPTED);
    }
    Ok(DONE)
}

impl Arguments {
    fn configuration(&self) -> Result<Config, ConfigError> {
        self.asked.configuration(&[
            ("stage", self.stage.map(|stage| stage.to_string())),
            ("sync_every", self.sync_every.map(|n| n.to_string())),
            ("steps", self.steps.map(|steps| steps.to_string())),
        ])
    }
}

/// A directory that nobody has written to, or one whose run goes on: the one asked for, or the first free of `runs/demo-N`.
fn claim(asked: Option<&Path>, config: &Config) -> Result<PathBuf, Box<dyn Error + Send + Sync>> {
    let Some(out) = asked else { return Ok(claim_next()?) };
    let failed = |source| WriteError::new(out, source);
    let other = |why: String| failed(std::io::Error::other(why)).into();
    if is_empty(out)? {
        return Ok(out.to_owned());
    }
    let written = out.join("config.toml");
    if !written.is_file() {
        return Err(other("the directory is not empty".into()));
    }
    let before = Config::resolve(Some(&written), &[])?;
    if (Config { steps: config.steps, ..before }) != *config {
        return Err(other("it holds a run of another configuration, which cannot go on with this one".into()));
    }
    let done = std::fs::read_to_string(out.join("metrics.jsonl")).map_or(0, |text| text.lines().count());
    if done as u64 >= config.steps {
        return Err(other(format!("it holds a run that has done all of its {done} steps")));
    }
    Ok(out.to_owned())
}

fn claim_next() -> Result<PathBuf, WriteError> {
    let runs = Path::new("runs");
    std::fs::create_dir_all(runs).map_err(|source| WriteError::new(runs, source))?;
    let mut number = 1;
    loop {
        let out = runs.join(format!("demo-{number}"));
        match std::fs::create_dir(&out) {
            Ok(()) => return Ok(out),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
            Err(source) => return Err(WriteError::new(&out, source)),
        }
    }
}

async fn train(
    config: &Config,
    input: Input,
    (out, device): (&Path, Compute),
    done: &Mutex<Progressed>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let state = out.join("state");
    let live = live_versions(out, &state)?;
    let (weights, file) = (out.join("weights"), out.join("config.toml"));
    let running = BuiltInPair::resume(&input.model, &weights, &file, (&state, &live, device)).await?;
    let (sampler, pair) = (running.sampler.clone(), running.pair());
    let run = Run { config: config.clone(), sampler, pair, task: input.task, stop: input.stop };
    run.train(out, done).await.map_err(|error: RunError| error.into())
}

/// Versions that drew answers of a run that goes on, which the trainer must score at.
fn live_versions(out: &Path, state: &Path) -> Result<Vec<WeightVersion>, Box<dyn Error + Send + Sync>> {
    let ledger = out.join("ledger");
    if !ledger.is_dir() {
        return Ok(Vec::new());
    }
    let (_, records) = Ledger::open(&ledger)?;
    let step = saving::saved(state).map(|saved| saving::version(&saved)).transpose()?.map_or(0, |version| version.step);
    Ok(History::of(records)?.live_versions(step))
}

/// Writes `report.html` and says where.
fn write_report(config: &Config, metrics: &[StepMetrics], out: &Path) -> Result<PathBuf, WriteError> {
    let title = format!("Lockstep demo, seed {}", config.seed);
    let summary = RunSummary {
        title: &title,
        stage: &config.stage.to_string(),
        configuration: &config.to_toml(),
        metrics,
        threshold: config.trigger.threshold,
        level: config.trigger.level,
    };
    let path = out.join("report.html");
    write_whole(&path, &report::render(&summary))?;
    Ok(path)
}

/// What changed between the first and the last steps.
fn table(metrics: &[StepMetrics]) -> Vec<String> {
    let window = metrics.len().min(10);
    let (first, last) = (&metrics[..window], &metrics[metrics.len() - window..]);
    let mean = |steps: &[StepMetrics], of: fn(&StepMetrics) -> f64| {
        steps.iter().map(of).sum::<f64>() / steps.len().max(1) as f64
    };
    let row = |name: &str, of: fn(&StepMetrics) -> f64| {
        format!("{name:<22} {:>11.4} {:>11.4}", mean(first, of), mean(last, of))
    };
    let resyncs: Vec<String> =
        metrics.iter().filter(|step| step.resync.is_some()).map(|step| step.step.to_string()).collect();
    let after = if resyncs.is_empty() { String::new() } else { format!(", after steps {}", resyncs.join(", ")) };
    vec![
        format!("{:<22} {:>11} {:>11}", "mean over steps", format!("first {window}"), format!("last {window}")),
        row("reward", |step| step.reward),
        row("ESS, horizon", |step| step.ess.horizon),
        row("ESS, sequence", |step| step.ess.sequence),
        row("ESS, token", |step| step.ess.token),
        row("lag KL, nats/token", |step| step.terms.lag.kl),
        row("numeric KL, nats/token", |step| step.terms.numeric.kl),
        row("ids in a support", |step| step.terms.support_size),
        format!("re-synchronisations: {}{after}", resyncs.len()),
    ]
}
