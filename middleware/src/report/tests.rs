//! The page as a whole: well-formed, escaped, complete, and calm at the edges.

use super::*;
use crate::metrics::ResyncReason;
use lockstep_core::{
    WeightVersion,
    dlc::{
        EssReport,
        statistics::{TermReport, TermStatistics},
    },
};

const CONFIGURATION: &str = "stage = \"dlc\"\n\n[trigger]\nlevel = \"horizon\"\nhorizon = 24\nthreshold = 0.5\n";

/// A step of a run whose ESS decays until the sampler gets new weights.
fn step(step: u64) -> StepMetrics {
    let age = (step - 1) % 14;
    let wave = ((step * 7919) % 101) as f64 / 101.0 - 0.5;
    let drift = age as f64 * (1.0 + 0.3 * wave);
    let version = |step| WeightVersion { epoch: 0, step };
    let term = |kl: f64| TermStatistics { mean: kl, k3: kl, max_abs: kl.sqrt(), kl, ..TermStatistics::default() };
    StepMetrics {
        step,
        plan: step,
        rollouts: 64,
        reward: 0.85 - 0.75 * (-(step as f64) / 45.0).exp() + 0.08 * wave,
        length: 210.0 + 40.0 * wave,
        truncated_share: if step.is_multiple_of(9) { 3.0 / 64.0 } else { 0.0 },
        sampler_version: version(step - 1 - age),
        trainer_version: version(step - 1),
        ess: EssReport {
            token: (-0.002 * drift).exp(),
            sequence: (-0.22 * drift).exp(),
            horizon: (-0.055 * drift).exp(),
            horizon_tokens: 24,
            sequences: 64,
            tokens: 13_440,
        },
        null_ess: step.is_multiple_of(20).then_some(0.996 + 0.004 * wave),
        terms: TermReport {
            lag: term(4e-5 * drift * drift),
            numeric: term(3.1e-5 * (1.0 + 0.3 * wave)),
            clipped_share: 0.002 * drift,
            support_size: 5.0 + 3.0 * (-(step as f64) / 90.0).exp() + wave,
            tokens: 13_440,
            ..TermReport::default()
        },
        aliases: std::collections::BTreeMap::new(),
        forecast: lockstep_core::dlc::Forecast::default(),
        resync: match age {
            13 if step == 42 => Some(ResyncReason::Interval),
            13 => Some(ResyncReason::Ess),
            _ => None,
        },
        loss: -0.01 * wave,
        gradient_norm: 0.6 + 0.5 * (-(step as f64) / 30.0).exp() + 0.3 * wave * wave,
    }
}

fn summary(metrics: &[StepMetrics]) -> RunSummary<'_> {
    let title = "Qwen3-0.6B on sums, batches of 64";
    RunSummary {
        title,
        stage: "dlc",
        configuration: CONFIGURATION,
        metrics,
        threshold: 0.5,
        level: TriggerLevel::Horizon,
    }
}

fn run(steps: u64) -> Vec<StepMetrics> {
    (1..=steps).map(step).collect()
}

/// Every tag closes in order; attributes are quoted; nothing but the doctype is exempt.
fn assert_well_formed(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap();
    while let Some(start) = rest.find('<') {
        let (tag, after) = rest[start + 1..].split_once('>').unwrap();
        rest = after;
        assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
        assert!(!tag.contains('<'), "{tag}");
        let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(name);
        }
        if let "script" | "style" = name
            && !tag.starts_with('/')
        {
            rest = &rest[rest.find(&format!("</{name}>")).unwrap()..];
        }
    }
    assert_eq!(open, [""; 0]);
}

/// No number that is none, in text or in an attribute.
fn assert_numbers(page: &str) {
    let words = page.split(|c: char| !c.is_ascii_alphanumeric());
    let bad = words.filter(|word| matches!(word.to_ascii_lowercase().as_str(), "nan" | "inf" | "infinity"));
    assert_eq!(bad.collect::<Vec<_>>(), [""; 0]);
}

