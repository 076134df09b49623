//! The built-in pair as a target of the conformance suite.

use crate::{
    built_in::BuiltInPair,
    config::{Config, ConfigError},
    input::Input,
    ledger::LedgerError,
    queue::LedgerQueue,
    run::{Progressed, Run, RunError},
};
use lockstep_conformance::{Ask, Target, tolerance::NumericClass};
use lockstep_core::ports::Sampler;
use lockstep_engine::Qwen3;
use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

/// Prompts the suite asks.
const PROMPTS: u64 = 6;

/// Ids of the small model that no text has.
const UNUSED: Range<usize> = 28..32;

/// A pair that could not be made a target.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// Its short run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The ledger of it.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// What the short run does: three plans, with steps large enough to show a change of weights.
///
/// # Errors
/// None with these values; the check is the configuration's own.
pub fn configuration(model: Option<PathBuf>, seed: u64) -> Result<Config, ConfigError> {
    let settings = ["steps=3", "batch.prompts=6", "batch.answers=4", "sync_every=2", "trainer.learning_rate=3e-4"];
    let settings: Vec<String> = settings.iter().map(ToString::to_string).chain([format!("seed={seed}")]).collect();
    let mut config = Config::resolve(None, &settings)?;
    config.input.model = model;
    Ok(config)
}

/// The small model with the rows of its four unused ids made one, so that there are ids that are always tied.
///
/// # Errors
/// A model that does not load, a directory that cannot be written.
pub fn with_ties(model: &Path, into: &Path) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    std::fs::create_dir_all(into)?;
    let model_of = Qwen3::load(model)?;
    model_of.weights().equal_rows("model.embed_tokens.weight", UNUSED)?;
    model_of.save(into)?;
    std::fs::copy(model.join("tokenizer.json"), into.join("tokenizer.json"))?;
    Ok(())
}

/// Trains for a few steps, so that there is something to ask of batches, and offers every port the pair has.
///
/// # Errors
/// A run that fails, a ledger that cannot be read back.
pub async fn built_in_target(
    pair: &BuiltInPair,
    config: &Config,
    input: Input,
    directory: &Path,
) -> Result<Target, TargetError> {
    let ask = Ask {
        prompts: (0..PROMPTS).map(|number| input.task.prompt(number).ids.clone()).collect(),
        vocabulary: Sampler::capabilities(&*pair.sampler).vocabulary,
        stop: input.stop.clone(),
        drifting: input.drifting.clone(),
        seed: config.seed,
        ..Ask::default()
    };
    let Input { task, stop, .. } = input;
    let run = Run { config: config.clone(), sampler: pair.sampler.clone(), pair: pair.pair(), task, stop };
    run.train(directory, &Mutex::new(Progressed::default())).await?;
    Ok(Target {
        sampler: Some(pair.sampler.clone()),
        control: Some(pair.sampler.clone()),
        scorer: Some(pair.trainer.clone()),
        trainer: Some(pair.trainer.clone()),
        probe: Some(pair.trainer.clone()),
        queue: Some(Arc::new(LedgerQueue::read(&directory.join("ledger"))?)),
        ask,
        numeric: NumericClass::F32,
        exact_lag: true,
        ..Target::default()
    })
}
