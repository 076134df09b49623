//! candle's own models as a target: its sampler in this process, the built-in trainer beside it on the same weights.

use super::outside::some_prompts;
use crate::{client::TrainerClient, input::Input, process::Service};
use lockstep_adapters::candle::{CandleModel, CandleSampler};
use lockstep_conformance::{Ask, NumericClass, Target};
use lockstep_core::{WeightVersion, ports::Sampler};
use std::{error::Error, path::Path, sync::Arc};

/// What names candle in place of an address.
pub const SCHEME: &str = "candle:";

/// The version of weights as they lie in a model directory.
const FIRST: WeightVersion = WeightVersion { epoch: 0, step: 0 };

/// A target and the trainer's process, which ends when this is dropped.
#[expect(missing_debug_implementations, reason = "a target's ports are trait objects")]
pub struct CandlePair {
    /// The pair.
    pub target: Target,
    _trainer: Service,
}

/// Puts one of candle's models beside the built-in trainer. The trainer publishes into `weights` and is configured by a file.
///
/// # Errors
/// A model that neither reads, a trainer that does not come up.
pub async fn candle_pair(
    model: CandleModel,
    input: &Input,
    (weights, config): (&Path, &Path),
    (numeric, seed): (NumericClass, u64),
) -> Result<CandlePair, Box<dyn Error + Send + Sync>> {
    let sampler = Arc::new(CandleSampler::open(model, &input.model, FIRST)?);
    let option = |name: &str, path: &Path| [name.to_owned(), path.display().to_string()];
    let arguments =
        [option("--model", &input.model), option("--weights", weights), option("--config", config)].concat();
    let service = Service::start("trainer", &arguments).await?;
    let trainer = Arc::new(TrainerClient::connect(service.address()).await?);
    let vocabulary = sampler.capabilities().vocabulary;
    let ask = Ask {
        prompts: some_prompts(vocabulary),
        vocabulary,
        stop: input.stop.clone(),
        drifting: input.drifting.clone(),
        seed,
        ..Ask::default()
    };
    let target = Target {
        sampler: Some(sampler.clone()),
        control: Some(sampler),
        scorer: Some(trainer.clone()),
        trainer: Some(trainer.clone()),
        probe: Some(trainer),
        ask,
        numeric,
        exact_lag: true,
        ..Target::default()
    };
    Ok(CandlePair { target, _trainer: service })
}
