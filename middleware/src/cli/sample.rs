//! `lockstep sample`: answers of the built-in sampler, in a ledger, without a trainer.

use super::{
    DONE, INTERRUPTED, Outcome,
    asked::{Asked, is_empty},
    engine::{FIRST, On},
    print, unless_interrupted,
};
use crate::{
    config::Config,
    dispatch::{Driver, History, Settings, Station},
    input::Input,
    journal::{WriteError, write_whole},
    ledger::Ledger,
    progress::{Progress, say},
    run::{judge, plan},
};
use clap::Args;
use lockstep_core::{Rollout, ScoredBatch, dispatch::Rules, version::Digest};
use lockstep_engine::{Numerics, Qwen3, Qwen3Sampler, SamplerPort};
use std::{
    error::Error,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Arguments of `lockstep sample`.
///
/// Without --model and --prompts: the small Qwen3 that sorts letters. Plan k asks for the prompts of the demo's plan k.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    asked: Asked,
    /// Plans, each of `batch.prompts` prompts with `batch.answers` answers.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    plans: u32,
    /// How coarsely to compute: exact, bf16-head, int8, int4, int3, q8_0, or noise(sigma,seed).
    #[arg(long, default_value = "exact")]
    numerics: Numerics,
    /// Where the ledger is written: new, empty, or what a call with the same configuration, weights and numerics left, which goes
    /// on.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    on: On,
}

/// Sums over what was drawn.
#[derive(Debug, Default, Clone, Copy)]
struct Drawn {
    plans: u64,
    answers: usize,
    tokens: usize,
    ids: usize,
    log_q: f64,
    reward: f64,
}

pub(super) async fn run(arguments: Arguments) -> Outcome {
    let config = arguments.asked.configuration(&[])?;
    let device = arguments.on.device.open()?;
    let drawn = Mutex::new(Drawn::default());
    let work = async {
        let input = Input::open(&config).await?;
        let model = Qwen3::load(&input.model)?;
        let sampler = Qwen3Sampler::on(&model, FIRST, &device, arguments.numerics)?;
        let digest = Digest(model.weights().digest()?);
        claim(&arguments.out, &arguments.drawn_with(&config, digest))?;
        draw((&config, &input), Arc::new(SamplerPort::new(sampler)?), (&arguments.out, arguments.plans), &drawn).await
    };
    let code = match unless_interrupted(work).await {
        Some(ended) => ended.map(|()| DONE)?,
        None => INTERRUPTED,
    };
    let drawn = drawn.into_inner().unwrap_or_else(PoisonError::into_inner);
    if code == INTERRUPTED {
        say(&format!("interrupted after plan {} of {}; the same command goes on", drawn.plans, arguments.plans));
    }
    if drawn.plans > 0 {
        print(&drawn.to_string());
        print(&format!("ledger: {}", arguments.out.join("ledger").display()));
    }
    Ok(code)
}

/// Fills the plans; every delta is in the ledger before it counts.
async fn draw(
    (config, input): (&Config, &Input),
    sampler: Arc<SamplerPort>,
    (out, plans): (&Path, u32),
    drawn: &Mutex<Drawn>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let (ledger, records) = Ledger::open(&out.join("ledger"))?;
    let history = History::of(records)?;
    let lease = Duration::from_secs(config.batch.lease_seconds.into());
    // Nothing is trained on: all plans stay open.
    let settings = Settings { rules: Rules { max_open_plans: plans, ..config.dispatch() }, lease, first: 0 };
    let station = Station { name: "sampler".into(), sampler, slots: u32::MAX };
    let judge = judge(config, input.task.clone());
    let mut driver = Driver::start(settings, vec![station], judge, (ledger, history, FIRST))?;
    driver.draw()?;
    let progress = Progress::new("sampling", plans.into());
    for at in 0..u64::from(plans) {
        // The plans of an earlier call are open already.
        if driver.may_open() == Some(at) {
            driver.open(plan(config, &*input.task, &input.stop, at)?)?;
        }
        let batch = driver.next().await?;
        let mut drawn = drawn.lock().unwrap_or_else(PoisonError::into_inner);
        drawn.add(&batch);
        progress.at(drawn.plans, &format!("{} answers, {} tokens", drawn.answers, drawn.tokens));
    }
    progress.finish();
    Ok(())
}

impl Drawn {
    fn add(&mut self, batch: &ScoredBatch) {
        self.plans += 1;
        self.answers += batch.batch().rollouts().len();
        self.tokens += batch.batch().tokens();
        self.reward += batch.rewards().iter().sum::<f64>();
        for segment in batch.batch().rollouts().iter().flat_map(Rollout::segments) {
            for support in segment.behavior.rows() {
                self.ids += support.ids().len();
                self.log_q += support.sampled().log_q;
            }
        }
    }
}

impl std::fmt::Display for Drawn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (answers, tokens) = (self.answers.max(1) as f64, self.tokens.max(1) as f64);
        write!(
            f,
            "{} answers, {} tokens; means: reward {:.4}, log q {:.4}, ids in a support {:.4}",
            self.answers,
            self.tokens,
            self.reward / answers,
            self.log_q / tokens,
            self.ids as f64 / tokens
        )
    }
}

/// Takes a directory that nobody has written to, or one whose answers were drawn with the same.
fn claim(out: &Path, drawn_with: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let other = |why: String| WriteError::new(out, std::io::Error::other(why)).into();
    let empty = is_empty(out)?;
    let written = out.join("sample.toml");
    if let Ok(before) = std::fs::read_to_string(&written) {
        let differs = before.lines().zip(drawn_with.lines()).find(|(before, now)| before != now);
        return match differs {
            Some((before, now)) => Err(other(format!("its answers were drawn with {before}, not with {now}"))),
            None if before == drawn_with => Ok(()),
            None => Err(other("its answers were drawn with another configuration".into())),
        };
    }
    if !empty {
        return Err(other("the directory is not empty".into()));
    }
    Ok(write_whole(&written, drawn_with)?)
}

impl Arguments {
    /// What the answers depend on, in TOML.
    fn drawn_with(&self, config: &Config, weights: Digest) -> String {
        let (numerics, device) = (self.numerics, self.on.device);
        format!("weights = \"{weights}\"\nnumerics = \"{numerics}\"\ndevice = \"{device}\"\n\n{}", config.to_toml())
    }
}
