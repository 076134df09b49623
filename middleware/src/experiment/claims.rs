//! The claims about discrepancy-lag correction, each as a sentence and as a question to the results.

use super::{
    outcome::{Outcome, Results, Row, StepRecord, mean},
    verdict::{Judged, Ruling, Verdict, close, control, largest, late, look_at, ruled, verdict},
};

pub(crate) const UNTRAINED: &str = "untrained-exact-never";
pub(crate) const NONE_STALE: &str = "none-exact-never";
pub(super) const IS_STALE: &str = "is-exact-never";
pub(super) const CENTRING_STALE: &str = "centring-exact-never";
pub(crate) const DLC: &str = "dlc_a-exact-trigger";
pub(super) const DLC_STALE: &str = "dlc_a-exact-never";
pub(super) const NONE_INT4: &str = "none-int4-fresh";
pub(super) const CENTRING_INT4: &str = "centring-int4-fresh";
const IS_INT4: &str = "is-int4-fresh";
const PPO_STALE: &str = "ppo_s-exact-never";
const PPO_Q_INT4: &str = "ppo_q-int4-fresh";

pub(super) fn all(results: &Results) -> Vec<Verdict> {
    vec![
        verdict("E1", "IS leaves the noise floor where the ESS of its ratio falls below 0.5", e1(results)),
        verdict("E2", "DLC-A with a stale sampler and the trigger stays within two floors", e2(results)),
        verdict("E3", "centring handles a quantised sampler and loses to IS with a stale one", e3(results)),
        verdict("E4", "PPO survives staleness and breaks under quantisation", e4(results)),
        verdict("E5", "the numeric term is about constant over steps, the lag grows", e5(results)),
        verdict("E6", "the excess of centring's gradient norm over IS is quadratic in rate x steps", e6(results)),
        verdict("E7", "forced synchronisation prevents collapses that a per-token rule leaves", e7(results)),
        verdict("E8", "ordinary KL on the sampler's own prefixes does not see a collapse", e8(results)),
        verdict("E9", "collapse under staleness grows with staleness x learning rate", e9(results)),
    ]
}

/// The first look beyond two floors.
fn exit(results: &Results, row: &str) -> Option<u64> {
    results.curve(row).into_iter().find(|(_, floors)| *floors > 2.0).map(|(step, _)| step)
}

fn e1(results: &Results) -> Judged {
    let row = results.row(IS_STALE)?;
    let crossings: Vec<Option<u64>> = row.crossings(0.5, |ess| ess.horizon);
    let known: Vec<f64> = crossings.iter().flatten().map(|&step| step as f64).collect();
    results.floor.as_ref()?;
    let exit = exit(results, IS_STALE);
    let near = results.plan.setting.evaluate_every as f64;
    let crossing = mean(&known);
    let holds = exit.zip(crossing).is_some_and(|(exit, crossing)| (exit as f64 - crossing).abs() <= near);
    let late: Vec<f64> = row.arms.iter().filter_map(gaussian_lateness).collect();
    let late =
        mean(&late).map_or_else(|| "no forecast".into(), |late| format!("Gaussian forecast {late:+.1} steps off"));
    let exit = exit.map_or_else(|| "never".into(), |step| format!("at step {step}"));
    let crossings: Vec<String> =
        crossings.iter().map(|at| at.map_or_else(|| "-".into(), |at| at.to_string())).collect();
    Some((ruled(holds), format!("leaves two floors {exit}; ESS below 0.5 at step {}; {late}", crossings.join(", "))))
}

/// How much later than the ESS the Gaussian forecast halfway to the crossing would have it cross, in steps.
fn gaussian_lateness(arm: &Outcome) -> Option<f64> {
    let crossing = arm.steps.iter().find(|record| record.ess.horizon < 0.5)?.step;
    let halfway = arm.steps.iter().find(|record| record.step * 2 >= crossing)?;
    Some(halfway.step as f64 + halfway.forecast.gaussian? - crossing as f64)
}

fn e2(results: &Results) -> Judged {
    let worst = largest(results, DLC)?;
    let control = control(results)?;
    let syncs = results.row(DLC)?.syncs();
    Some((
        close(results, worst <= 2.0),
        format!("at most {worst:.2} floors with {syncs:.1} syncs; control {control:.2}"),
    ))
}

fn e3(results: &Results) -> Judged {
    let end = look_at(results, 1.0)?;
    let (centring, none, is) =
        (late(results, CENTRING_INT4)?, late(results, NONE_INT4)?, late(results, IS_INT4).unwrap_or(f64::NAN));
    let (stale, is_stale) = (results.floors(CENTRING_STALE, end)?, results.floors(IS_STALE, end)?);
    let numbers = format!(
        "int4 fresh: centring {centring:.2}, none {none:.2}, IS {is:.2}; stale, at the end: {stale:.2} against {is_stale:.2}"
    );
    Some((ruled(centring < none && stale > is_stale), numbers))
}

