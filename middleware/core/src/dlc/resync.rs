//! When the sampler gets new weights.

use super::ess::{DEFAULT_HORIZON, EssLevel, EssReport};
use serde::{Deserialize, Serialize};

/// Below this ESS between two scorings at equal versions a level measures rounding, not lag.
pub const NULL_ESS_FLOOR: f64 = 0.9;

/// The level a trigger watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TriggerLevel {
    /// [`EssLevel::Horizon`].
    #[default]
    Horizon,
    /// [`EssLevel::Sequence`].
    Sequence,
    /// [`EssLevel::Token`].
    Token,
}

impl TriggerLevel {
    fn of(self, report: &EssReport) -> f64 {
        match self {
            Self::Horizon => report.horizon,
            Self::Sequence => report.sequence,
            Self::Token => report.token,
        }
    }
}

/// Re-synchronises the sampler when the ESS of the raw lag ratio falls below a threshold, strictly.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Trigger {
    /// What counts as one sample.
    pub level: TriggerLevel,
    /// H of the horizon level, in tokens.
    pub horizon: u32,
    /// The threshold.
    pub threshold: f64,
}

impl Default for Trigger {
    /// Horizon level, H = 24, threshold 0.5.
    fn default() -> Self {
        Self { level: TriggerLevel::Horizon, horizon: DEFAULT_HORIZON, threshold: 0.5 }
    }
}

/// What a trigger says of one batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decision {
    /// The sampler keeps its weights.
    Keep,
    /// The sampler gets the trainer's weights.
    Resync,
    /// The level cannot be trusted on this pair: even equal versions give this ESS.
    Refused {
        /// ESS between two scorings at equal versions.
        null_ess: f64,
    },
}

impl Trigger {
    /// Decides on the batch just used.
    ///
    /// `ess` is that of the sequences drawn at the sampler's current version; `null` is the ESS between two scorings at
    /// equal versions, where it was measured.
    pub fn decide(&self, ess: &EssReport, null: Option<&EssReport>) -> Decision {
        let null_ess = null.map(|null| self.level.of(null)).filter(|&null_ess| null_ess < NULL_ESS_FLOOR);
        match null_ess {
            Some(null_ess) => Decision::Refused { null_ess },
            None if self.level.of(ess) < self.threshold => Decision::Resync,
            None => Decision::Keep,
        }
    }

    /// The watched ESS of a report.
    pub fn watched(&self, report: &EssReport) -> f64 {
        self.level.of(report)
    }

    /// The watched level, for messages.
    pub fn ess_level(&self) -> EssLevel {
        match self.level {
            TriggerLevel::Horizon => EssLevel::Horizon { tokens: self.horizon },
            TriggerLevel::Sequence => EssLevel::Sequence,
            TriggerLevel::Token => EssLevel::Token,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(horizon: f64) -> EssReport {
        EssReport { token: 1.0, sequence: 0.1, horizon, horizon_tokens: 24, sequences: 8, tokens: 64 }
    }

    #[test]
    fn the_threshold_is_strict_and_the_level_is_the_one_asked_for() {
        let trigger = Trigger::default();
        assert_eq!(trigger.decide(&report(0.5), None), Decision::Keep);
        assert_eq!(trigger.decide(&report(0.499), None), Decision::Resync);
        let sequence = Trigger { level: TriggerLevel::Sequence, ..trigger };
        assert_eq!(sequence.decide(&report(0.9), None), Decision::Resync);
    }

    #[test]
    fn a_level_that_noise_alone_would_trigger_is_refused() {
        let refused = Trigger::default().decide(&report(0.2), Some(&report(0.85)));
        assert_eq!(refused, Decision::Refused { null_ess: 0.85 });
    }
}
