//! `lockstep experiment`: how close each correction stays to on-policy training.

use super::{DONE, INTERRUPTED, Outcome, print, unless_interrupted};
use crate::{
    experiment::{
        Part, Plan, Setting, lead, markdown,
        outcome::Results,
        play::{self, Places, Stage},
        render, schedule, table, verdict,
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
    #[arg(long, conflicts_with_all = ["all", "part"])]
    quick: bool,
    /// Every part, five seeds: most of a day.
    #[arg(long, conflicts_with = "part")]
    all: bool,
    /// This part, or these; into a directory that has others, which stay. Without one, the core.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    part: Vec<Part>,
    /// Runs nothing: names the arms.
    #[arg(long)]
    list: bool,
    /// Seeds of each arm; without it 3, and 5 in the search for a default and with --all.
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
    /// Prints the tables as Markdown.
    #[arg(long)]
    markdown: bool,
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
        report(&places, arguments.markdown)?;
        return Ok(DONE);
    }
    let plan = arguments.plan();
    if arguments.list {
        plan.arms.iter().for_each(|arm| print(&arm.name()));
        return Ok(DONE);
    }
    small_model::cached().await?;
    plan.claim(&arguments.out)?;
    let ended = unless_interrupted(schedule::all(&plan, &places, arguments.processes.max(1))).await;
    let ended = ended.map_or(Ok(true), |ended| ended.map(|()| false));
    report(&places, arguments.markdown)?;
    if ended? {
        say("interrupted; the same command goes on from here");
        return Ok(INTERRUPTED);
    }
    Ok(DONE)
}

impl Arguments {
    fn plan(&self) -> Plan {
        let (parts, setting) = match (self.quick, self.all) {
            (true, _) => (vec![Part::Quick], Setting::small()),
            (_, true) => (Part::ALL.to_vec(), Setting::big()),
            _ if self.part.is_empty() => (vec![Part::Core], Setting::big()),
            _ => (self.part.clone(), Setting::big()),
        };
        let setting = Setting {
            first_seed: self.first_seed.unwrap_or(setting.first_seed),
            learning_rate: self.learning_rate.unwrap_or(setting.learning_rate),
            steps: self.steps.unwrap_or(setting.steps),
            prompts: self.prompts.unwrap_or(setting.prompts),
            ..setting
        };
        Plan::new(&parts, setting, self.seeds.or(self.all.then_some(5)))
    }
}

/// Writes the CSV and the page, prints the table and the verdicts.
fn report(places: &Places, markdown: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let results = Results::read(Plan::read(places.root())?, places)?;
    let csv = places.root().join("results.csv");
    write_whole(&csv, &table::csv(&results))?;
    let page = places.root().join("report.html");
    write_whole(&page, &render(&results))?;
    let verdicts = verdict::judge(&results);
    if markdown {
        print(&markdown::tables(&results, &verdicts));
    } else {
        table::lines(&results).iter().for_each(|line| print(line));
        verdicts.iter().for_each(|verdict| print(&verdict.to_string()));
    }
    print(&lead(&results, &verdicts));
    print(&format!("report: {}", page.display()));
    Ok(())
}