fn e4(results: &Results) -> Judged {
    let end = look_at(results, 1.0)?;
    let (ppo, none, coarse) =
        (results.floors(PPO_STALE, end)?, results.floors(NONE_STALE, end)?, results.floors(PPO_Q_INT4, end)?);
    let holds = ppo < none / 2.0 && coarse > 5.0;
    Some((
        ruled(holds),
        format!("stale, on p_s: {ppo:.2} (none {none:.2}); int4 fresh, on q: {coarse:.2} floors at the end"),
    ))
}

fn e5(results: &Results) -> Judged {
    let steps = results.plan.setting.steps;
    let of = |row: &str, step, of: fn(&StepRecord) -> f64| results.row(row)?.step(step, of);
    let numeric = |step| of(NONE_INT4, step, |record| record.terms.numeric.kl);
    let lag = |step| of(NONE_STALE, step, |record| record.terms.lag.kl);
    let (first, last) = (numeric(1)?, numeric(steps)?);
    let (early, end) = (lag(steps / 4)?, lag(steps)?);
    let holds = (0.67..1.5).contains(&(last / first)) && end > 4.0 * early;
    Some((
        ruled(holds),
        format!("numeric KL {first:.4} to {last:.4}; lag KL {early:.4} at a quarter, {end:.4} at the end"),
    ))
}

fn e6(results: &Results) -> Judged {
    let (mut points, mut rates) = (Vec::new(), 0);
    for row in results.rows.iter().filter(|row| row.name.starts_with(CENTRING_STALE)) {
        rates += 1;
        let rate = row.arms.first()?.arm.learning_rate.unwrap_or(results.plan.setting.learning_rate);
        let other = results.row(&row.name.replacen(CENTRING_STALE, IS_STALE, 1))?;
        for step in 1..=results.plan.setting.steps {
            let norm = |row: &Row| row.step(step, |record| record.gradient_norm);
            points.push((rate * (step - 1) as f64, norm(row)? - norm(other)?));
        }
    }
    let (quadratic, error) = quadratic_term(&points)?;
    let numbers = format!("quadratic term {quadratic:.3e}, standard error {error:.1e}, learning rates: {rates}");
    Some((ruled(quadratic > 2.0 * error), numbers))
}

/// b of `y = a x + b x^2` by least squares, and its standard error.
fn quadratic_term(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let sum = |of: fn(f64, f64) -> f64| points.iter().map(|&(x, y)| of(x, y)).sum::<f64>();
    let (s2, s3, s4) = (sum(|x, _| x * x), sum(|x, _| x.powi(3)), sum(|x, _| x.powi(4)));
    let (t1, t2) = (sum(|x, y| x * y), sum(|x, y| x * x * y));
    let determinant = s2 * s4 - s3 * s3;
    let (a, b) = ((t1 * s4 - t2 * s3) / determinant, (t2 * s2 - t1 * s3) / determinant);
    let residual: f64 = points.iter().map(|&(x, y)| (y - a * x - b * x * x).powi(2)).sum();
    let free = points.len().checked_sub(2).filter(|&free| free > 0 && determinant > 0.0)?;
    Some((b, (residual / free as f64 * s2 / determinant).sqrt()))
}

/// The row of the per-token rule at the largest rate of the grid.
pub(super) fn at_largest_rate(results: &Results, sync: &str) -> String {
    let prefix = format!("tis-exact-{sync}-lr");
    let rows = results.rows.iter().filter(|row| row.name.starts_with(&prefix));
    let rate = |row: &&Row| row.arms.first().and_then(|outcome| outcome.arm.learning_rate).unwrap_or(0.0);
    rows.max_by(|a, b| rate(a).total_cmp(&rate(b))).map_or_else(String::new, |row| row.name.clone())
}

/// The best reward of a policy, where it started among them, and its last.
fn fall(results: &Results, row: &Row) -> Option<(f64, f64)> {
    let looks = results.plan.setting.evaluations();
    let rewards: Vec<f64> = looks.iter().filter_map(|&step| row.reward(step)).collect();
    let start: Vec<f64> = looks.iter().filter_map(|&step| results.row(UNTRAINED)?.reward(step)).collect();
    Some((rewards.iter().copied().chain(mean(&start)).reduce(f64::max)?, *rewards.last()?))
}

fn e7(results: &Results) -> Judged {
    let pairs = results.rows.iter().filter(|row| row.name.starts_with("tis-exact-never-lr"));
    let mut told = Vec::new();
    let (mut collapses, mut prevented) = (0, 0);
    for row in pairs {
        let forced = results.row(&row.name.replace("never", "trigger"))?;
        let ((best, last), (_, kept)) = (fall(results, row)?, fall(results, forced)?);
        let collapsed = last < best / 2.0;
        collapses += usize::from(collapsed);
        prevented += usize::from(collapsed && kept >= best / 2.0);
        told.push(format!("{}: best {best:.3}, last {last:.3}, with the trigger {kept:.3}", row.name));
    }
    let numbers = told.join("; ");
    match (told.len(), collapses) {
        (0, _) => None,
        (_, 0) => Some((Ruling::Vacuous, format!("nothing collapsed: {numbers}"))),
        _ => Some((ruled(prevented == collapses), numbers)),
    }
}

