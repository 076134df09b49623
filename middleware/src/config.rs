//! The configuration of a run: TOML, every key known, every field with a default that is written out.

use lockstep_core::{
    dispatch::{Mode, Rules},
    dlc::{LagClip, Policy, Rule, TailModel, Trigger},
    sampling::{Limits, SamplingError, SamplingParams, Truncation},
};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// How far Lockstep goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Measures and reports, changes nothing.
    Observe,
    /// Enforces the four fixes and refuses what breaks them.
    Fix,
    /// Adds the correction: centred, clipped, re-synchronised.
    Dlc,
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Observe => "observe",
            Self::Fix => "fix",
            Self::Dlc => "dlc",
        })
    }
}

/// Everything a run depends on, its input files aside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// How far Lockstep goes.
    pub stage: Stage,
    /// Seed of prompts and draws.
    pub seed: u64,
    /// Training steps.
    pub steps: u64,
    /// Gives the sampler new weights after every this many steps; 0 leaves it to the trigger.
    pub sync_every: u64,
    /// Where the model and the prompts come from; empty for the built-in task.
    pub input: InputConfig,
    /// How answers are drawn.
    pub sampling: SamplingConfig,
    /// What a batch is.
    pub batch: BatchConfig,
    /// How the trainer updates.
    pub trainer: TrainerConfig,
    /// The correction of stage `dlc`.
    pub correction: CorrectionConfig,
    /// When the sampler gets new weights in stage `dlc`.
    pub trigger: Trigger,
    /// What holds the trigger back or hurries it.
    pub resync: ResyncConfig,
}

/// What holds the trigger back or hurries it, in stage `dlc`; 0 is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ResyncConfig {
    /// Updates after a synchronisation during which no ESS brings another.
    pub cool_down: u64,
    /// Most updates between two synchronisations.
    pub max_interval: u64,
    /// Synchronises already when the forecast leaves at most this many updates.
    pub forecast_ahead: u64,
}

/// Where the model and the prompts come from.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InputConfig {
    /// A Hugging Face directory of a Qwen3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<PathBuf>,
    /// A JSONL file of `{"prompt": .., "answer": ..}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompts: Option<PathBuf>,
}

/// How answers are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SamplingConfig {
    /// Divisor of the logits, above 0.
    pub temperature: f64,
    /// 0 is off.
    pub top_k: u32,
    /// 1 is off.
    pub top_p: f64,
    /// 0 is off.
    pub min_p: f64,
    /// Longest answer, in tokens.
    pub max_new_tokens: u32,
}

/// What a batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BatchConfig {
    /// Prompts in a plan.
    pub prompts: u32,
    /// Answers to each.
    pub answers: u32,
    /// Plans that may be open at a time: with 2 or more, the sampler draws while the trainer works. Bounds the lag.
    pub max_open_plans: u32,
    /// In which order complete plans are trained on.
    pub mode: BatchMode,
    /// In mode `windowed`, among how many of the oldest plans one may overtake another.
    pub window: u32,
    /// A sampler that owes answers and says nothing for so long is lost, and its answers go on elsewhere.
    pub lease_seconds: u32,
}

/// In which order complete plans are trained on. Which answers a plan has is the same in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BatchMode {
    /// Batch n is plan n.
    #[default]
    Strict,
    /// A complete plan may overtake older ones inside a window of plans.
    Windowed,
}

/// How the trainer updates (AdamW).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainerConfig {
    /// Learning rate.
    pub learning_rate: f64,
    /// Decay rates of the moments.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Largest L2 norm of a gradient.
    pub clip_norm: f64,
}

/// The correction of stage `dlc`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CorrectionConfig {
    /// Bounds of the lag ratio.
    pub lag_clip: (f64, f64),
    /// Model of what is not known of an untruncated q.
    pub tail: TailModel,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            stage: Stage::Dlc,
            seed: 1,
            steps: 120,
            sync_every: 0,
            input: InputConfig::default(),
            sampling: SamplingConfig::default(),
            batch: BatchConfig::default(),
            trainer: TrainerConfig::default(),
            correction: CorrectionConfig::default(),
            trigger: Trigger::default(),
            resync: ResyncConfig::default(),
        }
    }
}

impl Default for SamplingConfig {
    fn default() -> Self {
        Self { temperature: 0.8, top_k: 0, top_p: 0.95, min_p: 0.0, max_new_tokens: 64 }
    }
}

