//! Equal labels, equal log-probs: what is asked twice under one version is answered alike.

use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::question,
    difference::{Difference, Place},
    draw::{self, Shape},
    faults::version as faults,
    obstacle::Obstacle,
    target::Target,
};
use lockstep_core::{Batch, Rollout, Support};

const ANSWERS: u32 = 2;
/// Mass of ids that one of two reports may keep alone: rounding moves the edge of a nucleus.
const LONE: f64 = 0.1;

/// `version.repeat`.
pub const REPEAT: Check = Check {
    id: "version.repeat",
    demand: "while the label stays, the log-probs of the same prefix stay, within the repeat noise of the number format",
    cost: |target| 3 * draw::cost(&target.ask, ANSWERS, target.ask.max_new_tokens),
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/version_repeat.md"),
    cases: &["GMISWE/tinker-cloud#32", "huggingface/trl#5312", "NVIDIA-NeMo/labs-molt#124"],
    fault: faults::SILENT_UPDATE,
    extra_faults: &[faults::LABEL_DRIFTS],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let shape = Shape { question: 0x4e, answers: ANSWERS, max_new_tokens: target.ask.max_new_tokens };
    let first = draw::sample(target, shape).await?;
    let version = draw::version_of(&first)?;
    let (mut found, mut lone, mut pairs) = (Difference::default(), 0.0, 0);
    for _ in 0..2 {
        let again = draw::sample(target, shape).await?;
        let now = draw::version_of(&again)?;
        if now != version {
            return Ok(Finding::of(false, format!("nothing was loaded, yet the label went from {version} to {now}")));
        }
        (lone, pairs) = alike((&first, &again), (lone, pairs), &mut found);
    }
    let (tolerance, lone) = (target.numeric.tolerance(), lone / pairs.max(1) as f64);
    let evidence = format!(
        "{pairs} positions under {version} asked again: repeat noise mean abs {:.1e}, max abs {:.1e} over {} entries, mass of \
         ids kept once {lone:.1e} ({} allows {:.0e})",
        found.mean_abs(),
        found.max_abs,
        found.count,
        target.numeric,
        tolerance.mean_abs
    );
    Ok(Finding::of(tolerance.holds(found.mean_abs(), found.max_abs) && lone <= LONE, evidence))
}

fn rows(rollout: &Rollout) -> Vec<Support> {
    rollout.segments().iter().flat_map(|segment| segment.behavior.rows()).collect()
}

/// Compares two answers as long as their tokens agree.
fn alike(
    (first, again): (&Batch, &Batch),
    (mut lone, mut pairs): (f64, usize),
    found: &mut Difference,
) -> (f64, usize) {
    for (rollout, (one, other)) in first.rollouts().iter().zip(again.rollouts()).enumerate() {
        for (position, (a, b)) in rows(one).iter().zip(&rows(other)).enumerate() {
            lone += question::compare((a, b), Place { rollout, position }, found);
            pairs += 1;
            if a.sampled().token != b.sampled().token {
                break;
            }
        }
    }
    (lone, pairs)
}