fn checked(metrics: &[StepMetrics]) -> String {
    let page = render(&summary(metrics));
    assert_well_formed(&page);
    assert_numbers(&page);
    page
}

#[test]
fn a_run_has_its_sentence_its_table_and_its_plots() {
    let page = checked(&run(120));
    assert!(page.contains(
        "Reward rose from <b>0.180</b> in the first 10 steps to <b>0.791</b> in the last 10, over 120 steps"
    ));
    assert!(page.contains("the sampler was re-synchronised 8 times, and the smallest horizon ESS was"));
    assert!(page.contains("ESS: after steps 14, 28, 56, 70, 84, 98, 112; interval: after step 42"));
    assert!(page.contains("39 of 7,680 answers"));
    assert!(page.contains("lag: 9 steps of 120 not drawn, because a log axis cannot show zero"));
    assert_eq!(page.matches("<svg class=\"plot\"").count(), 6);
    assert_eq!(page.matches("<desc ").count(), 6);
    assert_eq!(page.matches("<tr data-step=").count(), 120);
}

#[test]
fn every_plot_marks_every_resync_by_its_reason() {
    let page = checked(&run(120));
    for figure in page.split("<figure ").skip(1) {
        assert_eq!(figure.matches("<g class=\"mark ess\">").count(), 7);
        assert_eq!(figure.matches("<g class=\"mark interval\">").count(), 1);
        assert!(figure.contains("after step 42</title>"));
    }
}

#[test]
fn what_comes_from_outside_is_escaped() {
    let metrics = run(3);
    let evil = "</title><script>alert('x')</script> & \"q\"";
    let page = render(&RunSummary { title: evil, stage: evil, configuration: evil, ..summary(&metrics) });
    assert_well_formed(&page);
    assert_eq!(page.matches("<script>").count(), 1);
    assert_eq!(page.matches("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &quot;q&quot;").count(), 4);
}

#[test]
fn the_page_loads_nothing() {
    let page = checked(&run(3));
    for word in ["http:", "https:", "url(", "@import", " src=", "fetch("] {
        assert!(!page.contains(word), "{word}");
    }
}

#[test]
fn short_and_constant_runs_are_reports_too() {
    assert!(checked(&[]).contains("The run has no steps yet."));
    let one = checked(&run(1));
    assert!(one.contains("One step, with a mean reward of 0.109"));
    assert!(checked(&run(2)).contains("at the first step to"));
    assert!(checked(&run(7)).contains("in the first 3 steps to"));
    let constant: Vec<_> =
        run(30).into_iter().map(|at| StepMetrics { step: at.step, resync: None, ..step(5) }).collect();
    let page = checked(&constant);
    assert!(page.contains("Reward stayed at"));
    assert!(page.contains("the sampler was never re-synchronised"));
}

#[test]
fn what_is_no_number_is_a_gap_with_a_note() {
    let mut metrics = run(30);
    metrics[4].reward = f64::NAN;
    metrics[5].ess.token = f64::INFINITY;
    metrics[6].gradient_norm = f64::MAX;
    metrics[7].trainer_version.epoch = 1;
    metrics.iter_mut().for_each(|step| step.terms.lag.kl = -1e-9);
    let page = checked(&metrics);
    assert!(page.contains("each step: 1 step of 30 not drawn, because the value is not a finite number"));
    assert!(page.contains("token: 1 step of 30 not drawn"));
    assert!(page.contains("sampler lag: 1 step of 30 not drawn, because sampler and trainer are of different epochs"));
    assert!(page.contains("lag: 30 steps of 30 not drawn"));
}

/// Pages for the browser check, where a directory is asked for.
#[test]
fn pages_are_written_where_asked() {
    let Some(directory) = std::env::var_os("LOCKSTEP_REPORT_DIR") else { return };
    let directory = std::path::PathBuf::from(directory);
    for steps in [0, 1, 12, 120, 1000] {
        std::fs::write(directory.join(format!("report-{steps}.html")), render(&summary(&run(steps)))).unwrap();
    }
}
