//! `lockstep ledger`: what a run's ledger holds, whether it is whole, and a table of it. Works while somebody writes it.

mod exercise;
mod show;

use super::{DONE, Outcome, print};
use crate::{
    journal::target,
    ledger::{Catalogue, PlanState, PlanSummary, Record, Records, export, verify},
    progress::say,
};
use clap::{Args, Subcommand, ValueEnum};
use lockstep_core::{RolloutId, WeightVersion};
use std::{
    collections::BTreeSet,
    error::Error,
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    time::Duration,
};

/// Something was found wrong.
const WRONG: u8 = 1;

/// How often a ledger that is followed is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Arguments of `lockstep ledger`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists the plans: rollouts, tokens, weight versions, bytes.
    Ls {
        /// A ledger, or the directory of a run that has one.
        directory: PathBuf,
        /// Only plans with tokens that this version drew, as in `e0.s12`.
        #[arg(long, value_name = "VERSION")]
        drawn_by: Option<WeightVersion>,
        /// Then tells each record as it comes, until interrupted.
        #[arg(long)]
        follow: bool,
    },
    /// Shows one rollout: its spans, and each token with its support.
    Show {
        /// A ledger, or the directory of a run that has one.
        directory: PathBuf,
        /// The rollout, as in `p12.r3`.
        #[arg(value_parser = parse_rollout)]
        rollout: RolloutId,
        /// Goes on with what comes, until the rollout is finished.
        #[arg(long)]
        follow: bool,
    },
    /// Lists the decisions about the sampler's weights, with their inputs, and what came of them.
    Syncs {
        /// A ledger, or the directory of a run that has one.
        directory: PathBuf,
    },
    /// Checks every byte; names file, offset and rollout of what is wrong.
    Verify {
        /// A ledger, or the directory of a run that has one.
        directory: PathBuf,
    },
    /// Writes a table with one row a rollout.
    Export {
        /// A ledger, or the directory of a run that has one.
        directory: PathBuf,
        /// The kind of file.
        #[arg(long)]
        format: Format,
        /// The file; written anew.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Writes made-up rollouts and prints what was acknowledged; for tests that kill it.
    #[command(hide = true)]
    Exercise(exercise::Arguments),
}

/// Kinds of table.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// JSON, one rollout a line.
    Jsonl,
    /// Apache Parquet.
    Parquet,
}

fn parse_rollout(text: &str) -> Result<RolloutId, String> {
    let parts = text.strip_prefix('p').and_then(|rest| rest.split_once(".r"));
    let numbers = parts.and_then(|(plan, index)| Some((plan.parse().ok()?, index.parse().ok()?)));
    let (plan, index) = numbers.ok_or_else(|| format!("{text:?} is not a rollout of the form p12.r3"))?;
    Ok(RolloutId { plan, index })
}

pub(super) async fn run(arguments: Arguments) -> Outcome {
    match arguments.command {
        Command::Ls { directory, drawn_by, follow } => {
            list(&find(&directory), drawn_by)?;
            if follow { tell(&find(&directory)).await } else { Ok(DONE) }
        }
        Command::Show { directory, rollout, follow } => show::run(&find(&directory), rollout, follow).await,
        Command::Syncs { directory } => synchronisations(&find(&directory)),
        Command::Verify { directory } => check(&find(&directory)),
        Command::Export { directory, format, out } => write(&find(&directory), format, &out),
        Command::Exercise(arguments) => exercise::run(arguments).await,
    }
}

/// The ledger of a run, where the directory is a run's.
pub(super) fn find(directory: &Path) -> PathBuf {
    let inside = directory.join("ledger");
    if inside.is_dir() { inside } else { directory.to_owned() }
}

fn list(directory: &Path, drawn_by: Option<WeightVersion>) -> Outcome {
    let catalogue = Catalogue::open(directory)?;
    print(&row(["plan", "state", "rollouts", "tokens", "bytes", "versions"]));
    let (mut plans, mut rollouts, mut tokens) = (0u64, 0u64, 0u64);
    for plan in catalogue.plans() {
        let summary = catalogue.summary(plan)?;
        if drawn_by.is_some() && !summary.versions.contains(&drawn_by) {
            continue;
        }
        plans += 1;
        rollouts += u64::from(summary.planned.unwrap_or(summary.begun));
        tokens += summary.tokens;
        print(&line(&summary));
    }
    let (segments, bytes) = (catalogue.segments(), catalogue.bytes());
    print(&format!("{plans} plans, {rollouts} rollouts, {tokens} tokens; {segments} segments, {bytes} bytes"));
    Ok(DONE)
}

