//! The tables of checks and of public reports in the README, written from the code.

use crate::{cases, suite::Suite};
use std::fmt::Write;

/// Line before the table.
pub const BEGIN: &str = "<!-- checks: begin -->";

/// Line after the table.
pub const END: &str = "<!-- checks: end -->";

/// The table: check, demand, faults, public reports.
pub fn table() -> String {
    let mut out = String::from("| check | demand | faults that turn it red | reported as |\n|---|---|---|---|\n");
    for check in Suite::deep().checks() {
        let faults: Vec<String> = check.faults().map(|fault| format!("`{}`: {}", fault.id, fault.does)).collect();
        let (id, demand, cases) = (check.id, check.demand, check.cases.join(", "));
        // Writing to a string cannot fail.
        let _ = writeln!(out, "| `{id}` | {demand} | {} | {cases} |", faults.join("<br>"));
    }
    out
}

/// A README with its tables replaced; `None` where it has no place for one.
pub fn updated(readme: &str) -> Option<String> {
    let readme = replaced(readme, (BEGIN, END), &table())?;
    replaced(&readme, (cases::BEGIN, cases::END), &cases::table())
}

fn replaced(text: &str, (begin, end): (&str, &str), table: &str) -> Option<String> {
    let (before, rest) = text.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!("{before}{begin}\n{table}{end}{after}"))
}