impl Default for BatchConfig {
    fn default() -> Self {
        Self { prompts: 192, answers: 8, max_open_plans: 1, mode: BatchMode::Strict, window: 2, lease_seconds: 600 }
    }
}

impl Default for TrainerConfig {
    fn default() -> Self {
        Self { learning_rate: 4e-4, betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.0, clip_norm: 1.0 }
    }
}

impl Default for CorrectionConfig {
    fn default() -> Self {
        let clip = LagClip::default();
        Self { lag_clip: (clip.low(), clip.high()), tail: TailModel::default() }
    }
}

/// A configuration that says nothing, or something impossible.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What came back.
        #[source]
        source: std::io::Error,
    },
    /// TOML that does not parse, or holds unknown keys or wrong types.
    #[error("{origin}: {message}")]
    Parse {
        /// Where it stands.
        origin: String,
        /// What is wrong with it.
        message: String,
    },
    /// A setting that is no `key=value`.
    #[error("--set {0}: not of the form a.b=value")]
    Set(String),
    /// A value outside its range.
    #[error("{key} = {value}: {wanted}")]
    Range {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What is wanted.
        wanted: &'static str,
    },
    /// A sampling parameter outside its range.
    #[error("sampling: {0}")]
    Sampling(#[from] SamplingError),
}

impl Config {
    /// Reads a file, if any, applies `a.b=value` settings in order, and checks every value.
    ///
    /// # Errors
    /// A file that cannot be read, an unknown key, a value of the wrong type or outside its range.
    pub fn resolve(file: Option<&Path>, settings: &[String]) -> Result<Self, ConfigError> {
        let origin = file.map_or_else(|| "settings".to_owned(), |path| path.display().to_string());
        let text = file.map_or(Ok(String::new()), |path| {
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })
        })?;
        let parse = |error: toml::de::Error| {
            let message = error.message().lines().next().unwrap_or_default().to_owned();
            ConfigError::Parse { origin: origin.clone(), message }
        };
        let mut table: toml::Table = text.parse().map_err(parse)?;
        settings.iter().try_for_each(|setting| set(&mut table, setting))?;
        let config: Self = toml::Value::Table(table).try_into().map_err(parse)?;
        config.check()?;
        Ok(config)
    }

    /// The whole configuration as TOML.
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).unwrap_or_else(|error| unreachable!("a configuration is TOML: {error}"))
    }

    /// The rule a step trains with.
    ///
    /// # Errors
    /// Bounds of the lag ratio that bound nothing.
    pub fn rule(&self) -> Result<Rule, ConfigError> {
        let (low, high) = self.correction.lag_clip;
        let range = |_| ConfigError::Range {
            key: "correction.lag_clip",
            value: format!("[{low}, {high}]"),
            wanted: "an interval with 0 <= low <= 1 <= high",
        };
        let lag_clip = LagClip::new(low, high).map_err(range)?;
        match self.stage {
            Stage::Observe | Stage::Fix => Ok(Rule::Uncorrected),
            Stage::Dlc => Ok(Rule::Dlc { lag_clip, tail: self.correction.tail }),
        }
    }

    /// What bounds dispatch.
    pub fn dispatch(&self) -> Rules {
        let mode = match self.batch.mode {
            BatchMode::Strict => Mode::Strict,
            BatchMode::Windowed => Mode::Windowed { plans: self.batch.window },
        };
        Rules { max_open_plans: self.batch.max_open_plans, mode, ..Rules::default() }
    }

    /// The whole policy of synchronisation.
    pub fn policy(&self) -> Policy {
        let ResyncConfig { cool_down, max_interval, forecast_ahead } = self.resync;
        Policy { trigger: self.trigger, cool_down, max_interval, forecast_ahead }
    }

    /// The truncation filters.
    pub fn truncation(&self) -> Truncation {
        let SamplingConfig { top_k, top_p, min_p, .. } = self.sampling;
        Truncation { top_k, top_p, min_p }
    }

    fn check(&self) -> Result<(), ConfigError> {
        let positive = "a finite number above 0";
        let TrainerConfig { learning_rate, clip_norm, epsilon, betas, weight_decay } = self.trainer;
        let rate = |value: f64| (0.0..1.0).contains(&value);
        let checks = [
            ("steps", self.steps as f64, self.steps > 0, "at least 1"),
            ("batch.prompts", f64::from(self.batch.prompts), self.batch.prompts > 0, "at least 1"),
            ("batch.answers", f64::from(self.batch.answers), self.batch.answers > 0, "at least 1"),
            ("batch.max_open_plans", f64::from(self.batch.max_open_plans), self.batch.max_open_plans > 0, "at least 1"),
            ("batch.window", f64::from(self.batch.window), self.batch.window > 1, "at least 2; 1 is mode strict"),
            ("batch.lease_seconds", f64::from(self.batch.lease_seconds), self.batch.lease_seconds > 0, "at least 1"),
            ("trainer.learning_rate", learning_rate, is_positive(learning_rate), positive),
            ("trainer.clip_norm", clip_norm, is_positive(clip_norm), positive),
            ("trainer.epsilon", epsilon, is_positive(epsilon), positive),
            ("trainer.betas", betas.0, rate(betas.0), "numbers in [0, 1)"),
            ("trainer.betas", betas.1, rate(betas.1), "numbers in [0, 1)"),
            ("trainer.weight_decay", weight_decay, weight_decay >= 0.0 && weight_decay.is_finite(), "0 or more"),
            ("trigger.threshold", self.trigger.threshold, rate(self.trigger.threshold), "a number in [0, 1)"),
            ("trigger.horizon", f64::from(self.trigger.horizon), self.trigger.horizon > 0, "at least 1"),
        ];
        let wrong = checks.into_iter().find(|&(_, _, right, _)| !right);
        if let Some((key, value, _, wanted)) = wrong {
            return Err(ConfigError::Range { key, value: value.to_string(), wanted });
        }
        let limits = Limits { stop: Vec::new(), max_new_tokens: self.sampling.max_new_tokens };
        SamplingParams::new(self.sampling.temperature, self.truncation(), limits, self.seed)?;
        self.rule().map(drop)
    }
}

