//! `lockstep advise`: which correction a run calls for.

use super::{DONE, Outcome, print};
use crate::advise::{advise, read};
use clap::Args;
use std::path::PathBuf;

/// Arguments of `lockstep advise`.
///
/// Reads the lag and the numeric discrepancy of a run and says which correction fits them, and why.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The directory of a run, with its metrics.jsonl.
    run: PathBuf,
}

#[expect(clippy::needless_pass_by_value, reason = "every command takes its arguments")]
pub(super) fn run(arguments: Arguments) -> Outcome {
    let advised = advise(&read(&arguments.run)?);
    print(&advised.recommendation);
    advised.evidence.iter().for_each(|line| print(&format!("  {line}")));
    Ok(DONE)
}
