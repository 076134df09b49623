//! `lockstep conformance`: is this pair training on what was sampled?

use super::{DONE, Outcome, USAGE, print};
use crate::{
    conformance::{
        outside::{self, Outside},
        recorded::recording,
        template,
    },
    progress::{Progress, say},
    queue::LedgerQueue,
    session::SessionError,
};
use clap::Args;
use lockstep_conformance::{ChatTemplate, NumericClass, Report, Suite, Target, Verdict, compare, junit, page, suite};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Arguments of `lockstep conformance`.
///
/// Without addresses the built-in pair is started and checked, through the ports an outside pair would use.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// An engine or a gateway by its URL (vLLM, SGLang, llama.cpp, lockstep serve), a sampler that speaks lockstep.proto by its HOST:PORT, a file that
    /// `lockstep record` wrote, or candle:qwen3 and candle:quantized-qwen3 for candle's own models beside the built-in trainer.
    #[arg(long, value_name = "URL")]
    sampler: Option<String>,
    /// Address of a trainer that speaks lockstep.proto.
    #[arg(long, value_name = "HOST:PORT")]
    trainer: Option<String>,
    /// Ledger of a run, for the checks of batches.
    #[arg(long, value_name = "DIR")]
    ledger: Option<PathBuf>,
    /// A Hugging Face directory: its chat template is judged, and the built-in pair and candle load it in place of the small
    /// model.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Trains as well, as wrapped and plain, and measures how far it ends from on-policy training: minutes, on the built-in
    /// pair alone.
    #[arg(long)]
    deep: bool,
    /// Updates of that training.
    #[cfg(feature = "engine")]
    #[arg(long, default_value_t = 24, value_name = "N", requires = "deep")]
    deep_steps: u64,
    /// Prompts in a batch of it, with eight answers each.
    #[cfg(feature = "engine")]
    #[arg(long, default_value_t = 128, value_name = "N", requires = "deep")]
    deep_prompts: u32,
    /// The directory whose chat template is judged, where it is not that of --model.
    #[arg(long, value_name = "DIR")]
    template: Option<PathBuf>,
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
    /// Writes the report as JUnit XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Writes the report as one page of HTML, with plots.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Names the checks that got worse since this report, which --json wrote; the exit code is then 1.
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Puts every fault on the pair in turn and says whether its own check is red.
    #[arg(long, conflicts_with_all = ["json", "junit", "html", "compare", "fault"])]
    self_test: bool,
    /// The number format an outside pair claims; its numeric term is held against it.
    #[arg(long, value_enum, default_value = "f32")]
    numeric: Numeric,
    /// Seconds an outside pair is waited for, each time.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    patience: u64,
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
        let explained = Suite::deep().get(id).map(|check| print(check.explain));
        return Ok(explained.map_or_else(|| unknown("check", id), |()| DONE));
    }
    let ids: Vec<&str> = arguments.check.iter().map(String::as_str).collect();
    let suite = match Suite::only(&ids) {
        _ if ids.is_empty() && arguments.deep => Suite::deep(),
        _ if ids.is_empty() => Suite::all(),
        Ok(suite) => suite,
        Err(id) => return Ok(unknown("check", &id)),
    };
    let broken = match arguments.fault.as_deref().map(|id| fault(id).ok_or(id)) {
        Some(Err(id)) => return Ok(unknown("fault", id)),
        Some(Ok(break_target)) => break_target,
        None => |target| target,
    };
    let candle = arguments.sampler.as_deref().and_then(|sampler| sampler.strip_prefix("candle:"));
    if let Some(model) = candle {
        return of_candle(&suite, (&arguments, model), broken).await;
    }
    let outside = arguments.sampler.is_some() || arguments.trainer.is_some() || arguments.ledger.is_some();
    if outside {
        judge(&suite, &arguments, &broken(connect(&arguments).await?)).await
    } else {
        built_in(&suite, &arguments, broken).await
    }
}

/// The chat template of `--template` or `--model`, where one names one.
fn template_of(arguments: &Arguments) -> Result<Option<Arc<dyn ChatTemplate>>, SessionError> {
    arguments.template.as_deref().or(arguments.model.as_deref()).map_or(Ok(None), template)
}

async fn judge(suite: &Suite, arguments: &Arguments, target: &Target) -> Outcome {
    if arguments.self_test {
        return Ok(self_test(suite, target).await);
    }
    tell(&examine(suite, target).await, arguments)
}

fn unknown(what: &str, id: &str) -> u8 {
    say(&format!("error: there is no {what} {id}; lockstep conformance --list names them"));
    USAGE
}

fn list() -> Vec<String> {
    let suite = Suite::deep();
    let lines = suite.checks().flat_map(|check| {
        let faults = check.faults().map(|fault| format!("    fault {}: {}", fault.id, fault.does));
        std::iter::once(format!("{}: {}", check.id, check.demand)).chain(faults.collect::<Vec<_>>())
    });
    lines.collect()
}

