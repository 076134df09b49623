//! Which weights produced a token, and how that is known.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Run epoch and number of optimiser steps behind the weights; ordered, never reused.
///
/// A trainer that restarts opens a new epoch, so that a step number cannot name two sets of weights.
/// Written `e0.s12`. An undeclared version is not version 0: see [`Stamp`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WeightVersion {
    /// Counts the starts of the trainer.
    pub epoch: u32,
    /// Optimiser steps taken since the first weights.
    pub step: u64,
}

impl WeightVersion {
    /// The version one optimiser step later.
    pub fn next(self) -> Self {
        Self { epoch: self.epoch, step: self.step + 1 }
    }
}

impl fmt::Display for WeightVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}.s{}", self.epoch, self.step)
    }
}

/// A text that is no weight version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a weight version of the form e0.s12")]
pub struct NotAVersion(String);

impl FromStr for WeightVersion {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let parts = text.strip_prefix('e').and_then(|rest| rest.split_once(".s"));
        let numbers = parts.and_then(|(epoch, step)| Some((epoch.parse().ok()?, step.parse().ok()?)));
        numbers.map(|(epoch, step)| Self { epoch, step }).ok_or_else(|| NotAVersion(text.to_owned()))
    }
}

/// A 32-byte hash of the tensors, in name order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Digest(pub [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// How a version is known, from weakest to strongest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Evidence {
    /// The engine says nothing.
    Undeclared,
    /// The engine says so.
    Label(String),
    /// Greedy log-probs of a probe prompt agree with this version within repeat noise, and differ from the previous one.
    Behavioural {
        /// Largest difference between two runs at equal weights, in nats.
        repeat_noise: f64,
        /// Largest difference to the previous version, in nats.
        change: f64,
    },
    /// Hash of the tensors the engine really holds.
    Digest(Digest),
}

/// A version together with the evidence for it; a label is a claim, so the two never part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stamp {
    version: Option<WeightVersion>,
    evidence: Evidence,
}

impl Stamp {
    /// The stamp of an engine that does not say which weights it holds.
    pub fn undeclared() -> Self {
        Self { version: None, evidence: Evidence::Undeclared }
    }

    /// A declared version. `Evidence::Undeclared` beside a version is a contradiction and gives `None`.
    pub fn declared(version: WeightVersion, evidence: Evidence) -> Option<Self> {
        (evidence != Evidence::Undeclared).then_some(Self { version: Some(version), evidence })
    }

    /// The version, when one is declared.
    pub fn version(&self) -> Option<WeightVersion> {
        self.version
    }

    /// How the version is known.
    pub fn evidence(&self) -> &Evidence {
        &self.evidence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_order_by_epoch_then_step_and_round_trip_as_text() {
        let (old, new) = (WeightVersion { epoch: 0, step: 90 }, WeightVersion { epoch: 1, step: 2 });
        assert!(old < new);
        assert_eq!(new.to_string().parse(), Ok(new));
        assert!("s3".parse::<WeightVersion>().is_err());
        assert!("e1.s".parse::<WeightVersion>().is_err());
    }

    #[test]
    fn undeclared_is_not_version_zero() {
        assert_eq!(Stamp::undeclared().version(), None);
        assert_eq!(Stamp::declared(WeightVersion { epoch: 0, step: 0 }, Evidence::Undeclared), None);
    }
}
