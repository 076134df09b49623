//! The two tables: what the run adds up to, and every step of it.

use super::{
    RunSummary,
    facts::{Facts, running_reward, version_lag},
    text::{count, exact, grouped, level, number, percent, step as step_number},
};
use crate::metrics::{ResyncReason, StepMetrics};
use lockstep_core::dlc::resync::{NULL_ESS_FLOOR, TriggerLevel};
use std::fmt::Write;

/// Re-synchronisations named one by one; the rest are in the table of all steps.
const NAMED_RESYNCS: usize = 16;

type Row = (String, String, String);

/// What the run adds up to.
pub(super) fn summary(summary: &RunSummary<'_>, facts: &Facts) -> String {
    let rows = [reward_rows(facts), vec![resync_row(facts)], ess_rows(summary, facts), mean_rows(facts)].concat();
    let row = |(name, value, remark): &Row| {
        format!("<tr><th scope=\"row\">{name}</th><td class=\"value\">{value}</td><td>{remark}</td></tr>\n")
    };
    let rows: String = rows.iter().map(row).collect();
    format!("<table class=\"numbers\">\n<tbody>\n{rows}</tbody>\n</table>\n")
}

fn row(name: &str, value: impl Into<String>, remark: impl Into<String>) -> Row {
    (name.into(), value.into(), remark.into())
}

fn reward_rows(facts: &Facts) -> Vec<Row> {
    let remark = |end: &str| match facts.window {
        0 => "no steps".into(),
        1 => format!("{end} step"),
        n => format!("mean of the {end} {n} steps"),
    };
    vec![
        row("Reward at the start", number(facts.reward_first), remark("first")),
        row("Reward at the end", number(facts.reward_last), remark("last")),
    ]
}

fn resync_row(facts: &Facts) -> Row {
    let words =
        [(ResyncReason::Ess, "ESS"), (ResyncReason::Forecast, "forecast"), (ResyncReason::Interval, "interval")];
    let named = words.map(|(reason, word)| {
        let steps: Vec<u64> = facts.resyncs.iter().filter(|(_, why)| *why == reason).map(|(step, _)| *step).collect();
        (!steps.is_empty()).then(|| format!("{word}: after {}", step_list(&steps)))
    });
    let remark = named.into_iter().flatten().collect::<Vec<_>>().join("; ");
    row("Re-synchronisations", grouped(&facts.resyncs.len().to_string()), remark)
}

fn step_list(steps: &[u64]) -> String {
    let named: Vec<_> = steps.iter().take(NAMED_RESYNCS).copied().map(step_number).collect();
    let noun = if steps.len() == 1 { "step" } else { "steps" };
    let more = match steps.len() - named.len() {
        0 => String::new(),
        rest => format!(" and {} more", grouped(&rest.to_string())),
    };
    format!("{noun} {}{more}", named.join(", "))
}

fn ess_rows(summary: &RunSummary<'_>, facts: &Facts) -> Vec<Row> {
    let horizon = summary.horizon_tokens().map(|tokens| format!(" ({tokens} tokens)")).unwrap_or_default();
    let levels = [
        (TriggerLevel::Token, "", facts.token),
        (TriggerLevel::Sequence, "", facts.sequence),
        (TriggerLevel::Horizon, &horizon[..], facts.horizon),
    ];
    let mut rows: Vec<Row> = levels
        .map(|(at, detail, smallest)| {
            let name = format!("Smallest ESS, {}{detail}", level(at));
            let (ess, step) = value_and_step(smallest);
            let below = format!("watched; below {} on {}", exact(summary.threshold), count(facts.below, "step"));
            let remark = if at == summary.level && smallest.is_some() { format!("{step}; {below}") } else { step };
            row(&name, ess, remark)
        })
        .into();
    let (null, step) = value_and_step(facts.null);
    let refused = facts.null.is_some_and(|(null, _)| null < NULL_ESS_FLOOR);
    let remark = match (facts.null_measured, refused) {
        (0, _) => "never measured".into(),
        (n, false) => format!("{step}; equal versions, measured on {}", count(n, "step")),
        (_, true) => {
            format!("{step}; below {NULL_ESS_FLOOR}: this level measures rounding, and the trigger refuses it")
        }
    };
    rows.push(row("Smallest null ESS", null, remark));
    rows
}

