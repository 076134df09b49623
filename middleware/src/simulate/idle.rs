//! What it costs to wait for the slowest: the samplers' idle share, by open plans, against a queue that waits for nobody.

use super::{Disturbance, Judging, Lengths, Policy, Scenario, simulate};
use lockstep_core::dispatch::{Mode, Rules};
use serde::Serialize;

/// What the rows of the table have in common.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Schedule {
    /// Seed of the lengths.
    pub seed: u64,
    /// Steps of the trainer; the first quarter is not measured.
    pub steps: u64,
    /// Answers drawn at a time.
    pub slots: u32,
    /// Prompts of a plan.
    pub groups: u32,
    /// Answers to each.
    pub answers: u32,
    /// Median length, in tokens.
    pub median: f64,
    /// Standard deviation of the logarithm of the length.
    pub sigma: f64,
    /// The token limit.
    pub longest: u32,
    /// Ticks of a training step, as a share of what full samplers need for a plan of mean length.
    pub train_share: f64,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            seed: 1,
            steps: 1000,
            slots: 64,
            groups: 32,
            answers: 8,
            median: 1000.0,
            sigma: 1.0,
            longest: 32_000,
            train_share: 0.5,
        }
    }
}

/// One row: the idle shares at a number of open plans.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct IdleRow {
    /// Plans that may be open at a time; for the queue that waits for nobody, that many plans' worth of answers.
    pub open_plans: u32,
    /// Batch n is plan n.
    pub strict: Measured,
    /// A plan may overtake older ones among the oldest `open_plans`.
    pub windowed: Measured,
    /// First finished, first trained on: blind to nothing, and here for comparison alone.
    pub first_finished: Measured,
}

/// What a schedule cost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Measured {
    /// Share of the samplers' time without an answer to draw.
    pub idle_share: f64,
    /// Most steps between the first token of an answer and the step on it.
    pub largest_lag: u64,
}

/// The table, one row for each number of open plans.
pub fn idle_table(schedule: &Schedule, open_plans: &[u32]) -> Vec<IdleRow> {
    let row = |&open_plans: &u32| IdleRow {
        open_plans,
        strict: measure(schedule, open_plans, Mode::Strict, Policy::Planned),
        windowed: measure(schedule, open_plans, Mode::Windowed { plans: open_plans }, Policy::Planned),
        first_finished: measure(schedule, open_plans, Mode::Strict, Policy::FirstFinished),
    };
    open_plans.iter().map(row).collect()
}

fn measure(schedule: &Schedule, max_open_plans: u32, mode: Mode, policy: Policy) -> Measured {
    let Schedule { seed, steps, slots, groups, answers, median, sigma, longest, train_share } = *schedule;
    let mean = median * (sigma * sigma / 2.0).exp();
    let full = mean * f64::from(groups * answers) / f64::from(slots);
    let scenario = Scenario {
        seed,
        steps,
        groups,
        answers,
        samplers: 1,
        slots,
        rules: Rules { max_open_plans, mode, ..Rules::default() },
        lengths: Lengths { median, sigma, longest },
        flush: 1,
        crashes: None,
        judging: Judging { delay: 0.0, fails: 0.0, right: 0.5 },
        train: (full * train_share) as u64,
        update: 0,
        policy,
        disturbance: Disturbance::None,
    };
    let found = simulate(&scenario);
    Measured { idle_share: found.idle_share, largest_lag: found.largest_lag }
}
