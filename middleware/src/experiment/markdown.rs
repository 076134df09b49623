//! The tables of the documentation, from the results.

use super::{
    Arm, Sync, claims,
    outcome::{Results, Row},
    table::shown,
    verdict::Verdict,
};
use std::fmt::Write;

/// The rows by what their sampler is, then the verdicts.
pub fn tables(results: &Results, verdicts: &[Verdict]) -> String {
    let steps: Vec<String> = shown(results).iter().map(u64::to_string).collect();
    let mut text = format!("| row | steps {} | worst | worst, by seed | syncs | reward |\n", steps.join(" / "));
    text += "|---|---|---|---|---|---|\n";
    let mut heading = String::new();
    for row in in_groups(results) {
        let group = group(row);
        if group != heading {
            let _ = writeln!(text, "| **{group}** | | | | | |");
            heading = group;
        }
        text += &line(results, row);
    }
    text += "\n| | verdict | numbers |\n|---|---|---|\n";
    for Verdict { id, claim, ruling, numbers } in verdicts {
        let _ = writeln!(text, "| {id}: {claim} | {ruling} | {numbers} |");
    }
    text
}

/// The rows, those of a group behind the first of it.
fn in_groups(results: &Results) -> Vec<&Row> {
    let mut groups = Vec::<String>::new();
    for row in &results.rows {
        let group = group(row);
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    let mut rows: Vec<&Row> = results.rows.iter().collect();
    rows.sort_by_key(|row| groups.iter().position(|group| *group == self::group(row)));
    rows
}

fn group(row: &Row) -> String {
    let Some(Arm { numerics, sync, .. }) = row.arms.first().map(|outcome| &outcome.arm) else { return String::new() };
    if row.name.contains("wrong_") {
        return "Wrong on purpose, stale sampler".into();
    }
    if row.name == claims::UNTRAINED || row.name == "none-exact-fresh" {
        return "Controls".into();
    }
    let sync = match sync {
        Sync::Never => "stale".into(),
        Sync::Every(1) => "fresh".into(),
        Sync::Every(n) => format!("new weights every {n} updates"),
        Sync::Policy(_) | Sync::ClippedEss => "with the trigger".into(),
        Sync::AsOftenAs(_) => "as many synchronisations, evenly".into(),
    };
    format!("{numerics} sampler, {sync}")
}

fn line(results: &Results, row: &Row) -> String {
    let floors: Vec<String> = shown(results).iter().map(|&step| one(results.floors(&row.name, step))).collect();
    let worst = results.curve(&row.name).into_iter().map(|(_, floors)| floors).reduce(f64::max);
    let by_seed: Vec<String> = row.arms.iter().map(|arm| one(results.worst(arm))).collect();
    let last = results.plan.setting.evaluations().last().copied().unwrap_or(0);
    let reward = row.reward(last).map_or_else(|| "-".into(), |reward| format!("{reward:.2}"));
    let (name, floors, worst) = (&row.name, floors.join(" / "), one(worst));
    format!("| `{name}` | {floors} | {worst} | {} | {:.1} | {reward} |\n", by_seed.join(", "), row.syncs())
}

fn one(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.1}"))
}
