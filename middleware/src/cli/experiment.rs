//! `lockstep experiment`: how close each correction stays to on-policy training.

use super::{DONE, INTERRUPTED, Outcome, print};
use crate::{
    experiment::{
        Plan, Setting, lead,
        outcome::Results,
        play::{self, Places, Stage},
        render, schedule,
        setting::Extent,
        table, verdict,
    },
    journal::write_whole,
    progress::say,
    small_model,
};
use clap::Args;
use std::path::PathBuf;

/// Arguments of `lockstep experiment`.
///
/// Trains the small built-in model under every correction, with stale and with quantised samplers, and holds each against
/// independent on-policy runs. What is done is kept: the same command goes on where it was broken off.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Where everything is written; an experiment that lies there is gone on with.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Three methods, one seed, a smaller setting: some minutes.
    #[arg(long, conflicts_with = "all")]
    quick: bool,
    /// Every rival, every precision, five seeds, grids of learning rate and staleness: most of a day.
    #[arg(long)]
    all: bool,
    /// Seeds of each arm.
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// The first seed.
    #[arg(long, value_name = "SEED")]
    first_seed: Option<u64>,
    /// Learning rate of the arms that have none of their own.
    #[arg(long, value_name = "RATE")]
    learning_rate: Option<f64>,
    /// Updates of an arm.
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Prompts in a batch, with eight answers each.
    #[arg(long, value_name = "N")]
    prompts: Option<u32>,
    /// Arms at the same time, each on one thread.
    #[arg(long, value_name = "N", default_value_t = 2)]
    processes: usize,
    /// Runs nothing: reports what is there.
    #[arg(long)]
    report: bool,
    /// Runs this arm alone, in this process.
    #[arg(long, hide = true, value_name = "NAME")]
    arm: Option<String>,
}

pub(super) async fn run(arguments: Arguments) -> Outcome {
    let places = Places::of(&arguments.out);
    if let Some(name) = &arguments.arm {
        play::arm(&Stage::open(&arguments.out).await?, name).await?;
        return Ok(DONE);
    }
    if arguments.report {
        report(&places)?;
        return Ok(DONE);
    }
    let plan = arguments.plan();
    small_model::cached().await?;
    plan.claim(&arguments.out)?;
    let ended = tokio::select! {
        ended = schedule::all(&plan, &places, arguments.processes.max(1)) => ended.map(|()| false),
        _ = tokio::signal::ctrl_c() => Ok(true),
    };
    report(&places)?;
    if ended? {
        say("interrupted; the same command goes on from here");
        return Ok(INTERRUPTED);
    }
    Ok(DONE)
}

impl Arguments {
    fn plan(&self) -> Plan {
        let (extent, setting) = match (self.quick, self.all) {
            (true, _) => (Extent::Quick, Setting::small()),
            (_, true) => (Extent::All, Setting { seeds: 5, ..Setting::big() }),
            _ => (Extent::Core, Setting::big()),
        };
        let setting = Setting {
            seeds: self.seeds.unwrap_or(setting.seeds),
            first_seed: self.first_seed.unwrap_or(setting.first_seed),
            learning_rate: self.learning_rate.unwrap_or(setting.learning_rate),
            steps: self.steps.unwrap_or(setting.steps),
            prompts: self.prompts.unwrap_or(setting.prompts),
            ..setting
        };
        Plan::new(extent, setting)
    }
}

/// Writes the CSV and the page, prints the table and the verdicts.
fn report(places: &Places) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let results = Results::read(Plan::read(places.root())?, places)?;
    let csv = places.root().join("results.csv");
    write_whole(&csv, &table::csv(&results))?;
    let page = places.root().join("report.html");
    write_whole(&page, &render(&results))?;
    table::lines(&results).iter().for_each(|line| print(line));
    let verdicts = verdict::judge(&results);
    verdicts.iter().for_each(|verdict| print(&verdict.to_string()));
    print(&lead(&results, &verdicts));
    print(&format!("report: {}", page.display()));
    Ok(())
}
