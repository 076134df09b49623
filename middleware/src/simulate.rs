//! A fake asynchronous engine and a virtual clock, deterministic and seeded, that drive the same state machine as a real run:
//! thousands of answers with heavy-tailed lengths, crashes, weight updates and slow rewards, in milliseconds.
//!
//! One tick is the time of one token in one slot. Nothing here waits, sleeps or reads a clock.

mod facts;
mod idle;
mod policy;
pub(crate) mod random;
mod world;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod tests;

pub use idle::{IdleRow, Measured, Schedule, idle_table};
pub use policy::Policy;

use crate::audit::Account;
use lockstep_core::dispatch::{Failure, Rules};

/// How long answers are: log-normal, cut at the token limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lengths {
    /// Median, in tokens.
    pub median: f64,
    /// Standard deviation of the logarithm.
    pub sigma: f64,
    /// The token limit.
    pub longest: u32,
}

/// How samplers die.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Crashes {
    /// Mean ticks between two crashes of one sampler.
    pub every: f64,
    /// Ticks until it is back.
    pub down: u64,
    /// Chance that an answer's recorded tokens are gone as well.
    pub loses_tokens: f64,
}

/// How answers are judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judging {
    /// Median ticks from an answer to the outcome of its reward; log-normal with sigma 1.
    pub delay: f64,
    /// Chance that judging fails, which is an outcome too.
    pub fails: f64,
    /// Chance of reward 1 of an answer of median length; longer answers have less.
    pub right: f64,
}

/// What is done to a schedule to see whether membership notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disturbance {
    /// Nothing.
    None,
    /// Other rewards.
    Rewards(u64),
    /// Other lengths, up to eight times as long.
    Lengths(u64),
    /// A subset of the answers arrives late.
    Delays(u64),
}

/// A schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Seed of every draw.
    pub seed: u64,
    /// Steps of the trainer until it ends.
    pub steps: u64,
    /// Prompts of a plan.
    pub groups: u32,
    /// Answers to each.
    pub answers: u32,
    /// Samplers.
    pub samplers: u32,
    /// Answers each draws at a time.
    pub slots: u32,
    /// What bounds dispatch.
    pub rules: Rules,
    /// How long answers are.
    pub lengths: Lengths,
    /// Tokens of a delta: what is drawn beyond the last one is lost with its sampler.
    pub flush: u32,
    /// How samplers die, if they do.
    pub crashes: Option<Crashes>,
    /// How answers are judged.
    pub judging: Judging,
    /// Ticks of a training step.
    pub train: u64,
    /// Ticks for which new weights, after every step, pause the samplers.
    pub update: u64,
    /// What makes batches.
    pub policy: Policy,
    /// What is done to the schedule.
    pub disturbance: Disturbance,
}

impl Scenario {
    /// A small schedule with everything in it that goes wrong, of a seed's own choice.
    pub fn small(seed: u64) -> Self {
        let pick = |below: u64, what: u64| random::pick(below, &[seed, what]);
        let max_open_plans = 1 + pick(4, 1) as u32;
        let mode = match pick(2, 2) {
            0 => lockstep_core::dispatch::Mode::Strict,
            _ => lockstep_core::dispatch::Mode::Windowed { plans: 1 + pick(4, 3) as u32 },
        };
        Self {
            seed,
            steps: 6,
            groups: 1 + pick(3, 4) as u32,
            answers: 2 + pick(3, 5) as u32,
            samplers: 1 + pick(3, 6) as u32,
            slots: 1 + pick(4, 7) as u32,
            rules: Rules { max_open_plans, mode, max_attempts: 1000, max_interruptions: 1000 },
            lengths: Lengths { median: 40.0, sigma: 1.0, longest: 600 },
            flush: 8,
            crashes: (pick(2, 8) == 0).then_some(Crashes { every: 400.0, down: 30, loses_tokens: 0.1 }),
            judging: Judging { delay: 20.0, fails: 0.05, right: 0.6 },
            train: 50,
            update: 5,
            policy: Policy::Planned,
            disturbance: Disturbance::None,
        }
    }

    /// Answers of a plan.
    pub fn planned(&self) -> u32 {
        self.groups * self.answers
    }
}

/// What a schedule came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulated {
    /// What a ledger would tell of it.
    pub account: Account,
    /// Share of the samplers' time without an answer to draw, from the first quarter of the steps on.
    pub idle_share: f64,
    /// Most steps between the first token of an answer and the step on it.
    pub largest_lag: u64,
    /// Ticks it took.
    pub ticks: u64,
    /// Why it ended early, when it did.
    pub failure: Option<Failure>,
}

/// Runs a schedule to its end.
pub fn simulate(scenario: &Scenario) -> Simulated {
    world::World::new(scenario).run()
}
