//! The self-contained page of a training run: what happened, in one sentence, one table and six plots.
//!
//! Knows the records of [`crate::metrics`] and nothing of how they came about. Reads no file and no clock; the page it
//! writes loads nothing.

mod axis;
pub mod comparison;
mod facts;
mod figures;
mod legend;
mod plot;
mod table;
mod text;

#[cfg(test)]
mod tests;

use crate::metrics::StepMetrics;
use facts::Facts;
use lockstep_core::dlc::resync::TriggerLevel;
use text::escape;

const STYLE: &str = include_str!("report/style.css");
const HOVER: &str = include_str!("report/hover.js");

/// What a report is made of.
#[derive(Debug, Clone, Copy)]
pub struct RunSummary<'a> {
    /// Name of the run, as its heading.
    pub title: &'a str,
    /// The stage it ran in: `observe`, `fix` or `dlc`.
    pub stage: &'a str,
    /// The configuration, as TOML text.
    pub configuration: &'a str,
    /// Every step, in order.
    pub metrics: &'a [StepMetrics],
    /// Below this ESS the sampler is re-synchronised.
    pub threshold: f64,
    /// The level the trigger watches.
    pub level: TriggerLevel,
}

impl RunSummary<'_> {
    fn horizon_tokens(&self) -> Option<u32> {
        self.metrics.first().map(|step| step.ess.horizon_tokens)
    }
}

/// The report as one HTML file: no network, no fonts, no images but the curves in it.
pub fn render(summary: &RunSummary<'_>) -> String {
    let facts = Facts::of(summary);
    let title = escape(summary.title);
    let stage = escape(summary.stage);
    let lead = text::headline(summary, &facts);
    let overview = overview(summary, &facts);
    let curves = figures::section(summary);
    let appendix = appendix(summary);
    format!(
        r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8" />
<meta name="viewport" content="width=device-width, initial-scale=1" />
<meta name="color-scheme" content="light dark" />
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:" />
<link rel="icon" href="data:," />
<title>{title}</title>
<style>
{STYLE}</style>
</head>
<body>
<main>
<header>
<p class="stage">Lockstep training run, stage <b>{stage}</b></p>
<h1>{title}</h1>
<p class="lead">{lead}</p>
</header>
{overview}{curves}{appendix}</main>
<script>
{HOVER}</script>
</body>
</html>
"#
    )
}

fn overview(summary: &RunSummary<'_>, facts: &Facts) -> String {
    let numbers = table::summary(summary, facts);
    let reading = text::how_to_read(summary);
    format!(
        r#"<div class="overview">
<section aria-labelledby="numbers">
<h2 id="numbers">In numbers</h2>
{numbers}</section>
<section class="reading" aria-labelledby="reading">
<h2 id="reading">How to read it</h2>
{reading}</section>
</div>
"#
    )
}

fn appendix(summary: &RunSummary<'_>) -> String {
    let configuration = escape(summary.configuration);
    let steps = table::steps(summary.metrics);
    let count = text::count(summary.metrics.len(), "step");
    format!(
        r#"<section aria-labelledby="appendix">
<h2 id="appendix">Everything behind it</h2>
<details>
<summary>Configuration</summary>
<pre tabindex="0">{configuration}</pre>
</details>
<details>
<summary>All steps <span class="muted">({count})</span></summary>
{steps}</details>
</section>
"#
    )
}
