//! What runs: a correction, a precision of the sampler, and when the sampler gets new weights; one seed.

use lockstep_core::{
    dlc::{LagClip, Policy, Rule, TailModel, Trigger, resync::TriggerLevel, rule::ClipError},
    rivals::Method,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// When the sampler gets new weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sync {
    /// After every this many updates.
    Every(u64),
    /// Not once.
    Never,
    /// When a policy says so.
    Policy(Policy),
    /// Wrong on purpose: when the default policy says so of an ESS taken after a clip of the ratios to [1/2, 2].
    ClippedEss,
    /// As often as another arm did, evenly.
    AsOftenAs(String),
}

/// What is trained.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Correction {
    /// Nothing: the control that says how far away standing still is.
    Untrained,
    /// Plain policy gradient.
    None,
    /// DLC, form A, with this upper bound of the lag ratio.
    DlcA(f64),
    /// Another, by name.
    Method(Method),
}

/// One training run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// The correction.
    pub correction: Correction,
    /// Precision of the sampler, as its engine names it.
    pub numerics: String,
    /// When the sampler gets new weights.
    pub sync: Sync,
    /// Learning rate where it is not the setting's.
    pub learning_rate: Option<f64>,
    /// Seed of the draws.
    pub seed: u64,
    /// An on-policy run that others are held against.
    pub reference: bool,
}

impl Correction {
    /// DLC with its default bound.
    pub fn dlc_a() -> Self {
        Self::DlcA(LagClip::default().high())
    }

    /// The rule of a step; `None` where no step is taken.
    ///
    /// # Errors
    /// A bound of the lag ratio below 1.
    pub fn rule(self) -> Result<Option<Rule>, ClipError> {
        Ok(match self {
            Self::Untrained => None,
            Self::None => Some(Rule::Uncorrected),
            Self::DlcA(high) => Some(Rule::Dlc { lag_clip: LagClip::new(0.0, high)?, tail: TailModel::default() }),
            Self::Method(method) => Some(Rule::Method(method)),
        })
    }
}

impl fmt::Display for Correction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Untrained => f.write_str("untrained"),
            Self::None => f.write_str("none"),
            Self::DlcA(high) if *high == LagClip::default().high() => f.write_str("dlc_a"),
            Self::DlcA(high) => write!(f, "dlc_a_clip{high}"),
            Self::Method(method) => method.fmt(f),
        }
    }
}

impl fmt::Display for Sync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Every(1) => f.write_str("fresh"),
            Self::Every(n) => write!(f, "every{n}"),
            Self::Never => f.write_str("never"),
            Self::AsOftenAs(_) => f.write_str("periodic"),
            Self::ClippedEss => f.write_str("wrong_clip_before_ess"),
            Self::Policy(Policy { trigger, forecast_ahead, .. }) => {
                let level = match trigger.level {
                    TriggerLevel::Horizon => "",
                    TriggerLevel::Sequence => "-sequence",
                    TriggerLevel::Token => "-token",
                };
                write!(f, "trigger{level}")?;
                if trigger.threshold != Trigger::default().threshold {
                    write!(f, "-{}", trigger.threshold)?;
                }
                if *forecast_ahead > 0 { write!(f, "-ahead{forecast_ahead}") } else { Ok(()) }
            }
        }
    }
}

impl Arm {
    /// A run of the matrix.
    pub fn new(correction: Correction, numerics: &str, sync: Sync) -> Self {
        Self { correction, numerics: numerics.into(), sync, learning_rate: None, seed: 0, reference: false }
    }

    /// The same with another seed.
    #[must_use]
    pub fn seeded(&self, seed: u64) -> Self {
        let sync = match &self.sync {
            // Followed within the same seed.
            Sync::AsOftenAs(row) => Sync::AsOftenAs(format!("{row}-s{seed}")),
            other => other.clone(),
        };
        Self { seed, sync, ..self.clone() }
    }

    /// What arms of different seeds share: a row of the table.
    pub fn row(&self) -> String {
        let Self { correction, numerics, sync, .. } = self;
        let rate = self.learning_rate.map_or_else(String::new, |rate| format!("-lr{rate:e}"));
        let reference = if self.reference { "reference-" } else { "" };
        format!("{reference}{correction}-{numerics}-{sync}{rate}")
    }

    /// Its name; also that of its files.
    pub fn name(&self) -> String {
        format!("{}-s{}", self.row(), self.seed)
    }

    /// The arm whose result it needs.
    pub fn needs(&self) -> Option<&str> {
        match &self.sync {
            Sync::AsOftenAs(name) => Some(name),
            _ => None,
        }
    }
}
