//! Asking a sampler: plans in, sealed batches out.

use crate::{
    mix::keyed,
    obstacle::{AtPort, Obstacle},
    target::{Ask, Target},
};
use futures_util::TryStreamExt;
use lockstep_core::{
    Batch, BatchPlan, Delta, Rollout, RolloutId, SamplingParams, Stamp, TokenId, WeightVersion,
    plan::PromptGroup,
    ports::{SampleRequest, Scorer},
    score::ScoredAt,
};
use std::collections::BTreeMap;

/// The size of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Names the question, so that no two questions share seeds or rollout ids.
    pub question: u64,
    /// Answers to each prompt.
    pub answers: u32,
    /// Length limit of each.
    pub max_new_tokens: u32,
}

impl Ask {
    /// A plan with some answers to each prompt, every answer with its own seed.
    ///
    /// # Errors
    /// Parameters out of range, no prompts.
    pub fn plan(&self, prompts: &[Vec<TokenId>], shape: Shape) -> Result<BatchPlan, Obstacle> {
        let number = keyed(&[self.seed, shape.question]) >> 32;
        let group = |(at, prompt): (u64, &Vec<TokenId>)| -> Result<PromptGroup, Obstacle> {
            let seed = |answer| keyed(&[number, at, u64::from(answer)]);
            let params = |answer| self.params(shape.max_new_tokens, seed(answer));
            let answers: Result<Vec<SamplingParams>, Obstacle> = (0..shape.answers).map(params).collect();
            Ok(PromptGroup { prompt: prompt.clone(), answers: answers? })
        };
        let groups: Result<Vec<PromptGroup>, Obstacle> = (0..).zip(prompts).map(group).collect();
        Ok(BatchPlan::open(number, groups?)?)
    }
}

/// The deltas of some requests, by rollout, in order.
///
/// # Errors
/// The sampler's.
pub async fn deltas(
    target: &Target,
    requests: Vec<SampleRequest>,
) -> Result<BTreeMap<RolloutId, Vec<Delta>>, Obstacle> {
    let stream = target.sampler()?.generate(requests).await.at("sampler")?;
    let all: Vec<Delta> = stream.try_collect().await.at("sampler")?;
    let mut by_rollout = BTreeMap::<RolloutId, Vec<Delta>>::new();
    all.into_iter().for_each(|delta| by_rollout.entry(delta.rollout).or_default().push(delta));
    Ok(by_rollout)
}

/// Answers a plan.
///
/// # Errors
/// The sampler's; deltas that are no answer; answers that are missing.
pub async fn answer(target: &Target, mut plan: BatchPlan) -> Result<Batch, Obstacle> {
    let fresh = |request: &lockstep_core::rollout::Request| SampleRequest { request: request.clone(), resumed: vec![] };
    let mut deltas = deltas(target, plan.requests().iter().map(fresh).collect()).await?;
    for request in plan.requests().to_vec() {
        let own = deltas.remove(&request.id).unwrap_or_default();
        plan.arrive(Rollout::fold(request, own)?)?;
    }
    Ok(plan.seal()?)
}

/// Some answers to each of the target's prompts.
///
/// # Errors
/// As [`answer`].
pub async fn sample(target: &Target, shape: Shape) -> Result<Batch, Obstacle> {
    target.sampler()?;
    let plan = target.ask.plan(&target.ask.prompts, shape)?;
    answer(target, plan).await
}

/// As [`sample`], or the answers that were recorded where there are some: for questions any answers answer.
///
/// # Errors
/// As [`answer`].
pub async fn taken(target: &Target, shape: Shape) -> Result<Batch, Obstacle> {
    match &target.recorded {
        Some(recorded) => Ok((**recorded).clone()),
        None => sample(target, shape).await,
    }
}

/// Tokens [`sample`] asks for, at most.
pub fn cost(ask: &Ask, answers: u32, max_new_tokens: u32) -> u64 {
    ask.prompts.len() as u64 * u64::from(answers) * u64::from(max_new_tokens)
}

/// log p at a version, checked against the batch.
///
/// # Errors
/// The scorer's; scores that do not belong to the batch, or to another version.
pub async fn score(scorer: &dyn Scorer, batch: &Batch, version: WeightVersion) -> Result<ScoredAt, Obstacle> {
    let scored = scorer.score(batch, version).await.at("scorer")?;
    if scored.version != version {
        return Err(Obstacle::Unclear(format!("asked for scores at {version}, got some at {}", scored.version)));
    }
    if scored.rollouts.len() != batch.rollouts().len() {
        let (found, needed) = (scored.rollouts.len(), batch.rollouts().len());
        return Err(Obstacle::Unclear(format!("the scorer scored {found} of {needed} rollouts")));
    }
    for (rollout, scores) in batch.rollouts().iter().zip(&scored.rollouts) {
        if scores.len() != rollout.segments().len() {
            let (found, needed) = (scores.len(), rollout.segments().len());
            return Err(Obstacle::Unclear(format!(
                "rollout {}: the scorer scored {found} of {needed} segments",
                rollout.id()
            )));
        }
        for (segment, scores) in rollout.segments().iter().zip(scores) {
            scores.check(&segment.behavior)?;
        }
    }
    Ok(scored)
}

/// The stamps of a batch, one a segment.
pub fn stamps(batch: &Batch) -> impl Iterator<Item = &Stamp> {
    batch.rollouts().iter().flat_map(|rollout| rollout.segments().iter().map(|segment| &segment.stamp))
}

/// The one version that drew a batch.
///
/// # Errors
/// A batch without tokens, with tokens of an undeclared version, or of several.
pub fn version_of(batch: &Batch) -> Result<WeightVersion, Obstacle> {
    match lockstep_core::score::versions(batch)?[..] {
        [version] => Ok(version),
        [] => Err(Obstacle::Unclear("the sampler answered without tokens".into())),
        ref several => {
            let (count, first) = (several.len(), several[0]);
            Err(Obstacle::Unclear(format!("{count} versions drew one batch, the first is {first}")))
        }
    }
}
