//! An audit as a table for people.

use super::{Audit, Comparison, Correlation, Distribution};

/// Broken rules that are named; the rest is counted.
const NAMED: usize = 8;

pub(super) fn table(audit: &Audit) -> String {
    let mut lines = vec![
        format!(
            "{} plans opened with {} rollouts; {} batches trained on {} rollouts",
            audit.plans, audit.dispatched, audit.batches, audit.trained
        ),
        String::new(),
        format!("{:<18} {:>7} {:>10} {:>9} {:>9} {:>9}", "", "count", "mean", "median", "90 %", "max"),
    ];
    for (name, comparison) in [("length", &audit.length), ("reward", &audit.reward)] {
        lines.push(distribution(&format!("{name}, generated"), comparison.generated));
        lines.push(distribution(&format!("{name}, trained"), comparison.trained));
        lines.push(equality(comparison));
    }
    lines.push(String::new());
    lines.push(format!("{:<18} {:<10} {:>7} {:>8}  {}", "rank correlation", "with", "count", "rho", "p, corrected"));
    lines.extend(audit.correlations.iter().map(correlation));
    lines.push(String::new());
    lines.extend(verdict(audit));
    lines.join("\n")
}

fn distribution(name: &str, found: Option<Distribution>) -> String {
    found.map_or_else(
        || format!("{name:<18} {:>7}", 0),
        |it| {
            let (count, mean) = (it.count, it.mean);
            format!("{name:<18} {count:>7} {mean:>10.4} {:>9} {:>9} {:>9}", it.median, it.p90, it.max)
        },
    )
}

fn equality(comparison: &Comparison) -> String {
    if comparison.equal { "  equal".into() } else { format!("  differ by {:.4}  RED", comparison.distance) }
}

fn correlation(it: &Correlation) -> String {
    let with = format!("{:?}", it.with).to_lowercase();
    let (of, count) = (it.of, it.count);
    match (it.rho, it.p) {
        (Some(rho), Some(p)) => {
            let p = if p < 1e-6 { "< 0.000001".to_owned() } else { format!("{p:.6}") };
            format!("{of:<18} {with:<10} {count:>7} {rho:>8.4}  {p}")
        }
        _ => format!("{of:<18} {with:<10} {count:>7} {:>8}", "constant"),
    }
}

fn verdict(audit: &Audit) -> Vec<String> {
    if !audit.is_red() {
        let said =
            "membership was a function of dispatch order alone: every batch is one plan, whole, once, in its turn";
        return vec![said.into()];
    }
    let mut lines = vec![format!("RED: {} broken rules of membership", audit.broken.len())];
    lines.extend(audit.broken.iter().take(NAMED).map(|rule| format!("  {rule}")));
    if audit.broken.len() > NAMED {
        lines.push(format!("  and {} more", audit.broken.len() - NAMED));
    }
    lines
}
