//! `lockstep audit`: was membership a function of dispatch order alone?

use super::{DONE, Outcome, print};
use crate::{
    audit::{Account, Audit},
    ledger,
};
use clap::Args;
use std::path::{Path, PathBuf};

/// Something could have selected.
const RED: u8 = 1;

/// Arguments of `lockstep audit`.
///
/// Exit code 0: every batch is one dispatched plan, whole, once, in its turn. 1: something could have selected, and what.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The directory of a run, or of its ledger.
    directory: PathBuf,
    /// Prints the audit as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Outcome {
    let account = Account::of(&ledger::read(&ledger_of(&arguments.directory))?)?;
    let audit = Audit::of(&account);
    if arguments.json {
        print(&serde_json::to_string_pretty(&audit)?);
    } else {
        audit.table().lines().for_each(print);
    }
    Ok(if audit.is_red() { RED } else { DONE })
}

fn ledger_of(directory: &Path) -> PathBuf {
    let inside = directory.join("ledger");
    if inside.is_dir() { inside } else { directory.to_owned() }
}