fn synchronisations(directory: &Path) -> Outcome {
    for record in Records::of(directory)? {
        if let record @ (Record::Synchronisation(_) | Record::Resync(_)) = record? {
            print(&record.to_string());
        }
    }
    Ok(DONE)
}

/// Tells what comes from here on.
async fn tell(directory: &Path) -> Outcome {
    let mut records = Records::of(directory)?;
    records.by_ref().try_for_each(|record| record.map(|_| ()))?;
    watch(records, |record| {
        print(&record.to_string());
        false
    })
    .await?;
    Ok(DONE)
}

/// Gives each record that comes, until one is enough or the command is interrupted.
async fn watch(
    mut records: Records,
    mut enough: impl FnMut(Record) -> bool,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut look = tokio::time::interval(LOOK);
    loop {
        for record in records.by_ref() {
            if enough(record?) {
                return Ok(());
            }
        }
        tokio::select! {
            _ = look.tick() => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

fn row(cells: [&str; 6]) -> String {
    let [plan, state, rollouts, tokens, bytes, versions] = cells;
    format!("{plan:>8}  {state:<8}  {rollouts:>11}  {tokens:>11}  {bytes:>13}  {versions}")
}

fn line(summary: &PlanSummary) -> String {
    let state = match summary.state {
        PlanState::Open => "open",
        PlanState::Sealed => "sealed",
        PlanState::Consumed => "consumed",
    };
    let planned = summary.planned.map_or_else(|| "?".to_owned(), |planned| planned.to_string());
    let rollouts = format!("{}/{planned}", summary.begun);
    let (plan, tokens, bytes) = (summary.plan.to_string(), summary.tokens.to_string(), summary.bytes.to_string());
    row([&plan, state, &rollouts, &tokens, &bytes, &names(&summary.versions)])
}

/// Versions in words, the many by the first and the last.
fn names(versions: &BTreeSet<Option<WeightVersion>>) -> String {
    let name = |version: &Option<WeightVersion>| match version {
        Some(version) => version.to_string(),
        None => "undeclared".to_owned(),
    };
    match (versions.first(), versions.last()) {
        (Some(first), Some(last)) if versions.len() > 4 => {
            format!("{} .. {} ({})", name(first), name(last), versions.len())
        }
        _ => versions.iter().map(name).collect::<Vec<_>>().join(" "),
    }
}

fn check(directory: &Path) -> Outcome {
    let verified = verify(directory)?;
    verified.faults.iter().for_each(|fault| print(&format!("wrong: {fault}")));
    if verified.torn > 0 {
        print(&format!("the last segment ends in {} bytes of a write that was interrupted, or goes on", verified.torn));
    }
    let (segments, records, bytes) = (verified.segments, verified.records, verified.bytes);
    let faults = verified.faults.len();
    print(&format!("{segments} segments, {records} sound records, {bytes} sound bytes, {faults} faults"));
    Ok(if faults == 0 { DONE } else { WRONG })
}

/// The file appears when it is whole. A link stays one, and a pipe or a device is written into.
fn write(directory: &Path, format: Format, out: &Path) -> Outcome {
    let catalogue = Catalogue::open(directory)?;
    let failed = |source: std::io::Error| format!("cannot write {}: {source}", out.display());
    let (place, whole) = target(out);
    let mut new = place.clone().into_os_string();
    new.push(if whole { ".new" } else { "" });
    let new = PathBuf::from(new);
    let mut file = BufWriter::new(File::create(&new).map_err(failed)?);
    let rows = match format {
        Format::Jsonl => export::jsonl(&catalogue, &mut file)?,
        Format::Parquet => export::parquet(&catalogue, &mut file)?,
    };
    file.flush().map_err(failed)?;
    if whole {
        std::fs::rename(&new, &place).map_err(failed)?;
    }
    say(&format!("{rows} rollouts in {}", out.display()));
    Ok(DONE)
}
