//! The command line. Exit codes: 0 done, 1 something was found wrong, 2 could not run, 3 wrong usage, 130 interrupted.

mod advise;
#[cfg(feature = "engine")]
mod asked;
mod audit;
mod conformance;
#[cfg(feature = "engine")]
mod demo;
#[cfg(feature = "engine")]
mod engine;
#[cfg(feature = "engine")]
mod experiment;
mod ledger;
mod record;
#[cfg(feature = "engine")]
mod sample;
#[cfg(feature = "engine")]
mod score;
mod serve;
mod simulate;

use crate::progress::say;
use clap::{Parser, Subcommand, error::ErrorKind};
use std::{error::Error, io::Write, process::ExitCode};

/// Done.
const DONE: u8 = 0;
/// Could not run.
const COULD_NOT_RUN: u8 = 2;
/// Wrong usage.
const USAGE: u8 = 3;
/// Ended by Ctrl-C.
#[cfg(feature = "engine")]
const INTERRUPTED: u8 = 130;

/// A consistency layer for reinforcement-learning post-training of language models.
///
/// Stands between the engine that samples answers and the trainer that learns from them, and makes the two agree: records
/// the distribution each token was really drawn from, fixes batches before reward exists, stamps every token with its
/// weights, and corrects what remains.
#[derive(Debug, Parser)]
#[command(name = "lockstep", version, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Trains the built-in Qwen3 pair through the whole path, with a stale sampler.
    #[cfg(feature = "engine")]
    Demo(demo::Arguments),
    /// Draws answers with the built-in Qwen3 into a ledger, without a trainer.
    #[cfg(feature = "engine")]
    Sample(sample::Arguments),
    /// Scores the answers of a ledger under a model's weights, and holds them against what they were drawn from.
    #[cfg(feature = "engine")]
    Score(score::Arguments),
    /// Says which correction a run calls for, and why.
    Advise(advise::Arguments),
    /// Checks whether a sampler/trainer pair trains on what was sampled.
    Conformance(conformance::Arguments),
    /// Serves HTTP and gRPC in front of engines that already run, and records what they really drew.
    Serve(serve::Arguments),
    /// Stands before an engine and writes every exchange to a file.
    Record(record::RecordArguments),
    /// Serves recorded exchanges again, without the engine.
    Replay(record::ReplayArguments),
    /// Proves from a ledger that batches were made by dispatch order alone.
    Audit(audit::Arguments),
    /// Prints what waiting for the slowest costs the samplers, on a virtual clock.
    Simulate(simulate::Arguments),
    /// Measures how close each correction stays to on-policy training.
    #[cfg(feature = "engine")]
    Experiment(experiment::Arguments),
    /// Lists, shows, checks and exports what a run recorded.
    Ledger(ledger::Arguments),
    /// Serves the built-in Qwen3 sampler over gRPC.
    #[cfg(feature = "engine")]
    Sampler(engine::SamplerArguments),
    /// Serves the built-in Qwen3 trainer over gRPC.
    #[cfg(feature = "engine")]
    Trainer(engine::TrainerArguments),
}

/// What ends a command.
type Outcome = Result<u8, Box<dyn Error + Send + Sync>>;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("LOCKSTEP_LOG").unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    let outcome = runtime.block_on(run(cli.command));
    runtime.shutdown_background();
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => fail(&*error),
    }
}

async fn run(command: Command) -> Outcome {
    match command {
        #[cfg(feature = "engine")]
        Command::Demo(arguments) => demo::run(arguments).await,
        #[cfg(feature = "engine")]
        Command::Sample(arguments) => sample::run(arguments).await,
        #[cfg(feature = "engine")]
        Command::Score(arguments) => score::run(arguments).await,
        Command::Advise(arguments) => advise::run(arguments),
        Command::Conformance(arguments) => conformance::run(arguments).await,
        Command::Serve(arguments) => serve::run(arguments).await,
        Command::Record(arguments) => record::record(arguments).await,
        Command::Replay(arguments) => record::replay(arguments).await,
        Command::Audit(arguments) => audit::run(&arguments),
        Command::Simulate(arguments) => simulate::run(&arguments),
        #[cfg(feature = "engine")]
        Command::Experiment(arguments) => experiment::run(arguments).await,
        Command::Ledger(arguments) => ledger::run(arguments).await,
        #[cfg(feature = "engine")]
        Command::Sampler(arguments) => engine::sampler(arguments).await,
        #[cfg(feature = "engine")]
        Command::Trainer(arguments) => engine::trainer(arguments).await,
    }
}

/// `work` to its end; `None` where Ctrl-C came before, which is heard from the beginning.
#[cfg(feature = "engine")]
async fn unless_interrupted<T>(work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => None,
        done = work => Some(done),
    }
}

fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::from(DONE),
        _ => ExitCode::from(USAGE),
    }
}

fn fail(error: &dyn Error) -> ExitCode {
    say(&format!("error: {error}"));
    ExitCode::from(COULD_NOT_RUN)
}

/// One line of a command's own output. Nobody may be listening there, and that is no fault of the work.
fn print(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