fn is_positive(value: f64) -> bool {
    value > 0.0 && value.is_finite()
}

/// Sets `a.b=value`; the value is read as TOML, and as a string where it is none.
fn set(table: &mut toml::Table, setting: &str) -> Result<(), ConfigError> {
    let malformed = || ConfigError::Set(setting.to_owned());
    let (key, value) = setting.split_once('=').ok_or_else(malformed)?;
    let value = value.trim();
    let parsed: Result<toml::Table, _> = format!("value = {value}").parse();
    let value = parsed.ok().and_then(|mut table| table.remove("value")).unwrap_or_else(|| value.into());
    let mut keys: Vec<&str> = key.trim().split('.').collect();
    let last = keys.pop().filter(|last| !last.is_empty()).ok_or_else(malformed)?;
    let mut table = table;
    for key in keys {
        let inner = table.entry(key).or_insert_with(|| toml::Table::new().into());
        table = inner.as_table_mut().ok_or_else(malformed)?;
    }
    table.insert(last.to_owned(), value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(settings: &[&str]) -> Result<Config, ConfigError> {
        Config::resolve(None, &settings.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn settings_reach_into_the_tree_and_what_is_written_reads_back() {
        let config = resolve(&["sampling.top_p=0.9", "stage=fix", "trigger.level=token", "input.model=/m"]).unwrap();
        assert_eq!((config.sampling.top_p, config.stage), (0.9, Stage::Fix));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.toml");
        std::fs::write(&path, config.to_toml()).unwrap();
        assert_eq!(Config::resolve(Some(&path), &[]).unwrap(), config);
    }

    #[test]
    fn unknown_keys_wrong_types_and_impossible_values_are_named() {
        let message = |setting: &str| resolve(&[setting]).unwrap_err().to_string();
        assert!(message("sampling.topp=0.9").contains("unknown field `topp`"), "{}", message("sampling.topp=0.9"));
        assert!(message("steps=many").contains("invalid type"), "{}", message("steps=many"));
        assert_eq!(message("steps=0"), "steps = 0: at least 1");
        assert_eq!(message("sampling.top_p=1.5"), "sampling: top_p 1.5 is not in (0, 1]");
        assert_eq!(message("steps"), "--set steps: not of the form a.b=value");
        assert_eq!(message("trainer.learning_rate=-1"), "trainer.learning_rate = -1: a finite number above 0");
        let clip = "correction.lag_clip = [1.5, 2]: an interval with 0 <= low <= 1 <= high";
        assert_eq!(message("correction.lag_clip=[1.5, 2.0]"), clip);
    }
}
