//! A request is answered alike alone and among others.

use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::question::{self, How, LONE},
    difference::{Difference, Place},
    faults::report as faults,
    obstacle::Obstacle,
    target::Target,
};

const PROMPTS: u32 = 12;
const LENGTH: u32 = 6;
/// Requests that are sent alone.
const ALONE: usize = 4;

/// `numeric.batch`.
pub const BATCH: Check = Check {
    id: "numeric.batch",
    demand: "a report does not depend on the requests beside it",
    cost: |_| u64::from(PROMPTS) + ALONE as u64,
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/numeric_batch.md"),
    cases: &["verl-project/verl#6280", "sgl-project/sglang#36630"],
    fault: faults::BATCH_DEPENDENT,
    extra_faults: &[],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let prompts = question::random_prompts(&target.ask, PROMPTS, LENGTH);
    let (temperature, truncation) = (target.ask.temperature, target.ask.truncation);
    let how = |question| How { question, temperature, truncation };
    let together = question::first(target, &prompts, how(0xba7)).await?;
    let (mut found, mut lone) = (Difference::default(), 0.0);
    for (rollout, prompt) in prompts.iter().take(ALONE).enumerate() {
        let alone = question::first(target, std::slice::from_ref(prompt), how(0xba80 + rollout as u64)).await?;
        for alone in &alone {
            let at = Place { rollout, position: 0 };
            lone += question::compare((&together[rollout], alone), at, &mut found) / ALONE as f64;
        }
    }
    let tolerance = target.numeric.tolerance();
    let evidence = format!(
        "{ALONE} prompts alone and among {PROMPTS}: mean abs {:.1e}, max abs {:.1e} apart over {} entries, mass of ids kept once \
         {lone:.1e} ({} allows {:.0e})",
        found.mean_abs(),
        found.max_abs,
        found.count,
        target.numeric,
        tolerance.mean_abs
    );
    Ok(Finding::of(tolerance.holds(found.mean_abs(), found.max_abs) && lone <= LONE, evidence))
}
