//! How much of the whole vocabulary's mass a kept set holds under the trainer.
//!
//! The scorer renormalises over a kept set, which hides its mass. So the set is asked about as the head of an
//! untruncated distribution with a made-up q: over such a head scores are taken over the whole vocabulary.

use crate::{draw, mix::keyed, obstacle::Obstacle, target::Target};
use lockstep_core::{
    Batch, BatchPlan, BehaviorDistribution, Delta, Rollout, SamplingParams, Segment, Support, WeightVersion,
    plan::PromptGroup,
    profile::FilterName,
    sampling::Truncation,
    support::{Domain, Reported, Sampled, SupportError},
};

/// Mass of one kept set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::checks) struct KeptMass {
    /// Of all its ids.
    pub(in crate::checks) mass: f64,
    /// Of its least likely id.
    pub(in crate::checks) smallest: f64,
}

/// Masses of the kept sets of a batch at the temperature its top-p filter saw.
pub(in crate::checks) async fn masses(
    target: &Target,
    batch: &Batch,
    version: WeightVersion,
) -> Result<Vec<KeptMass>, Obstacle> {
    let asked = as_heads(target, batch)?;
    let scored = draw::score(target.scorer()?.as_ref(), &asked, version).await?;
    let rows = crate::difference::rows(&asked, &scored).filter(|row| !row.support.is_exact());
    let mass = |log_p: &[f64]| KeptMass {
        mass: log_p.iter().map(|log_p| log_p.exp()).sum(),
        smallest: log_p.iter().map(|log_p| log_p.exp()).fold(1.0, f64::min),
    };
    Ok(rows.map(|row| mass(&row.scores.log_p)).collect())
}

/// The same answers, every kept set as a head of half the mass.
fn as_heads(target: &Target, batch: &Batch) -> Result<Batch, Obstacle> {
    let vocabulary = target.sampler()?.capabilities().vocabulary;
    let told = |support: &Support| head(support, vocabulary);
    retold(batch, (temperature_at_top_p, Truncation::NONE), told)
}

/// The same tokens as answers to other parameters and with other supports, to ask a scorer about them.
pub(in crate::checks) fn retold(
    batch: &Batch,
    (temperature, truncation): (impl Fn(&Rollout) -> f64, Truncation),
    told: impl Fn(&Support) -> Result<Support, SupportError>,
) -> Result<Batch, Obstacle> {
    let mut groups = Vec::new();
    for rollout in batch.rollouts() {
        let limits = rollout.params().limits().clone();
        let params = SamplingParams::new(temperature(rollout), truncation, limits, rollout.params().seed())?;
        groups.push(PromptGroup { prompt: rollout.prompt().to_vec(), answers: vec![params] });
    }
    let mut plan = BatchPlan::open(keyed(&[batch.plan(), 0x6b]) >> 32, groups)?;
    for (request, rollout) in plan.requests().to_vec().into_iter().zip(batch.rollouts()) {
        let (mut start, mut deltas) = (0, Vec::new());
        for segment in rollout.segments() {
            deltas.push(Delta {
                rollout: request.id,
                start,
                behavior: each(segment, &told)?,
                stamp: segment.stamp.clone(),
                kv: segment.kv,
                profile: segment.profile.clone(),
                finish: None,
            });
            start += segment.behavior.len() as u32;
        }
        if let Some(last) = deltas.last_mut() {
            last.finish = Some(rollout.finish());
        }
        plan.arrive(Rollout::fold(request, deltas)?)?;
    }
    Ok(plan.seal()?)
}

/// 1 where the engine divides by the temperature after its nucleus.
fn temperature_at_top_p(rollout: &Rollout) -> f64 {
    let filters = rollout.segments().first().map_or(&[][..], |segment| &segment.profile.filters);
    let place = |name| filters.iter().position(|&filter| filter == name);
    match (place(FilterName::Temperature), place(FilterName::TopP)) {
        (Some(temperature), Some(top_p)) if temperature > top_p => 1.0,
        _ => rollout.params().temperature(),
    }
}

fn each(
    segment: &Segment,
    told: impl Fn(&Support) -> Result<Support, SupportError>,
) -> Result<BehaviorDistribution, SupportError> {
    let mut behavior = BehaviorDistribution::default();
    for support in segment.behavior.rows() {
        behavior.push(&told(&support)?);
    }
    Ok(behavior)
}

fn head(support: &Support, vocabulary: u32) -> Result<Support, SupportError> {
    let ids = support.ids().to_vec();
    if ids.len() >= vocabulary as usize {
        return Ok(support.clone());
    }
    let log_half = 0.5f64.ln();
    let each = log_half - (ids.len() as f64).ln();
    let sampled = Sampled { token: support.sampled().token, log_q: each };
    let log_q = vec![each; ids.len()];
    Support::new(sampled, Reported { ids, log_q, log_rest: Some(log_half), domain: Domain::Vocabulary(vocabulary) })
}