fn fault(id: &str) -> Option<fn(Target) -> Target> {
    let suite = Suite::deep();
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

/// The file that stands in the place of a sampler.
fn file_of(arguments: &Arguments) -> Option<&Path> {
    arguments.sampler.as_deref().map(Path::new).filter(|path| path.is_file())
}

/// A pair that runs already.
async fn connect(arguments: &Arguments) -> Result<Target, Box<dyn std::error::Error + Send + Sync>> {
    let outside = Outside {
        sampler: arguments.sampler.clone().filter(|_| file_of(arguments).is_none()),
        trainer: arguments.trainer.clone(),
        numeric: arguments.numeric.into(),
        patience: Duration::from_secs(arguments.patience),
        seed: arguments.seed,
    };
    let mut target = outside::target(&outside).await;
    if let Some(file) = file_of(arguments) {
        let found = recording(file).await?;
        let read = found.target.recorded.as_ref().map_or(0, |batch| batch.rollouts().len());
        say(&format!("{}: {read} answers read, {} exchanges are something else", file.display(), found.foreign));
        found.target.contradictions.iter().for_each(|why| say(&format!("a reply contradicts itself: {why}")));
        let Target { scorer, trainer, probe, .. } = target;
        target = Target { scorer, trainer, probe, numeric: arguments.numeric.into(), ..found.target };
    }
    target.template = template_of(arguments)?;
    if let Some(directory) = &arguments.ledger {
        target.queue = Some(Arc::new(LedgerQueue::read(directory)?));
    }
    Ok(target)
}

/// Writes and prints the report; the exit code, 1 also where a check got worse.
fn tell(report: &Report, arguments: &Arguments) -> Outcome {
    if arguments.json {
        print(&report.json()?);
    } else {
        report.table().lines().for_each(print);
        print(&report.badge());
    }
    if let Some(path) = &arguments.junit {
        std::fs::write(path, junit::junit(report)).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if let Some(path) = &arguments.html {
        std::fs::write(path, page::page(report)).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let Some(path) = &arguments.compare else { return Ok(report.exit_code()) };
    let old = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let old: Report = serde_json::from_str(&old).map_err(|error| format!("{}: {error}", path.display()))?;
    let worse = compare::regressions(&old, report);
    worse.iter().for_each(|line| say(&format!("worse: {line}")));
    Ok(if worse.is_empty() { report.exit_code() } else { 1 })
}

/// Puts every fault on the pair in turn; 1 where one was not flagged by its own check. A pair without the port that a fault
/// sits at cannot have it.
async fn self_test(suite: &Suite, target: &Target) -> u8 {
    let mut missed = 0;
    for (fault, verdict) in suite.self_test(target).await {
        let word = match &verdict {
            Verdict::Fail(_) => "flagged",
            Verdict::NotApplicable(_) => "no port",
            Verdict::Pass(_) | Verdict::CouldNotRun(_) => "MISSED",
        };
        missed += u8::from(word == "MISSED");
        print(&format!("{word:7}  {:24} {}: {}", fault.id, verdict.word(), verdict.evidence()));
    }
    missed.min(1)
}

/// The number formats, for the command line.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Numeric {
    F32,
    Bf16,
    Fp8Int8,
    Int4,
}

impl From<Numeric> for NumericClass {
    fn from(numeric: Numeric) -> Self {
        match numeric {
            Numeric::F32 => Self::F32,
            Numeric::Bf16 => Self::Bf16,
            Numeric::Fp8Int8 => Self::Fp8Int8,
            Numeric::Int4 => Self::Int4,
        }
    }
}

#[cfg(not(feature = "engine"))]
async fn built_in(_: &Suite, _: &Arguments, _: fn(Target) -> Target) -> Outcome {
    Err("this build has no built-in pair; give --sampler, --trainer or both".into())
}

/// The built-in pair: a short run fills its ledger, then it is asked.
#[cfg(feature = "engine")]
async fn built_in(suite: &Suite, arguments: &Arguments, broken: fn(Target) -> Target) -> Outcome {
    use crate::{
        built_in::BuiltInPair,
        conformance::{built_in_target, course::BuiltInCourse},
        experiment::Setting,
        journal::write_whole,
    };
    let config = crate::conformance::configuration(arguments.model.clone(), arguments.seed)?;
    let mut input = crate::input::Input::open(&config).await?;
    let directory = tempfile::tempdir()?;
    if arguments.model.is_none() {
        let tied = directory.path().join("model");
        crate::conformance::with_ties(&input.model, &tied)?;
        input.model = tied;
    }
    let file = directory.path().join("config.toml");
    write_whole(&file, &config.to_toml())?;
    let pair = BuiltInPair::start(&input.model, &directory.path().join("weights"), &file).await?;
    let target = built_in_target(&pair, &config, input, directory.path()).await?;
    let mut target = Target { template: template_of(arguments)?, ..target };
    if arguments.deep {
        let (steps, prompts, first_seed) = (arguments.deep_steps, arguments.deep_prompts, arguments.seed);
        let setting = Setting { steps, prompts, first_seed, ..Setting::deep() };
        crate::small_model::cached().await?;
        target.course = Some(Arc::new(BuiltInCourse::new(directory.path().join("course"), setting)));
    }
    judge(suite, arguments, &broken(target)).await
}

#[cfg(not(feature = "candle"))]
async fn of_candle(_: &Suite, _: (&Arguments, &str), _: fn(Target) -> Target) -> Outcome {
    Err("this build has no candle-transformers; build it with the feature candle".into())
}

/// One of candle's models, beside the built-in trainer on the same weights.
#[cfg(feature = "candle")]
async fn of_candle(suite: &Suite, (arguments, model): (&Arguments, &str), broken: fn(Target) -> Target) -> Outcome {
    use crate::{conformance::candle::candle_pair, journal::write_whole};
    let model = match model.parse() {
        Ok(model) => model,
        Err(reason) => {
            say(&format!("error: {reason}"));
            return Ok(USAGE);
        }
    };
    let config = crate::conformance::configuration(arguments.model.clone(), arguments.seed)?;
    let input = crate::input::Input::open(&config).await?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("config.toml");
    write_whole(&file, &config.to_toml())?;
    let places = (&*directory.path().join("weights"), &*file);
    let mut pair = candle_pair(model, &input, places, (arguments.numeric.into(), arguments.seed)).await?;
    pair.target.template = template_of(arguments)?;
    judge(suite, arguments, &broken(pair.target.clone())).await
}