fn value_and_step(smallest: Option<(f64, u64)>) -> (String, String) {
    smallest
        .map_or_else(|| ("–".into(), String::new()), |(ess, at)| (number(ess), format!("at step {}", step_number(at))))
}

fn mean_rows(facts: &Facts) -> Vec<Row> {
    let share = facts.truncated / facts.answers as f64;
    let cut = format!("{} of {}", grouped(&format!("{:.0}", facts.truncated)), count(facts.answers, "answer"));
    vec![
        row("Mean lag KL", number(facts.lag_kl), "nats a token"),
        row("Mean numeric KL", number(facts.numeric_kl), "nats a token"),
        row("Mean support size", number(facts.support_size), "ids a position"),
        row("Cut by the token limit", percent(share), if share.is_finite() { cut } else { String::new() }),
    ]
}

type Column = (&'static str, &'static str, fn(&StepMetrics) -> String);

/// Key, heading and text of every column that needs one step only.
const COLUMNS: [Column; 18] = [
    ("plan", "plan", |step| step_number(step.plan)),
    ("rollouts", "answers", |step| grouped(&step.rollouts.to_string())),
    ("reward", "reward", |step| number(step.reward)),
    ("length", "mean length", |step| number(step.length)),
    ("truncated", "cut", |step| percent(step.truncated_share)),
    ("sampler", "sampler", |step| step.sampler_version.to_string()),
    ("trainer", "trainer", |step| step.trainer_version.to_string()),
    ("version-lag", "versions behind", |step| {
        version_lag(step).map_or_else(|| "–".into(), |lag| grouped(&lag.to_string()))
    }),
    ("token", "ESS token", |step| number(step.ess.token)),
    ("sequence", "ESS sequence", |step| number(step.ess.sequence)),
    ("horizon", "ESS horizon", |step| number(step.ess.horizon)),
    ("null", "null ESS", |step| step.null_ess.map_or_else(|| "–".into(), number)),
    ("lag-kl", "lag KL", |step| number(step.terms.lag.kl)),
    ("numeric-kl", "numeric KL", |step| number(step.terms.numeric.kl)),
    ("clipped", "clipped", |step| percent(step.terms.clipped_share)),
    ("support-size", "support size", |step| number(step.terms.support_size)),
    ("loss", "loss", |step| number(step.loss)),
    ("gradient-norm", "gradient norm", |step| number(step.gradient_norm)),
];

/// Every step of the run; the hover script reads its values here.
pub(super) fn steps(metrics: &[StepMetrics]) -> String {
    let mut table = String::from(
        "<div class=\"scroll\" tabindex=\"0\">\n<table id=\"steps\">\n<thead>\n<tr><th scope=\"col\" data-key=\"step\">step</th>",
    );
    for (key, heading, _) in COLUMNS {
        let _ = write!(table, "<th scope=\"col\" data-key=\"{key}\">{heading}</th>");
    }
    table += "<th scope=\"col\" data-key=\"reward-mean\">reward, mean of 10</th><th scope=\"col\" data-key=\"resync\">re-synchronised</th></tr>\n</thead>\n<tbody>\n";
    for (step, mean) in metrics.iter().zip(running_reward(metrics)) {
        let number_of_step = step_number(step.step);
        let _ = write!(table, "<tr data-step=\"{}\"><th scope=\"row\">{number_of_step}</th>", step.step);
        for (_, _, text) in COLUMNS {
            let _ = write!(table, "<td>{}</td>", text(step));
        }
        let mean = mean.map_or_else(|| "–".into(), number);
        let _ = writeln!(table, "<td>{mean}</td><td>{}</td></tr>", reason(step.resync));
    }
    table + "</tbody>\n</table>\n</div>\n"
}

fn reason(resync: Option<ResyncReason>) -> &'static str {
    match resync {
        Some(ResyncReason::Ess) => "ESS",
        Some(ResyncReason::Interval) => "interval",
        Some(ResyncReason::Forecast) => "forecast",
        None => "",
    }
}
