//! Small questions: one token after each of some prompts, and what its report says.

use crate::{
    difference::{Difference, Place},
    draw::{self, Shape},
    mix::pick,
    obstacle::Obstacle,
    target::{Ask, Target},
};
use lockstep_core::{Batch, Support, TokenId, sampling::Truncation};
use std::collections::BTreeMap;

/// Ids kept where a support must be listed whole.
pub(super) const LISTED: u32 = 16;

/// Mass of ids that one of two reports may keep alone: rounding moves the edge of a nucleus.
pub(super) const LONE: f64 = 0.1;

/// How one token is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    /// Names the question.
    pub(super) question: u64,
    /// Divisor of the logits.
    pub(super) temperature: f64,
    /// The filters.
    pub(super) truncation: Truncation,
}

impl How {
    /// The k most likely ids.
    pub(super) fn top_k(question: u64, temperature: f64, top_k: u32) -> Self {
        Self { question, temperature, truncation: Truncation { top_k, ..Truncation::NONE } }
    }
}

/// A top-k that lists at most half of the vocabulary.
pub(super) fn listed(ask: &Ask) -> u32 {
    LISTED.min(ask.vocabulary / 2).max(1)
}

/// The target asked for answers without an end, each token with a list of ids: one that nearly knows what comes next still
/// shows its numbers.
pub(super) fn listing(target: &Target) -> Target {
    let top_k = listed(&target.ask);
    target.asking(|ask| {
        ask.stop = vec![];
        ask.truncation = Truncation { top_k, ..Truncation::NONE };
    })
}

/// The report of the first token after each prompt.
pub(super) async fn first(target: &Target, prompts: &[Vec<TokenId>], how: How) -> Result<Vec<Support>, Obstacle> {
    let target = target.asking(|ask| {
        ask.temperature = how.temperature;
        ask.truncation = how.truncation;
    });
    let plan = target.ask.plan(prompts, Shape { question: how.question, answers: 1, max_new_tokens: 1 })?;
    first_of(&draw::answer(&target, plan).await?)
}

/// The report of the first token of each answer.
pub(super) fn first_of(batch: &Batch) -> Result<Vec<Support>, Obstacle> {
    let first = |rollout: &lockstep_core::Rollout| {
        let row = rollout.segments().first().and_then(|segment| segment.behavior.rows().next());
        row.ok_or_else(|| Obstacle::Unclear(format!("rollout {} has no token", rollout.id())))
    };
    batch.rollouts().iter().map(first).collect()
}

/// Prompts of random ids that end no answer: hardly any tokenizer would have written them.
pub(super) fn random_prompts(ask: &Ask, count: u32, length: u32) -> Vec<Vec<TokenId>> {
    let id = |prompt: u32, at: u32| {
        let drawn = (0..64).map(|attempt| {
            let parts = [ask.seed, 0x0dd, u64::from(prompt), u64::from(at), attempt];
            TokenId(pick(ask.defined(), &parts))
        });
        drawn.into_iter().find(|id| !ask.stop.contains(id)).unwrap_or(TokenId(0))
    };
    (0..count).map(|prompt| (0..length).map(|at| id(prompt, at)).collect()).collect()
}

/// Two reports of one position: their differences where both have an entry, and the mass of ids that one alone keeps.
pub(super) fn compare((a, b): (&Support, &Support), at: Place, found: &mut Difference) -> f64 {
    let entries = |support: &Support| -> BTreeMap<TokenId, f64> {
        support.ids().iter().copied().zip(support.log_q().iter().copied()).collect()
    };
    let (one, other) = (entries(a), entries(b));
    let mut lone = 0.0;
    for (id, log_q) in &one {
        match other.get(id) {
            Some(other) => found.push(other - log_q, at),
            None => lone += log_q.exp(),
        }
    }
    lone + other.iter().filter(|(id, _)| !one.contains_key(id)).map(|(_, log_q)| log_q.exp()).sum::<f64>()
}

/// Not applicable where the sampler refuses a question that some engines cannot answer.
pub(super) fn refusable<T>(answer: Result<T, Obstacle>, what: &str) -> Result<T, Obstacle> {
    use lockstep_core::ports::PortError;
    match answer {
        Err(Obstacle::Port { port: "sampler", source: PortError::Refused(reason) }) => {
            Err(Obstacle::NotApplicable(format!("the sampler refuses {what}: {reason}")))
        }
        other => other,
    }
}
