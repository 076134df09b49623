//! `lockstep simulate`: what it costs to wait for the slowest.

use super::{DONE, Outcome, print};
use crate::simulate::{IdleRow, Measured, Schedule, idle_table};
use clap::Args;

/// Arguments of `lockstep simulate`.
///
/// Runs the state machine of dispatch against a fake engine and a virtual clock, and prints the samplers' idle share by the
/// number of open plans: in strict order, in a window, and against a queue that trains on whatever finishes first.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Plans that may be open at a time, one row each.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    open_plans: Vec<u32>,
    /// Answers drawn at a time.
    #[arg(long, default_value_t = 64)]
    slots: u32,
    /// Prompts of a plan.
    #[arg(long, default_value_t = 32)]
    prompts: u32,
    /// Answers to each.
    #[arg(long, default_value_t = 8)]
    answers: u32,
    /// Median length of an answer, in tokens.
    #[arg(long, default_value_t = 1000.0)]
    median: f64,
    /// Standard deviation of the logarithm of the length.
    #[arg(long, default_value_t = 1.0)]
    sigma: f64,
    /// The token limit.
    #[arg(long, default_value_t = 32_000)]
    longest: u32,
    /// Time of a training step, as a share of what busy samplers need for a plan.
    #[arg(long, default_value_t = 0.5)]
    train_share: f64,
    /// Training steps; the first quarter is not measured.
    #[arg(long, default_value_t = 1000)]
    steps: u64,
    /// Seed of the lengths.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Prints the table as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Outcome {
    let counts = [arguments.slots, arguments.prompts, arguments.answers, arguments.longest];
    let positive = |value: f64| value > 0.0 && value.is_finite();
    if counts.contains(&0) || arguments.open_plans.contains(&0) || arguments.steps == 0 || !positive(arguments.median) {
        return Err("open plans, slots, prompts, answers, lengths and steps must be above 0".into());
    }
    if !(arguments.sigma >= 0.0 && arguments.sigma <= 3.0 && (0.0..=10.0).contains(&arguments.train_share)) {
        return Err("sigma must be in [0, 3] and the train share in [0, 10]".into());
    }
    let rows = idle_table(&arguments.schedule(), &arguments.open_plans);
    if arguments.json {
        print(&serde_json::to_string_pretty(&rows)?);
    } else {
        table(&rows).iter().for_each(|line| print(line));
    }
    Ok(DONE)
}

impl Arguments {
    fn schedule(&self) -> Schedule {
        Schedule {
            seed: self.seed,
            steps: self.steps,
            slots: self.slots,
            groups: self.prompts,
            answers: self.answers,
            median: self.median,
            sigma: self.sigma,
            longest: self.longest,
            train_share: self.train_share,
        }
    }
}

fn table(rows: &[IdleRow]) -> Vec<String> {
    let heads = ["strict", "windowed", "first finished"];
    let mut lines = vec![
        "samplers' idle share, largest lag in steps".to_owned(),
        format!("{:<10} {:>16} {:>16} {:>16}", "open plans", heads[0], heads[1], heads[2]),
    ];
    let cell = |it: Measured| format!("{:.1} %, {:>2}", it.idle_share * 100.0, it.largest_lag);
    lines.extend(rows.iter().map(|row| {
        let (strict, windowed, first) = (cell(row.strict), cell(row.windowed), cell(row.first_finished));
        format!("{:<10} {strict:>16} {windowed:>16} {first:>16}", row.open_plans)
    }));
    lines
}
