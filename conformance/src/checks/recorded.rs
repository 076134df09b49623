//! What answers that were drawn before can show without the engine that drew them.

use crate::{
    check::{Finding, Verdict},
    checks::distribution::drawn::SMALLEST_P,
    figure::Figure,
    frequency,
    mix::unit,
    obstacle::Obstacle,
};
use lockstep_core::{Batch, Rollout, Support, WeightVersion, profile::TieRule, support::Domain};

/// Slack of a share of the largest probability.
const SHARE: f64 = 1e-3;

fn rows(batch: &Batch) -> impl Iterator<Item = (usize, usize, Support)> + '_ {
    batch.rollouts().iter().enumerate().flat_map(|(rollout, answer)| {
        let rows = answer.segments().iter().flat_map(|segment| segment.behavior.rows());
        rows.enumerate().map(move |(position, support)| (rollout, position, support))
    })
}

/// The kept sets against the filters that were asked for. Masses and sampled tokens were held against each other when the
/// replies were read; those in which they disagree come as `contradictions`.
pub(super) fn supports(batch: &Batch, contradictions: &[String]) -> Finding {
    let mut broken: Vec<String> = rows(batch)
        .filter_map(|(rollout, position, support)| {
            let broken = breaks(&batch.rollouts()[rollout], &support)?;
            Some(format!("rollout {rollout} token {position}: {broken}"))
        })
        .collect();
    broken.extend(contradictions.iter().cloned());
    let first = broken.first().map_or_else(String::new, |first| format!("; {first}"));
    let evidence = format!(
        "{} faults in {} recorded supports{first}; the mass that top_p leaves needs a trainer's scores",
        broken.len(),
        batch.tokens()
    );
    Finding::of(broken.is_empty(), evidence)
}

fn breaks(answer: &Rollout, support: &Support) -> Option<String> {
    let (cut, kept) = (answer.params().truncation(), support.ids().len());
    if matches!(support.domain(), Domain::Vocabulary(_)) && !cut.is_none() {
        let (top_p, top_k, min_p) = (cut.top_p, cut.top_k, cut.min_p);
        return Some(format!(
            "top_p {top_p} top_k {top_k} min_p {min_p} were asked for, q is said to live on the whole vocabulary"
        ));
    }
    let ties = answer.segments().first().is_some_and(|segment| segment.profile.ties == TieRule::KeepAll);
    if cut.top_k > 0 && kept > cut.top_k as usize && !ties {
        return Some(format!("{kept} ids are kept under top_k {}", cut.top_k));
    }
    let (largest, smallest) =
        support.log_q().iter().fold((f64::NEG_INFINITY, f64::INFINITY), |(a, b), &log_q| (a.max(log_q), b.min(log_q)));
    let share = (smallest - largest).exp();
    (cut.min_p > 0.0 && share < cut.min_p * (1.0 - SHARE))
        .then(|| format!("an id of {share:.4} of the largest probability is kept under min_p {}", cut.min_p))
}

/// The draws of all positions, pooled.
pub(super) fn drawn(batch: &Batch) -> Result<Finding, Obstacle> {
    let ended = rows(batch).map(|(rollout, position, support)| {
        let v = unit(&[0x9001, rollout as u64, position as u64]);
        (support, v)
    });
    let few = || Obstacle::Unclear(format!("too few of {} recorded tokens had a choice", batch.tokens()));
    let (found, cells) = frequency::pooled(ended).ok_or_else(few)?;
    let evidence = format!(
        "{} recorded draws pooled over their positions: G {:.1} on {} degrees of freedom, p {:.1e}",
        cells.iter().map(|cell| cell.observed).sum::<f64>(),
        found.statistic,
        found.freedom,
        found.p
    );
    let named = cells.iter().enumerate().map(|(at, cell)| (format!("rank {at}"), cell.expected, cell.observed));
    let figure = Figure::Cells { title: "draws expected and seen, by rank in q".into(), cells: named.collect() };
    Ok(Finding::of(found.p >= SMALLEST_P, evidence).with(figure))
}

/// The labels: there, and never going back within an answer. That the weights moved with them no recording shows.
pub(super) fn versions(batch: &Batch) -> Result<Finding, Obstacle> {
    let mut versions: Vec<WeightVersion> = Vec::new();
    let (mut undeclared, mut back) = (0, 0);
    for answer in batch.rollouts() {
        let own: Vec<Option<WeightVersion>> = answer.segments().iter().map(|segment| segment.stamp.version()).collect();
        let tokens = answer.segments().iter().zip(&own).filter(|(_, own)| own.is_none());
        undeclared += tokens.map(|(segment, _)| segment.behavior.len()).sum::<usize>();
        back += usize::from(own.windows(2).any(|pair| pair[1] < pair[0]));
        versions.extend(own.into_iter().flatten());
    }
    versions.sort_unstable();
    versions.dedup();
    let names: Vec<String> = versions.iter().map(ToString::to_string).collect();
    let evidence = format!(
        "{} recorded tokens labelled {}; {undeclared} undeclared; {back} answers in which the version goes back",
        batch.tokens(),
        names.join(", ")
    );
    if undeclared + back > 0 {
        return Ok(Verdict::Fail(evidence).into());
    }
    Err(Obstacle::Unclear(format!("{evidence}; whether the weights moved with their labels needs the engine")))
}
