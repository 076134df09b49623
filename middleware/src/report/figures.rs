//! Which curves of a run are plotted, and how.

use super::{
    RunSummary,
    axis::Spacing,
    facts::{WINDOW, running_reward, version_lag},
    legend,
    plot::{Curve, LEFT, Mark, Plot, RIGHT},
    text::{exact, level},
};
use crate::metrics::{ResyncReason, StepMetrics};

const NO_NUMBER: &str = "because the value is not a finite number";
const NOT_POSITIVE: &str = "because a log axis cannot show zero or a negative value";
const EPOCHS: &str = "because sampler and trainer are of different epochs";

/// The six plots; a sentence where there is nothing to plot.
pub(super) fn section(summary: &RunSummary<'_>) -> String {
    let steps: Vec<u64> = summary.metrics.iter().map(|step| step.step).collect();
    let (Some(first), Some(last)) = (steps.iter().min(), steps.iter().max()) else {
        return "<section>\n<h2>Over the steps</h2>\n<p>No steps, so no curves.</p>\n</section>\n".into();
    };
    let threshold = exact(summary.threshold);
    let watched = level(summary.level);
    let (ess, interval) = (
        format!("sampler re-synchronised, {watched} ESS below {threshold}"),
        "sampler re-synchronised, interval was up".to_owned(),
    );
    let marks: Vec<Mark> = summary.metrics.iter().filter_map(mark).collect();
    let key = legend::marks(&marks, &[("ess", &ess), ("interval", &interval)]);
    let key = if key.is_empty() { "<li>The sampler was never re-synchronised.</li>\n".into() } else { key };
    let figures: String = plots(summary, &steps, &marks).iter().map(Plot::figure).collect();
    format!(
        r#"<section id="curves" data-first="{first}" data-last="{last}" data-left="{LEFT}" data-right="{RIGHT}" aria-labelledby="over-steps">
<h2 id="over-steps">Over the steps</h2>
<ul class="legend shared">
{key}</ul>
<div class="figures">
{figures}</div>
</section>
"#
    )
}

fn mark(step: &StepMetrics) -> Option<Mark> {
    let (class, name) = match step.resync? {
        ResyncReason::Ess => ("ess", "re-synchronised because the ESS fell below the threshold"),
        ResyncReason::Interval => ("interval", "re-synchronised because the interval was up"),
        ResyncReason::Forecast => ("ess", "re-synchronised because the ESS was about to fall below the threshold"),
    };
    Some(Mark { step: step.step, class, name })
}

fn plots<'a>(summary: &'a RunSummary<'_>, steps: &'a [u64], marks: &'a [Mark]) -> [Plot<'a>; 6] {
    let metrics = summary.metrics;
    let plot = |id, title, unit, curves| {
        let (spacing, threshold, reach): (_, _, &[f64]) = (Spacing::Linear, None, &[]);
        Plot { id, title, unit, spacing, steps, curves, marks, threshold, reach }
    };
    let ess = plot("ess", "Effective sample size", "ESS, share of the samples", ess(summary));
    let terms = plot("terms", "Lag and numeric discrepancy", "exact KL, nats a token (log axis)", terms(metrics));
    [
        plot("reward", "Reward", "mean reward of the batch", reward(metrics)),
        Plot { threshold: Some(summary.threshold), reach: &[1.0], ..ess },
        Plot { spacing: Spacing::Log, ..terms },
        Plot {
            reach: &[5.0],
            ..plot("sampler-lag", "Sampler lag", "versions behind the trainer", sampler_lag(metrics))
        },
        plot("support-size", "Support size", "mean ids a position", support_size(metrics)),
        plot("gradient-norm", "Gradient norm", "L2 norm before clipping", gradient_norm(metrics)),
    ]
}

fn curve(name: &str, class: &'static str, column: &'static str) -> Curve {
    Curve { name: name.into(), class, column, values: Vec::new(), gap: NO_NUMBER }
}

fn values(metrics: &[StepMetrics], value: fn(&StepMetrics) -> f64) -> Vec<Option<f64>> {
    metrics.iter().map(|step| Some(value(step))).collect()
}

fn reward(metrics: &[StepMetrics]) -> Vec<Curve> {
    let each = values(metrics, |step| step.reward);
    if metrics.len() < 2 * WINDOW {
        return vec![Curve { values: each, ..curve("reward", "a", "reward") }];
    }
    let name = format!("mean of the last {WINDOW}");
    vec![
        Curve { values: each, ..curve("each step", "a faint", "reward") },
        Curve { values: running_reward(metrics), ..curve(&name, "a strong", "reward-mean") },
    ]
}

fn ess(summary: &RunSummary<'_>) -> Vec<Curve> {
    let metrics = summary.metrics;
    let mut curves = vec![
        Curve { values: values(metrics, |step| step.ess.token), ..curve("token", "c", "token") },
        Curve { values: values(metrics, |step| step.ess.sequence), ..curve("sequence", "b", "sequence") },
        Curve { values: values(metrics, |step| step.ess.horizon), ..curve("horizon", "a", "horizon") },
    ];
    for curve in curves.iter_mut().filter(|curve| curve.column == level(summary.level)) {
        curve.name += " (watched)";
    }
    curves
}

fn terms(metrics: &[StepMetrics]) -> Vec<Curve> {
    let (lag, numeric) = (values(metrics, |step| step.terms.lag.kl), values(metrics, |step| step.terms.numeric.kl));
    vec![
        Curve { values: lag, gap: NOT_POSITIVE, ..curve("lag", "a", "lag-kl") },
        Curve { values: numeric, gap: NOT_POSITIVE, ..curve("numeric", "b", "numeric-kl") },
    ]
}

fn sampler_lag(metrics: &[StepMetrics]) -> Vec<Curve> {
    let lag = metrics.iter().map(|step| Some(version_lag(step).unwrap_or(f64::NAN))).collect();
    vec![Curve { values: lag, gap: EPOCHS, ..curve("sampler lag", "a", "version-lag") }]
}

fn support_size(metrics: &[StepMetrics]) -> Vec<Curve> {
    vec![Curve {
        values: values(metrics, |step| step.terms.support_size),
        ..curve("support size", "a", "support-size")
    }]
}

fn gradient_norm(metrics: &[StepMetrics]) -> Vec<Curve> {
    vec![Curve { values: values(metrics, |step| step.gradient_norm), ..curve("gradient norm", "a", "gradient-norm") }]
}
