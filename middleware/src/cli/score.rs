//! `lockstep score`: the answers of a ledger under the weights of a model, held against what they were drawn from.

use super::{DONE, INTERRUPTED, Outcome, engine::FIRST, engine::On, ledger::find, print, unless_interrupted};
use crate::{
    dispatch::History,
    journal::write_whole,
    ledger,
    progress::{Progress, say},
};
use clap::Args;
use lockstep_core::{
    Rollout, WeightVersion,
    dlc::{statistics::Statistics, weigh::Position},
    plan::Batch,
    score::SupportLogProbs,
};
use lockstep_engine::{AdamW, Optimiser, Qwen3, Qwen3Trainer, trainer::Settings};
use serde_json::json;
use std::{
    collections::BTreeMap,
    error::Error,
    path::{Path, PathBuf},
};

/// Arguments of `lockstep score`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// A ledger, or the directory of a run that has one.
    ledger: PathBuf,
    /// A Hugging Face directory of a Qwen3.
    #[arg(long)]
    model: PathBuf,
    /// Writes a JSONL file of rollouts: their tokens, log q and log p.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    on: On,
}

/// What was seen so far, by the version that drew a token.
#[derive(Debug)]
struct Scored {
    by_version: BTreeMap<Option<WeightVersion>, Statistics>,
    /// Of the file that is asked for.
    rows: Option<String>,
}

pub(super) async fn run(arguments: Arguments) -> Outcome {
    if let Some(out) = &arguments.out {
        can_be_written(out)?;
    }
    let device = arguments.on.device.open()?;
    let history = History::of(ledger::read(&find(&arguments.ledger))?)?;
    let model = Qwen3::load(&arguments.model)?.to_device(&device)?;
    let rule = AdamW { lr: 0.0, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0 };
    let optimiser = Optimiser::new(model.weights(), rule, f64::INFINITY);
    let settings = Settings { device, ..Settings::new(&arguments.model) };
    let trainer = Qwen3Trainer::new(model, optimiser, FIRST, settings);
    let with_rows = arguments.out.is_some();
    let work = tokio::task::spawn_blocking(move || score(&history, &trainer, with_rows));
    let Some(scored) = unless_interrupted(work).await else {
        say("interrupted; nothing was written");
        return Ok(INTERRUPTED);
    };
    let scored = scored??;
    scored.table().iter().for_each(|row| print(row));
    if let Some((out, rows)) = arguments.out.zip(scored.rows) {
        write_whole(&out, &rows)?;
    }
    Ok(DONE)
}

/// Scores plan by plan; one whose answers are not all there is named and left out.
fn score(history: &History, trainer: &Qwen3Trainer, with_rows: bool) -> Result<Scored, Box<dyn Error + Send + Sync>> {
    let plans = history.plans();
    if plans.is_empty() {
        return Err("the ledger holds no plan".into());
    }
    let count = plans.len();
    let progress = Progress::new("scoring", count as u64);
    let mut scored = Scored { by_version: BTreeMap::new(), rows: with_rows.then(String::new) };
    for (done, plan) in (1..).zip(plans) {
        match history.batch(plan)? {
            Some(batch) => scored.add(&batch, &trainer.score(&batch, FIRST)?.rollouts)?,
            None => say(&format!("plan {plan} is left out: not all of its answers are there")),
        }
        progress.at(done, &format!("plan {plan}"));
    }
    progress.finish();
    match scored.by_version.is_empty() {
        true => Err(format!("none of the {count} plans has all of its answers").into()),
        false => Ok(scored),
    }
}

/// Hours of scoring are not to end at a path that was never one.
fn can_be_written(out: &Path) -> Result<(), String> {
    let parent = out.parent().filter(|parent| *parent != Path::new(""));
    match parent.filter(|parent| !parent.is_dir()) {
        Some(parent) => Err(format!("cannot write {}: {} is no directory", out.display(), parent.display())),
        None if out.is_dir() => Err(format!("cannot write {}: it is a directory", out.display())),
        None => Ok(()),
    }
}

impl Scored {
    fn add(&mut self, batch: &Batch, log_p: &[Vec<SupportLogProbs>]) -> Result<(), Box<dyn Error + Send + Sync>> {
        for (rollout, log_p) in batch.rollouts().iter().zip(log_p) {
            self.add_rollout(rollout, log_p)?;
        }
        Ok(())
    }

    fn add_rollout(
        &mut self,
        rollout: &Rollout,
        log_p: &[SupportLogProbs],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut log_q = Vec::with_capacity(rollout.len());
        for (segment, log_p) in rollout.segments().iter().zip(log_p) {
            let statistics = self.by_version.entry(segment.stamp.version()).or_default();
            for (position, support) in segment.behavior.rows().enumerate() {
                let row = log_p.row(&segment.behavior, position);
                // One set of weights on both sides: all that is between them and q is the numeric term.
                let position = Position { support: &support, log_s: &row, log_theta: &row };
                let (lag, numeric) = position.decompose()?;
                statistics.push(&position, lag, numeric);
                log_q.push(support.sampled().log_q);
            }
        }
        let Some(rows) = &mut self.rows else { return Ok(()) };
        let tokens: Vec<u32> = rollout.sampled().map(|id| id.0).collect();
        let log_p: Vec<f32> = log_p.iter().flat_map(|segment| segment.log_p_sampled.iter().copied()).collect();
        let row = json!({"rollout": rollout.id().to_string(), "tokens": tokens, "log_q": log_q, "log_p": log_p});
        rows.push_str(&format!("{row}\n"));
        Ok(())
    }

    /// `log p - log q` of the drawn tokens, and `KL(q || p)` of their positions, by the version that drew them.
    fn table(&self) -> Vec<String> {
        let head = ["drawn by", "tokens", "mean", "mean size", "largest", "KL(q || p)"];
        let [version, tokens, cells @ ..] = head;
        let head = format!("{version:<12} {tokens:>9}{}", cells.map(|cell| format!(" {cell:>11}")).concat());
        let row = |(version, statistics): (&Option<WeightVersion>, &Statistics)| {
            let report = statistics.report();
            let term = report.numeric;
            let name = version.map_or_else(|| "undeclared".to_owned(), |version| version.to_string());
            let cells = [term.mean, term.mean_abs, term.max_abs, term.kl].map(|cell| format!(" {cell:>11.2e}"));
            format!("{name:<12} {:>9}{}", report.tokens, cells.concat())
        };
        std::iter::once(head).chain(self.by_version.iter().map(row)).collect()
    }
}
