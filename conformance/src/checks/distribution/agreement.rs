//! The reported log-probs are those of the distribution that was sampled: held against teacher-forced scores.

use crate::{
    check::{Check, FalseAlarm, Finding},
    difference::{self, Row},
    draw::{self, Shape},
    faults::report as faults,
    figure,
    obstacle::Obstacle,
    target::Target,
};

/// `distribution.agreement`.
pub const AGREEMENT: Check = Check {
    id: "distribution.agreement",
    demand: "the log-probs of a support are the trainer's over that support, at that temperature, within the number format",
    cost: |target| draw::cost(&target.ask, 2, target.ask.max_new_tokens),
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/distribution_agreement.md"),
    cases: &[
        "huggingface/trl#7269",
        "GMISWE/tinker-cloud#26",
        "PrimeIntellect-ai/prime-rl#886",
        "fw-ai/cookbook#483",
        "AI-Hypercomputer/maxtext#5231",
        "verl-project/verl#4252",
    ],
    fault: faults::LOG_BASE_10,
    extra_faults: &[faults::OFF_BY_ONE, faults::COARSE_LOG_PROBS, faults::REPETITION_PENALTY, faults::SHUFFLED],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let shape = Shape { question: 0xa1, answers: 2, max_new_tokens: target.ask.max_new_tokens };
    let scorer = target.scorer()?;
    let batch = draw::taken(target, shape).await?;
    let scored = draw::score(scorer.as_ref(), &batch, draw::version_of(&batch)?).await?;
    let rows: Vec<Row> = difference::rows(&batch, &scored).collect();
    let found = difference::over_supports(rows.iter());
    let tolerance = target.numeric.tolerance();
    if found.count == 0 {
        let reason = format!("each of {} tokens is the only one of its support", rows.len());
        return Err(Obstacle::Unclear(reason));
    }
    let evidence = format!(
        "log p_s - log q over {} entries of {} tokens: mean {:.1e}, mean abs {:.1e}, max abs {:.1e} at rollout {} token {} \
         ({} allows {:.0e} and {:.0e})",
        found.count,
        rows.len(),
        found.mean(),
        found.mean_abs(),
        found.max_abs,
        found.at.rollout,
        found.at.position,
        target.numeric,
        tolerance.mean_abs,
        tolerance.max_abs,
    );
    let mut finding = Finding::of(tolerance.holds(found.mean_abs(), found.max_abs), evidence);
    finding.figures.extend(figure::numeric(&rows));
    Ok(finding)
}
