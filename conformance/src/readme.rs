//! The table of checks in the README, written from the checks themselves.

use crate::suite::Suite;
use std::fmt::Write;

/// Line before the table.
pub const BEGIN: &str = "<!-- checks: begin -->";

/// Line after the table.
pub const END: &str = "<!-- checks: end -->";

/// The table: check, demand, faults, public reports.
pub fn table() -> String {
    let mut out = String::from("| check | demand | faults that turn it red | reported as |\n|---|---|---|---|\n");
    for check in Suite::all().checks() {
        let faults: Vec<String> = check.faults().map(|fault| format!("`{}`: {}", fault.id, fault.does)).collect();
        let (id, demand, cases) = (check.id, check.demand, check.cases.join(", "));
        // Writing to a string cannot fail.
        let _ = writeln!(out, "| `{id}` | {demand} | {} | {cases} |", faults.join("<br>"));
    }
    out
}

/// A README with its table replaced; `None` where it has no place for one.
pub fn updated(readme: &str) -> Option<String> {
    let (before, rest) = readme.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{}{END}{after}", table()))
}
