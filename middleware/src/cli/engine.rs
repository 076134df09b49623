//! `lockstep sampler` and `lockstep trainer`: the built-in pair, each in a process of its own.

use super::{DONE, Outcome, print};
use crate::{
    config::Config,
    process::LISTENING,
    saving::{self, SavingTrainer},
    server,
};
use clap::Args;
use lockstep_core::WeightVersion;
use lockstep_engine::{
    AdamW, Compute, Numerics, Optimiser, Qwen3, Qwen3Sampler, Qwen3Trainer, SamplerPort, TrainerPort, trainer::Settings,
};
use std::{net::SocketAddr, path::PathBuf, sync::Arc};
use tokio::{io::AsyncReadExt, net::TcpListener};

/// The version of weights as they lie in a model directory, before the first step.
pub(super) const FIRST: WeightVersion = WeightVersion { epoch: 0, step: 0 };

/// Where and how long to serve.
#[derive(Debug, Args)]
struct Listen {
    /// Address to listen on; port 0 takes a free one. The first line on standard output says which.
    #[arg(long, default_value = "127.0.0.1:50051", env = "LOCKSTEP_LISTEN")]
    listen: SocketAddr,
    /// Serve until standard input closes, and leave Ctrl-C to whoever holds it open.
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
}

/// Where to compute.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct On {
    /// cpu, cuda, or cuda:N; a card needs the build with CUDA in it (`make build-cuda`).
    #[arg(long, default_value = "cpu", env = "LOCKSTEP_DEVICE")]
    pub(super) device: Compute,
}

/// Arguments of `lockstep sampler`.
#[derive(Debug, Args)]
pub(super) struct SamplerArguments {
    /// A Hugging Face directory of a Qwen3.
    #[arg(long)]
    model: PathBuf,
    /// How coarsely to compute: exact, bf16-head, int8, int4, int3, q8_0, or noise(sigma,seed).
    #[arg(long, default_value = "exact")]
    numerics: Numerics,
    #[command(flatten)]
    on: On,
    #[command(flatten)]
    listen: Listen,
}

/// Arguments of `lockstep trainer`.
#[derive(Debug, Args)]
pub(super) struct TrainerArguments {
    /// A Hugging Face directory of a Qwen3.
    #[arg(long)]
    model: PathBuf,
    /// Where published weights go.
    #[arg(long)]
    weights: PathBuf,
    /// Writes its state here before every step, and goes on from it, in a new epoch, where there is one.
    #[arg(long)]
    state: Option<PathBuf>,
    /// A published version that answers in the making were drawn with; its weights are kept for scoring them.
    #[arg(long, value_name = "VERSION")]
    live: Vec<WeightVersion>,
    /// A configuration; only its table `trainer` counts here.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Sets a key of the configuration, as in `trainer.learning_rate=1e-4`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    on: On,
    #[command(flatten)]
    listen: Listen,
}

pub(super) async fn sampler(arguments: SamplerArguments) -> Outcome {
    let model = Qwen3::load(&arguments.model)?;
    let sampler = Qwen3Sampler::on(&model, FIRST, &arguments.on.device.open()?, arguments.numerics)?;
    let sampler = Arc::new(SamplerPort::new(sampler)?);
    let listener = arguments.listen.bind().await?;
    server::serve_sampler(sampler, listener, arguments.listen.until()).await?;
    Ok(DONE)
}

pub(super) async fn trainer(arguments: TrainerArguments) -> Outcome {
    let config = Config::resolve(arguments.config.as_deref(), &arguments.set)?.trainer;
    let rule =
        AdamW { lr: config.learning_rate, betas: config.betas, eps: config.epsilon, weight_decay: config.weight_decay };
    let device = arguments.on.device.open()?;
    let settings = Settings { device: device.clone(), ..Settings::new(&arguments.weights) };
    let mut trainer = match arguments.state.as_deref().and_then(saving::saved) {
        Some(saved) => Qwen3Trainer::restore(&saved, (rule, config.clip_norm), settings)?,
        None => {
            let model = Qwen3::load(&arguments.model)?.to_device(&device)?;
            let optimiser = Optimiser::new(model.weights(), rule, config.clip_norm);
            Qwen3Trainer::new(model, optimiser, FIRST, settings)
        }
    };
    arguments.live.iter().try_for_each(|&version| trainer.revive(version))?;
    let trainer = Arc::new(SavingTrainer::new(TrainerPort::new(trainer)?, arguments.state));
    let listener = arguments.listen.bind().await?;
    server::serve_trainer(trainer, listener, arguments.listen.until()).await?;
    Ok(DONE)
}

impl Listen {
    async fn bind(&self) -> std::io::Result<TcpListener> {
        let listener = TcpListener::bind(self.listen)
            .await
            .map_err(|error| std::io::Error::new(error.kind(), format!("cannot listen on {}: {error}", self.listen)))?;
        print(&format!("{LISTENING}{}", listener.local_addr()?));
        Ok(listener)
    }

    async fn until(self) {
        if self.until_stdin_closes {
            let ignored = tokio::spawn(async { while tokio::signal::ctrl_c().await.is_ok() {} });
            let mut stdin = tokio::io::stdin();
            let mut byte = [0];
            while matches!(stdin.read(&mut byte).await, Ok(read) if read > 0) {}
            ignored.abort();
        } else {
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}
