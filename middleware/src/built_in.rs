//! The built-in Qwen3 pair, each side in a process of its own, spoken to as any outside pair would be.

use crate::{
    client::{SamplerClient, TrainerClient},
    process::{ProcessError, Service},
    step::Pair,
};
use lockstep_core::{WeightVersion, ports::PortError};
use lockstep_engine::Compute;
use std::{path::Path, sync::Arc};

/// Both sides, running; gone when dropped.
#[derive(Debug)]
pub struct BuiltInPair {
    /// The sampler and its control plane.
    pub sampler: Arc<SamplerClient>,
    /// The trainer.
    pub trainer: Arc<TrainerClient>,
    _services: [Service; 2],
}

/// A pair that did not come up.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A connection.
    #[error(transparent)]
    Port(#[from] PortError),
}

impl BuiltInPair {
    /// Starts both sides on one model directory; the trainer publishes into `weights` and is configured by a file.
    ///
    /// # Errors
    /// A process that does not come up or does not answer.
    pub async fn start(model: &Path, weights: &Path, config: &Path) -> Result<Self, StartError> {
        Self::start_with(model, weights, config, (&[], &[])).await
    }

    /// Starts both sides; the trainer writes its state below `state`, goes on from it where there is one, and keeps the weights
    /// of the versions in `live`. Both compute on `device`.
    ///
    /// # Errors
    /// As [`BuiltInPair::start`].
    pub async fn resume(
        model: &Path,
        weights: &Path,
        config: &Path,
        (state, live, device): (&Path, &[WeightVersion], Compute),
    ) -> Result<Self, StartError> {
        let device = ["--device".to_owned(), device.to_string()];
        let state = ["--state".to_owned(), state.display().to_string()];
        let live = live.iter().flat_map(|version| ["--live".to_owned(), version.to_string()]);
        let of_trainer = state.into_iter().chain(live).collect::<Vec<_>>();
        Self::start_with(model, weights, config, (&device, &of_trainer)).await
    }

    async fn start_with(
        model: &Path,
        weights: &Path,
        config: &Path,
        (both, more): (&[String], &[String]),
    ) -> Result<Self, StartError> {
        let option = |name: &str, path: &Path| [name.to_owned(), path.display().to_string()];
        let model = [&option("--model", model)[..], both].concat();
        let of_trainer = [&model[..], &option("--weights", weights), &option("--config", config), more].concat();
        let sampler = Service::start("sampler", &model).await?;
        let trainer = Service::start("trainer", &of_trainer).await?;
        Ok(Self {
            sampler: Arc::new(SamplerClient::connect(sampler.address()).await?),
            trainer: Arc::new(TrainerClient::connect(trainer.address()).await?),
            _services: [sampler, trainer],
        })
    }

    /// What a training step needs of it.
    pub fn pair(&self) -> Pair {
        Pair { control: self.sampler.clone(), scorer: self.trainer.clone(), trainer: self.trainer.clone() }
    }
}
