//! The built-in model: a small Qwen3 with a tokenizer of its own, taught to sort just well enough to have something to learn.
//!
//! Made once and cached; what is made depends on the constants here alone.

use crate::{
    progress::Progress,
    task::{Task, Text, sorting},
    text::EngineText,
};
use lockstep_core::TokenId;
use lockstep_engine::{
    AdamW, Config, Error, Optimiser, Qwen3, Tokenizer, TrainError, Weights, Worker,
    generate::{Filters, Request, generate},
    supervised::{Example, supervised_step},
};
use serde_json::json;
use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Changes whenever the constants below or the arithmetic behind them do.
const RECIPE: &str = "sorting-3";

const SEED: u64 = 20_260_801;
const LEARNING_RATE: f64 = 2e-3;
const EXAMPLES_A_STEP: u64 = 128;
const STEPS_A_LOOK: u64 = 10;
const MOST_STEPS: u64 = 2_000;

/// Share of right answers at which the warm start ends.
const GOOD_ENOUGH: f64 = 0.25;

/// Prompts a look at the model takes.
const LOOK: u64 = 512;

/// A small model that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SmallModelError {
    /// The cache.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What came back.
        #[source]
        source: std::io::Error,
    },
    /// No home for a cache.
    #[error("neither XDG_CACHE_HOME nor HOME names a directory to cache the small model in")]
    NoHome,
    /// The engine.
    #[error(transparent)]
    Engine(#[from] Error),
    /// The supervised training.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The thread it runs on.
    #[error(transparent)]
    Worker(#[from] lockstep_core::ports::PortError),
    /// The tokenizer does not know the task's letters.
    #[error("{0}")]
    Text(String),
    /// Nobody waits for it any more.
    #[error("the warm start was broken off")]
    Unwanted,
    /// It did not learn.
    #[error("after {MOST_STEPS} supervised steps {reached:.3} of the answers are right, not {GOOD_ENOUGH}")]
    NotLearned {
        /// Share of right answers.
        reached: f64,
    },
}

/// The directory of the small model, made when it is not in the cache yet.
///
/// # Errors
/// A cache that cannot be written, a warm start that does not learn.
pub async fn cached() -> Result<PathBuf, SmallModelError> {
    let directory = cache_directory()?.join(RECIPE);
    if directory.join("config.json").is_file() {
        return Ok(directory);
    }
    let beside = directory.with_extension(format!("{}.partial", std::process::id()));
    let _left_behind = RemovedOnDrop(beside.clone());
    let worker = Worker::start("warm start", beside.clone());
    let worker = worker.map_err(|source| SmallModelError::File { path: beside.clone(), source })?;
    let wanted = WantedUntilDrop::default();
    let still = wanted.0.clone();
    worker.call(move |beside: &mut PathBuf| make(beside, &still)).await??;
    move_into_place(&beside, &directory)?;
    Ok(directory)
}

/// A directory that is gone when nobody waits for what is made in it any more.
struct RemovedOnDrop(PathBuf);

impl Drop for RemovedOnDrop {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// False once nobody waits any more: the worker then stops at its next step.
struct WantedUntilDrop(Arc<AtomicBool>);

impl Default for WantedUntilDrop {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Drop for WantedUntilDrop {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

fn cache_directory() -> Result<PathBuf, SmallModelError> {
    let named = |variable: &str| std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
    let cache = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    Ok(cache.ok_or(SmallModelError::NoHome)?.join("lockstep"))
}

/// Another process may have made the same model meanwhile; then its is as good.
fn move_into_place(beside: &Path, directory: &Path) -> Result<(), SmallModelError> {
    let failed = |source| SmallModelError::File { path: directory.to_owned(), source };
    match std::fs::rename(beside, directory) {
        Err(_) if directory.join("config.json").is_file() => std::fs::remove_dir_all(beside).map_err(failed),
        result => result.map_err(failed),
    }
}

/// Shape of the model: 2 layers of width 64, grouped-query attention, tied head.
fn config() -> Config {
    Config {
        vocab: 32,
        hidden: 64,
        inter: 192,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        max_positions: 128,
        rope_theta: 10_000.0,
        rms_eps: 1e-6,
        tied: true,
        eos: vec![0],
    }
}

/// One token a character: the end token, `>`, and the letters.
fn tokenizer_json() -> String {
    let letters = ('a'..='z').enumerate().map(|(at, letter)| (letter.to_string(), json!(at + 2)));
    let vocabulary: serde_json::Map<_, _> =
        [("<|endoftext|>".into(), json!(0)), (">".into(), json!(1))].into_iter().chain(letters).collect();
    let end = json!({"id": 0, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true});
    let split = json!({"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": false});
    let model = json!({"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unknown>"});
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [end], "normalizer": null,
        "pre_tokenizer": split, "post_processor": null, "decoder": {"type": "Fuse"}, "model": model})
    .to_string()
}

fn make(directory: &Path, wanted: &AtomicBool) -> Result<(), SmallModelError> {
    let failed = |source| SmallModelError::File { path: directory.to_owned(), source };
    std::fs::create_dir_all(directory).map_err(failed)?;
    let tokenizer = directory.join("tokenizer.json");
    std::fs::write(&tokenizer, tokenizer_json()).map_err(failed)?;
    let text = EngineText(Tokenizer::load(&tokenizer)?);
    let model = Qwen3::new(config(), Weights::random(&config(), SEED, 0.08)?)?;
    warm_start(&model, &text, wanted)?;
    model.save(directory)?;
    Ok(())
}

fn warm_start(model: &Qwen3, text: &EngineText, wanted: &AtomicBool) -> Result<(), SmallModelError> {
    let rule = AdamW { lr: LEARNING_RATE, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0 };
    let mut optimiser = Optimiser::new(model.weights(), rule, 1.0);
    let task = sorting::Sorting::new(SEED + 1, Arc::new(text.clone())).map_err(SmallModelError::Text)?;
    let progress = Progress::new("warm start", MOST_STEPS);
    let mut reached = 0.0;
    for step in 0..MOST_STEPS {
        if !wanted.load(Ordering::Relaxed) {
            return Err(SmallModelError::Unwanted);
        }
        if step % STEPS_A_LOOK == 0 {
            reached = share_right(model, &task)?;
            progress.at(step, &format!("{reached:.3} right, until {GOOD_ENOUGH}"));
            if reached >= GOOD_ENOUGH {
                progress.finish();
                return Ok(());
            }
        }
        let numbers = step * EXAMPLES_A_STEP..(step + 1) * EXAMPLES_A_STEP;
        let examples = numbers.map(|number| example(text, number)).collect::<Result<Vec<_>, _>>()?;
        supervised_step(model, &mut optimiser, &examples)?;
    }
    Err(SmallModelError::NotLearned { reached })
}

fn example(text: &EngineText, number: u64) -> Result<Example, SmallModelError> {
    let (prompt, answer) = sorting::problem(SEED, number);
    let ids = |text: &EngineText, of: &str| {
        let ids = text.encode(of).map_err(SmallModelError::Text)?;
        Ok::<_, SmallModelError>(ids.into_iter().map(|id| id.0).collect::<Vec<u32>>())
    };
    let mut answer = ids(text, &answer)?;
    answer.push(0);
    Ok(Example { prompt: ids(text, &prompt)?, answer })
}

/// Share of right answers among one sampled answer to each of [`LOOK`] prompts no example comes from.
fn share_right(model: &Qwen3, task: &sorting::Sorting) -> Result<f64, SmallModelError> {
    let filters = Filters { temperature: 0.8, top_k: 0, top_p: 0.95, min_p: 0.0 };
    let requests = (0..LOOK).map(|number| Request {
        prompt: task.prompt(number).ids.iter().map(|id| id.0).collect(),
        generated: vec![],
        filters,
        seed: SEED,
        number,
        stop: vec![0],
        max_new: sorting::LETTERS + 1,
    });
    let mut answers = vec![Vec::new(); LOOK as usize];
    generate(model, &requests.collect::<Vec<_>>(), 1, |at, drawn| {
        answers[at].push(TokenId(drawn.token));
        ControlFlow::Continue(())
    })?;
    let right = answers.iter().zip(0..).map(|(answer, number)| {
        let spoken = answer.strip_suffix(&[TokenId(0)]).unwrap_or(answer);
        task.reward(task.prompt(number), spoken)
    });
    Ok(right.sum::<f64>() / LOOK as f64)
}
