//! The support is whole: nothing that could be drawn is missing, nothing is in it that could not be.

use super::kept::{self, KeptMass};
use crate::{
    check::{Check, FalseAlarm, Finding, Verdict},
    checks::recorded,
    draw::{self, Shape},
    faults::support as faults,
    obstacle::Obstacle,
    target::Target,
    tolerance::NumericClass,
};
use lockstep_core::{Batch, Support, WeightVersion, support::Domain};

/// Fewer supports than these below top_p show nothing.
const FEWEST_BELOW: usize = 8;

/// `distribution.support`.
pub const SUPPORT: Check = Check {
    id: "distribution.support",
    demand: "the support is the kept set, whole, with the sampled token in it and as much mass as the filters leave",
    cost: |target| draw::cost(&target.ask, 2, target.ask.max_new_tokens),
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/distribution_support.md"),
    cases: &[
        "huggingface/trl#6789",
        "sgl-project/sglang#36630",
        "Biohub/esm#360",
        "NVIDIA-NeMo/RL#4154",
        "vllm-project/vime#70",
    ],
    fault: faults::CROSSING_DROPPED,
    extra_faults: &[
        faults::DRAWN_ALONE,
        faults::TAIL_CLAIMED,
        faults::RAW_LOG_PROBS,
        faults::MASK_REPAIRED,
        faults::PADDED_WITH_ZERO,
    ],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    if let Some(batch) = &target.recorded {
        return Ok(recorded::supports(batch, &target.contradictions));
    }
    let shape = Shape { question: 0xb1, answers: 2, max_new_tokens: target.ask.max_new_tokens };
    let batch = draw::sample(target, shape).await?;
    if let Some(fail) = untruncated(target, &batch) {
        return Ok(fail.into());
    }
    target.scorer()?;
    kept_masses(target, &batch, draw::version_of(&batch)?).await
}

/// A fail where truncation was asked for, yet q is said to live on the whole vocabulary.
fn untruncated(target: &Target, batch: &Batch) -> Option<Verdict> {
    let asked = target.ask.truncation;
    let segments = batch.rollouts().iter().flat_map(|answer| answer.segments());
    let supports: Vec<Support> = segments.flat_map(|segment| segment.behavior.rows()).collect();
    let wide = |support: &&Support| matches!(support.domain(), Domain::Vocabulary(_));
    let count = supports.iter().filter(wide).count();
    let support = supports.iter().find(wide).filter(|_| !asked.is_none())?;
    let rest = support.log_rest().map_or(0.0, f64::exp);
    Some(Verdict::Fail(format!(
        "top_p {} top_k {} min_p {} were asked for, but {count} of {} tokens report a q over the whole vocabulary, the \
         first with {} known ids and a tail of mass {rest:.4}",
        asked.top_p,
        asked.top_k,
        asked.min_p,
        supports.len(),
        support.known(),
    )))
}

/// Masses of the kept sets against top_p. Two rules: each within the slack of the declared format; and, where rounding
/// is small beside the mass of one id, not most of them below top_p, which they are when the crossing id is left out.
async fn kept_masses(target: &Target, batch: &Batch, version: WeightVersion) -> Result<Finding, Obstacle> {
    let asked = target.ask.truncation;
    let top_p_alone = asked.top_p < 1.0 && asked.top_k == 0 && asked.min_p == 0.0;
    if !top_p_alone {
        let reason = format!("top_p {} is not the only filter, so no mass is foretold", asked.top_p);
        return Err(Obstacle::NotApplicable(reason));
    }
    let masses = kept::masses(target, batch, version).await?;
    let slack = target.numeric.mass();
    let count = |rule: &dyn Fn(&KeptMass) -> bool| masses.iter().filter(|kept| rule(kept)).count();
    let small = count(&|kept| kept.mass < asked.top_p - slack);
    let large = count(&|kept| kept.mass - kept.smallest >= asked.top_p + slack);
    let below = count(&|kept| kept.mass < asked.top_p);
    let full = count(&|kept| kept.mass >= asked.top_p && kept.smallest < kept.mass);
    let most_below = target.numeric <= NumericClass::Bf16 && below > full.max(FEWEST_BELOW);
    let least = masses.iter().map(|kept: &KeptMass| kept.mass).fold(1.0, f64::min);
    Ok(Finding::of(
        small + large == 0 && !most_below,
        format!(
            "kept mass at least {least:.4} of top_p {}, {below} of {} supports below it, {small} too small, {large} too \
             large",
            asked.top_p,
            masses.len()
        ),
    ))
}
