//! The rows as text and as CSV.

use super::outcome::{Results, Row};
use std::fmt::Write;

/// Steps at which the table shows the distance: the looks nearest to fifths of the run.
pub(super) fn shown(results: &Results) -> Vec<u64> {
    let looks = results.plan.setting.evaluations();
    let at = |fifth: usize| looks.get((looks.len() * fifth / 5).saturating_sub(1)).copied();
    let mut steps: Vec<u64> = (1..=5).filter_map(at).collect();
    steps.dedup();
    steps
}

/// One line a row: distances in noise floors, smallest ESS, rewards, synchronisations.
pub fn lines(results: &Results) -> Vec<String> {
    let steps = shown(results);
    let last = steps.last().copied().unwrap_or(0);
    let width = results.rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max(12);
    let mut head = format!("{:<width$}", "floors at step");
    head.extend(steps.iter().map(|step| format!(" {step:>6}")));
    head += "  seeds  syncs  min ESS  own KL  reward  shown";
    let mut lines = vec![head];
    for row in &results.rows {
        let mut line = format!("{:<width$}", row.name);
        for &step in &steps {
            line += &results.floors(&row.name, step).map_or_else(|| format!(" {:>6}", "-"), |x| format!(" {x:>6.2}"));
        }
        let own = number(row.step(last, |record| record.terms.full.kl), 4);
        let (reward, shown) = (number(row.reward(last), 3), number(row.step(last, |record| record.reward), 3));
        let ess = number(smallest_ess(row), 3);
        let _ =
            write!(line, "  {:>5}  {:>5.1}  {ess:>7}  {own:>6}  {reward:>6}  {shown:>5}", row.arms.len(), row.syncs());
        lines.push(line);
    }
    lines
}

fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.decimals$}"))
}

/// The smallest horizon ESS of any step and seed.
pub(super) fn smallest_ess(row: &Row) -> Option<f64> {
    row.arms.iter().flat_map(|arm| &arm.steps).map(|record| record.ess.horizon).reduce(f64::min)
}

/// One line an arm and step; a distance only where there was a look.
pub fn csv(results: &Results) -> String {
    let mut csv = String::from(
        "row,correction,numerics,sync,learning_rate,seed,step,floors,distance,reward_policy,reward_batch,ess_token,\
         ess_sequence,ess_horizon,lag_kl,numeric_kl,own_kl,lag_pareto_k,gradient_norm,clipped_share,synced\n",
    );
    for outcome in results.references.iter().chain(results.rows.iter().flat_map(|row| &row.arms)) {
        let arm = &outcome.arm;
        let rate = arm.learning_rate.unwrap_or(results.plan.setting.learning_rate);
        for step in 1..=results.plan.setting.steps {
            let look = outcome.evaluations.iter().find(|look| look.step == step);
            let record = outcome.steps.iter().find(|record| record.step == step);
            let distance = look.and_then(|look| super::outcome::mean(&look.distances));
            let floors = distance.zip(results.floor.as_ref().and_then(|floor| floor.at(step))).map(|(d, f)| d / f);
            let synced = outcome.synced.iter().any(|synced| synced.step == step);
            let cell = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
            let of = |of: fn(&super::outcome::StepRecord) -> f64| cell(record.map(of));
            let cells = [
                cell(floors),
                cell(distance),
                cell(look.map(|look| look.reward)),
                of(|r| r.reward),
                of(|r| r.ess.token),
                of(|r| r.ess.sequence),
                of(|r| r.ess.horizon),
                of(|r| r.terms.lag.kl),
                of(|r| r.terms.numeric.kl),
                of(|r| r.terms.full.kl),
                cell(record.and_then(|r| r.terms.shape.lag_pareto_k)),
                of(|r| r.gradient_norm),
                of(|r| r.terms.clipped_share),
                u8::from(synced).to_string(),
            ];
            let (row, numerics) = (quoted(&arm.row()), quoted(&arm.numerics));
            let head = format!("{row},{},{numerics},{},{rate},{},{step}", arm.correction, arm.sync, arm.seed);
            let _ = writeln!(csv, "{head},{}", cells.join(","));
        }
    }
    csv
}

/// A cell that may hold a comma.
fn quoted(text: &str) -> String {
    if text.contains(',') { format!("\"{text}\"") } else { text.to_owned() }
}
