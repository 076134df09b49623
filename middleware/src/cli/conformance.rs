//! `lockstep conformance`: is this pair training on what was sampled?

use super::{DONE, Outcome, USAGE, print};
use crate::{
    client::{SamplerClient, TrainerClient},
    progress::{Progress, say},
    queue::LedgerQueue,
};
use clap::Args;
use lockstep_conformance::{Ask, Report, Suite, Target, suite};
use lockstep_core::{TokenId, ports::Sampler};
use std::{path::PathBuf, sync::Arc};

/// Arguments of `lockstep conformance`.
///
/// Without addresses the built-in pair is started and checked, through the ports an outside pair would use.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Address of a sampler that speaks lockstep.proto.
    #[arg(long, value_name = "HOST:PORT")]
    sampler: Option<String>,
    /// Address of a trainer that speaks lockstep.proto.
    #[arg(long, value_name = "HOST:PORT")]
    trainer: Option<String>,
    /// Ledger of a run, for the checks of batches.
    #[arg(long, value_name = "DIR")]
    ledger: Option<PathBuf>,
    /// A Hugging Face directory of a Qwen3, for the built-in pair in place of the small model.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["sampler", "trainer"])]
    model: Option<PathBuf>,
    /// Runs these checks alone.
    #[arg(long, value_name = "ID")]
    check: Vec<String>,
    /// Breaks the pair on purpose, to see the check that must turn red.
    #[arg(long, value_name = "ID")]
    fault: Option<String>,
    /// Explains one check and runs nothing.
    #[arg(long, value_name = "ID")]
    explain: Option<String>,
    /// Lists the checks and their faults and runs nothing.
    #[arg(long)]
    list: bool,
    /// Prints the report as JSON.
    #[arg(long)]
    json: bool,
    /// Seed of the questions.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(super) async fn run(arguments: Arguments) -> Outcome {
    if arguments.list {
        list().iter().for_each(|line| print(line));
        return Ok(DONE);
    }
    if let Some(id) = &arguments.explain {
        let explained = Suite::all().get(id).map(|check| print(check.explain));
        return Ok(explained.map_or_else(|| unknown("check", id), |()| DONE));
    }
    let ids: Vec<&str> = arguments.check.iter().map(String::as_str).collect();
    let suite = match Suite::only(&ids) {
        _ if ids.is_empty() => Suite::all(),
        Ok(suite) => suite,
        Err(id) => return Ok(unknown("check", &id)),
    };
    let broken = match arguments.fault.as_deref().map(|id| fault(id).ok_or(id)) {
        Some(Err(id)) => return Ok(unknown("fault", id)),
        Some(Ok(break_target)) => break_target,
        None => |target| target,
    };
    let outside = arguments.sampler.is_some() || arguments.trainer.is_some();
    let report = if outside {
        examine(&suite, &broken(connect(&arguments).await?)).await
    } else {
        built_in(&suite, &arguments, broken).await?
    };
    if arguments.json {
        print(&report.json()?);
    } else {
        report.table().lines().for_each(print);
    }
    Ok(report.exit_code())
}

fn unknown(what: &str, id: &str) -> u8 {
    say(&format!("error: there is no {what} {id}; lockstep conformance --list names them"));
    USAGE
}

fn list() -> Vec<String> {
    let suite = Suite::all();
    let lines = suite.checks().flat_map(|check| {
        let faults = check.faults().map(|fault| format!("    fault {}: {}", fault.id, fault.does));
        std::iter::once(format!("{}: {}", check.id, check.demand)).chain(faults.collect::<Vec<_>>())
    });
    lines.collect()
}

fn fault(id: &str) -> Option<fn(Target) -> Target> {
    let suite = Suite::all();
    suite.checks().flat_map(|check| check.faults()).find(|fault| fault.id == id).map(|fault| fault.break_target)
}

async fn examine(suite: &Suite, target: &Target) -> Report {
    let bar = Progress::new("checks", suite.checks().count() as u64);
    let mut say_which = |progress: suite::Progress<'_>| {
        if let suite::Progress::Started { id, index, .. } = progress {
            bar.at(index as u64, id);
        }
    };
    let report = suite.run(target, &mut say_which).await;
    bar.finish();
    report
}

/// A pair that runs already.
async fn connect(arguments: &Arguments) -> Result<Target, Box<dyn std::error::Error + Send + Sync>> {
    let mut target = Target { ask: Ask { seed: arguments.seed, ..Ask::default() }, ..Target::default() };
    if let Some(address) = &arguments.sampler {
        let sampler = Arc::new(SamplerClient::connect(address).await?);
        target.ask.vocabulary = Sampler::capabilities(&*sampler).vocabulary;
        target.ask.prompts = some_prompts(target.ask.vocabulary);
        target.sampler = Some(sampler.clone());
        target.control = Some(sampler);
    }
    if let Some(address) = &arguments.trainer {
        let trainer = Arc::new(TrainerClient::connect(address).await?);
        target.scorer = Some(trainer.clone());
        target.trainer = Some(trainer.clone());
        target.probe = Some(trainer);
    }
    if let Some(directory) = &arguments.ledger {
        target.queue = Some(Arc::new(LedgerQueue::read(directory)?));
    }
    Ok(target)
}

/// Four prompts of eight ids spread over the vocabulary.
fn some_prompts(vocabulary: u32) -> Vec<Vec<TokenId>> {
    let spread = |at: u32| TokenId(at.wrapping_mul(2_654_435_761) % vocabulary.max(1));
    (0..4).map(|prompt| (0..8).map(|at| spread(prompt * 8 + at + 1)).collect()).collect()
}

#[cfg(not(feature = "engine"))]
async fn built_in(
    _: &Suite,
    _: &Arguments,
    _: fn(Target) -> Target,
) -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
    Err("this build has no built-in pair; give --sampler, --trainer or both".into())
}

/// The built-in pair: a short run fills its ledger, then it is asked.
#[cfg(feature = "engine")]
async fn built_in(
    suite: &Suite,
    arguments: &Arguments,
    broken: fn(Target) -> Target,
) -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
    use crate::{built_in::BuiltInPair, conformance::built_in_target, journal::write_whole};
    let config = crate::conformance::configuration(arguments.model.clone(), arguments.seed)?;
    let input = crate::input::Input::open(&config).await?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("config.toml");
    write_whole(&file, &config.to_toml())?;
    let pair = BuiltInPair::start(&input.model, &directory.path().join("weights"), &file).await?;
    let target = built_in_target(&pair, &config, input, directory.path()).await?;
    Ok(examine(suite, &broken(target)).await)
}