/// Floors of PPO on q at the end, and its own-prefix KL at the first and the last step.
pub(super) fn ppo_on_q(results: &Results) -> Option<(f64, f64, f64)> {
    let row = results.row(PPO_Q_INT4)?;
    let own = |step| row.step(step, |record| record.terms.full.kl);
    Some((results.floors(PPO_Q_INT4, look_at(results, 1.0)?)?, own(1)?, own(results.plan.setting.steps)?))
}

fn e8(results: &Results) -> Judged {
    let (floors, first, last) = ppo_on_q(results)?;
    let stale = results.row(NONE_STALE).and_then(|row| {
        let own = |step| row.step(step, |record| record.terms.full.kl);
        Some(format!("; none, stale: {:.4}, then {:.4}", own(1)?, own(results.plan.setting.steps)?))
    });
    let numbers = format!("PPO on q, int4: {floors:.2} floors, own-prefix KL {first:.4}, then {last:.4}");
    let numbers = numbers + &stale.unwrap_or_default();
    if floors <= 5.0 {
        return Some((Ruling::Vacuous, format!("PPO on q did not leave five floors; {numbers}")));
    }
    Some((ruled(last <= 3.0 * first), numbers))
}

fn e9(results: &Results) -> Judged {
    let mut points = Vec::new();
    for row in results.rows.iter().filter(|row| row.name.starts_with("tis-exact-") && !row.name.contains("trigger")) {
        let arm = &row.arms.first()?.arm;
        let staleness = match arm.sync {
            super::Sync::Every(n) => n,
            _ => results.plan.setting.steps,
        };
        let Some(rate) = arm.learning_rate else { continue };
        let (best, last) = fall(results, row)?;
        points.push((staleness as f64 * rate, 1.0 - last / best));
    }
    let correlation = rank_correlation(&points)?;
    let told: Vec<String> = points.iter().map(|(product, fall)| format!("{product:.1e}: {fall:.2}")).collect();
    let numbers = format!("rank correlation {correlation:.2}; share of the best reward lost: {}", told.join(", "));
    Some((ruled(correlation > 0.5 && points.iter().any(|(_, fall)| *fall > 0.5)), numbers))
}

/// Spearman's.
fn rank_correlation(points: &[(f64, f64)]) -> Option<f64> {
    let ranks = |values: Vec<f64>| -> Vec<f64> {
        let below = |x: f64| values.iter().filter(|&&y| y < x).count() as f64;
        let equal = |x: f64| values.iter().filter(|&&y| y == x).count() as f64;
        values.iter().map(|&x| below(x) + (equal(x) - 1.0) / 2.0).collect()
    };
    let (x, y) = (ranks(points.iter().map(|at| at.0).collect()), ranks(points.iter().map(|at| at.1).collect()));
    let (mx, my) = (mean(&x)?, mean(&y)?);
    let product =
        |a: &[f64], ma: f64, b: &[f64], mb: f64| a.iter().zip(b).map(|(a, b)| (a - ma) * (b - mb)).sum::<f64>();
    let spread = (product(&x, mx, &x, mx) * product(&y, my, &y, my)).sqrt();
    (points.len() >= 4 && spread > 0.0).then(|| product(&x, mx, &y, my) / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quadratic_is_found_with_its_error() {
        let points: Vec<(f64, f64)> = (1..40).map(f64::from).map(|x| (x, 2.0 * x + 0.5 * x * x)).collect();
        let (b, error) = quadratic_term(&points).unwrap();
        assert!((b - 0.5).abs() < 1e-9 && error < 1e-6);
        let line: Vec<(f64, f64)> = (1..40).map(f64::from).map(|x| (x, 2.0 * x + (x * 7.0).sin())).collect();
        let (b, error) = quadratic_term(&line).unwrap();
        assert!(b.abs() < 2.0 * error, "{b} {error}");
        assert_eq!(quadratic_term(&[(1.0, 1.0)]), None);
    }

    #[test]
    fn ranks_correlate_whatever_the_scale() {
        let rising: Vec<(f64, f64)> = (1..9).map(f64::from).map(|x| (x, x.powi(5))).collect();
        assert!((rank_correlation(&rising).unwrap() - 1.0).abs() < 1e-12);
        let flat: Vec<(f64, f64)> = (1..9).map(|x| (f64::from(x), 1.0)).collect();
        assert_eq!(rank_correlation(&flat), None);
    }
}
