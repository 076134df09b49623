//! When the sampler gets new weights, as a whole: the trigger, and what holds it back or hurries it.

use super::{
    ess::EssReport,
    forecast::Forecast,
    resync::{Decision, Trigger},
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The trigger with its limits. 0 is off.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Level and threshold of the ESS.
    pub trigger: Trigger,
    /// Updates after a synchronisation during which no ESS brings another.
    pub cool_down: u64,
    /// Most updates between two synchronisations.
    pub max_interval: u64,
    /// Synchronises already when the tail-aware forecast leaves at most this many updates.
    pub forecast_ahead: u64,
}

/// What a decision is made from; recorded with it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Inputs {
    /// Updates since the sampler's weights were taken, the one just made included.
    pub updates: u64,
    /// ESS of the answers drawn at the sampler's version, at every level.
    pub ess: EssReport,
    /// ESS between two scorings at equal versions, where it was measured.
    pub null: Option<EssReport>,
    /// What is to be expected.
    pub forecast: Forecast,
}

/// Why the sampler gets new weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The ESS is below the threshold.
    Ess,
    /// The longest interval is up.
    Interval,
    /// The ESS is about to fall below the threshold.
    Forecast,
}

/// What a policy decides.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyDecision {
    /// The sampler keeps its weights.
    Keep,
    /// The ESS is below the threshold, and the last synchronisation too recent.
    Held {
        /// Updates until it is not.
        updates_left: u64,
    },
    /// The sampler gets new weights.
    Resync(Reason),
    /// The watched level cannot be trusted on this pair.
    Refused {
        /// Its ESS between two scorings at equal versions.
        null_ess: f64,
    },
}

impl fmt::Display for PolicyDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep => f.write_str("keep"),
            Self::Held { updates_left } => write!(f, "held for {updates_left} updates"),
            Self::Resync(Reason::Ess) => f.write_str("resync, ESS below the threshold"),
            Self::Resync(Reason::Interval) => f.write_str("resync, interval is up"),
            Self::Resync(Reason::Forecast) => f.write_str("resync, ESS about to fall below the threshold"),
            Self::Refused { null_ess } => write!(f, "level refused, ESS {null_ess:.4} at equal versions"),
        }
    }
}

impl Policy {
    /// Decides on the batch just used. The threshold is strict.
    pub fn decide(&self, inputs: &Inputs) -> PolicyDecision {
        if self.max_interval > 0 && inputs.updates >= self.max_interval {
            return PolicyDecision::Resync(Reason::Interval);
        }
        let soon = |left: f64| self.forecast_ahead > 0 && left <= self.forecast_ahead as f64;
        let reason = match self.trigger.decide(&inputs.ess, inputs.null.as_ref()) {
            Decision::Refused { null_ess } => return PolicyDecision::Refused { null_ess },
            Decision::Resync => Reason::Ess,
            Decision::Keep if inputs.forecast.tail_aware.is_some_and(soon) => Reason::Forecast,
            Decision::Keep => return PolicyDecision::Keep,
        };
        match self.cool_down.checked_sub(inputs.updates) {
            Some(updates_left) if updates_left > 0 => PolicyDecision::Held { updates_left },
            _ => PolicyDecision::Resync(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(updates: u64, horizon: f64, left: f64) -> Inputs {
        let ess = EssReport { token: 0.9, sequence: horizon, horizon, horizon_tokens: 24, sequences: 64, tokens: 512 };
        let forecast = Forecast { tail_aware: Some(left), ..Forecast::default() };
        Inputs { updates, ess, null: None, forecast }
    }

    #[test]
    fn the_threshold_is_strict_and_everything_else_is_off() {
        let policy = Policy::default();
        assert_eq!(policy.decide(&inputs(1000, 0.5, 0.0)), PolicyDecision::Keep);
        assert_eq!(policy.decide(&inputs(1, 0.4999, 9.0)), PolicyDecision::Resync(Reason::Ess));
    }

    #[test]
    fn a_cool_down_holds_an_ess_back_and_not_an_interval() {
        let policy = Policy { cool_down: 3, max_interval: 8, ..Policy::default() };
        assert_eq!(policy.decide(&inputs(2, 0.1, 0.0)), PolicyDecision::Held { updates_left: 1 });
        assert_eq!(policy.decide(&inputs(3, 0.1, 0.0)), PolicyDecision::Resync(Reason::Ess));
        assert_eq!(policy.decide(&inputs(8, 0.9, 9.0)), PolicyDecision::Resync(Reason::Interval));
    }

    #[test]
    fn a_forecast_synchronises_early() {
        let policy = Policy { forecast_ahead: 2, ..Policy::default() };
        assert_eq!(policy.decide(&inputs(5, 0.7, 2.1)), PolicyDecision::Keep);
        assert_eq!(policy.decide(&inputs(5, 0.7, 2.0)), PolicyDecision::Resync(Reason::Forecast));
    }

    #[test]
    fn a_level_that_noise_alone_would_trigger_is_refused() {
        let noisy = Inputs { null: Some(inputs(0, 0.8, 0.0).ess), ..inputs(5, 0.2, 0.0) };
        assert_eq!(Policy::default().decide(&noisy), PolicyDecision::Refused { null_ess: 0.8 });
    }
}
