//! What was trained on looks like what was generated: black-box, without looking at ids.

use crate::{
    check::{Check, FalseAlarm, Finding},
    faults::queue as faults,
    obstacle::{AtPort, Obstacle},
    target::Target,
};
use lockstep_core::ports::{Outcome, Outcomes, PortError};
use std::collections::BTreeMap;

/// `batch.outcomes`.
pub const OUTCOMES: Check = Check {
    id: "batch.outcomes",
    demand: "lengths and rewards trained on are those generated: failures, cut answers and groups without variance are there",
    cost: |_| 0,
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/batch_outcomes.md"),
    cases: &[
        "verl-project/verl-recipe#125",
        "areal-project/AReaL#450",
        "NovaSky-AI/SkyRL#1802",
        "huggingface/trl#3708",
        "NVIDIA-NeMo/RL#3665",
    ],
    fault: faults::ZERO_VARIANCE_DROPPED,
    extra_faults: &[faults::OVERLONG_FILTERED, faults::FAILURES_DROPPED, faults::BEST_KEPT],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let outcomes = match target.queue()?.outcomes().await {
        Err(PortError::Refused(reason)) => return Err(Obstacle::NotApplicable(reason)),
        other => other.at("queue")?,
    };
    let Outcomes { generated, trained } = outcomes;
    if trained.iter().all(Vec::is_empty) {
        let reason = format!("{} rollouts were generated, none was trained on", generated.len());
        return Err(Obstacle::Unclear(reason));
    }
    let dispatched: Vec<Outcome> =
        generated.chunk_by(|a, b| a.rollout.plan == b.rollout.plan).take(trained.len()).flatten().copied().collect();
    let (made, used) = (Sums::of(&dispatched), Sums::of(&trained.concat()));
    Ok(Finding::of(made == used, format!("{} batches, trained on / generated: {}", trained.len(), used.beside(&made))))
}

/// What can be counted without ids.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Sums {
    answers: usize,
    tokens: u64,
    cut: usize,
    failures: usize,
    level_groups: usize,
    reward: f64,
}

impl Sums {
    fn of(outcomes: &[Outcome]) -> Self {
        let mut groups = BTreeMap::<(u64, u32), Vec<f64>>::new();
        let mut sums = Self::default();
        let mut rewards = Vec::new();
        for outcome in outcomes {
            sums.answers += 1;
            sums.tokens += u64::from(outcome.length);
            sums.cut += usize::from(outcome.cut);
            sums.failures += usize::from(outcome.reward <= 0.0);
            rewards.push(outcome.reward);
            groups.entry((outcome.rollout.plan, outcome.group)).or_default().push(outcome.reward);
        }
        let level = |rewards: &&Vec<f64>| rewards.iter().all(|reward| *reward == rewards[0]);
        sums.level_groups = groups.values().filter(level).count();
        // In an order of its own, so that equal sets have equal sums.
        rewards.sort_by(f64::total_cmp);
        sums.reward = rewards.iter().sum();
        sums
    }

    fn beside(&self, made: &Self) -> String {
        format!(
            "answers {}/{}, tokens {}/{}, cut by the limit {}/{}, without reward {}/{}, groups without variance {}/{}, \
             reward {:.2}/{:.2}",
            self.answers,
            made.answers,
            self.tokens,
            made.tokens,
            self.cut,
            made.cut,
            self.failures,
            made.failures,
            self.level_groups,
            made.level_groups,
            self.reward,
            made.reward
        )
    }
}
