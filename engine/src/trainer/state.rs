//! A trainer on disk: its weights, its moments, and last a small file that says which belong together.

use super::{Qwen3Trainer, Settings};
use crate::config::read_json;
use crate::optimiser::write_whole;
use crate::train_error::TrainResult;
use crate::{Config, Error, Optimiser, Qwen3, Weights};
use lockstep_core::version::{Digest, WeightVersion};
use lockstep_kernels::adamw::AdamW;
use serde_json::{Value, json};
use std::path::Path;

impl Qwen3Trainer {
    /// Writes everything that training goes on with: `config.json`, `model.safetensors`, `optimiser.safetensors`, and last
    /// `trainer.json`, which names the version and the digest of the weights. Snapshots are not part of it.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn save(&self, folder: &Path) -> TrainResult<()> {
        std::fs::create_dir_all(folder).map_err(|source| Error::File { path: folder.into(), source })?;
        write_json(&folder.join("config.json"), &self.model.config().to_json())?;
        self.model.weights().save(&folder.join("model.safetensors"))?;
        self.optimiser.save(&folder.join("optimiser.safetensors"))?;
        let saved = json!({
            "version": self.version.to_string(),
            "last_epoch": self.version.epoch,
            "weights": Digest(self.model.weights().digest()?).to_string(),
            "optimiser_steps": self.optimiser.steps(),
        });
        write_json(&folder.join("trainer.json"), &saved)
    }

    /// Goes on from what [`Qwen3Trainer::save`] wrote, at the same step of a new epoch: what was trained after the save is
    /// lost, and its versions are not used again. The epoch is noted in the folder before anything else happens.
    ///
    /// # Errors
    /// Files that are not there, damaged, or not written together.
    pub fn restore(folder: &Path, rule: (AdamW, f64), settings: Settings) -> TrainResult<Self> {
        let path = folder.join("trainer.json");
        let mut saved = read_json(&path)?;
        let wrong = |reason: String| Error::Contents { path: path.clone(), reason };
        let text = |name: &str| saved[name].as_str().ok_or_else(|| wrong(format!("no {name}")));
        let number = |name: &str| saved[name].as_u64().ok_or_else(|| wrong(format!("no {name}")));
        let version: WeightVersion = text("version")?.parse().map_err(|e| wrong(format!("{e}")))?;
        let config = Config::load(folder)?;
        let weights = Weights::load(folder, &config)?;
        let (found, named) = (Digest(weights.digest()?).to_string(), text("weights")?);
        if found != named {
            return Err(wrong(format!("it names weights {named}, model.safetensors holds {found}")).into());
        }
        let weights = if settings.device.is_cpu() { weights } else { weights.to_device(&settings.device)? };
        let optimiser = Optimiser::load(&folder.join("optimiser.safetensors"), &weights, rule)?;
        let (found, named) = (optimiser.steps(), number("optimiser_steps")?);
        if found != named {
            return Err(wrong(format!("it names optimiser step {named}, optimiser.safetensors holds {found}")).into());
        }
        let last = number("last_epoch")?;
        let epoch = u32::try_from(last + 1).map_err(|_| wrong(format!("epoch {last} is the last")))?;
        saved["last_epoch"] = json!(epoch);
        write_json(&path, &saved)?;
        Ok(Self::new(Qwen3::new(config, weights)?, optimiser, WeightVersion { epoch, ..version }, settings))
    }

    /// Takes up the weights of an older version from where [`Qwen3Trainer::publish`] wrote them, for scoring what was drawn with
    /// them. The version held now, and those that are live, are left as they are.
    ///
    /// # Errors
    /// A file that is not there, or holds other tensors than this model has.
    pub fn revive(&mut self, version: WeightVersion) -> TrainResult<()> {
        if self.at(version).is_ok() {
            return Ok(());
        }
        let path = self.settings.directory.join(format!("{version}.safetensors"));
        let weights = Weights::load_file(&path, self.model.config())?;
        let weights = if self.settings.device.is_cpu() { weights } else { weights.to_device(&self.settings.device)? };
        self.snapshots.insert(version, self.model.with_weights(weights)?);
        Ok(())
    }
}

fn write_json(path: &Path, json: &Value) -> TrainResult<()> {
    Ok(write_whole(path, json.to_string().as_bytes())?)
}
