//! When a run's sampler gets new weights: the policy asked after every step, with what it knew, what it said, and what came
//! of it, as events.

use crate::metrics::ResyncReason;
use lockstep_core::{
    WeightVersion,
    dlc::{EssReport, Forecast, Forecaster, Inputs, Policy, PolicyDecision, Reason, Trigger},
    ports::StepReport,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One line of `resyncs.jsonl`, and one record of the ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResyncEvent {
    /// A decision other than to keep the weights.
    Decided {
        /// After which step.
        step: u64,
        /// What was decided.
        decision: PolicyDecision,
        /// From what.
        inputs: Inputs,
        /// By what rule.
        policy: Policy,
    },
    /// What new weights did.
    Effect {
        /// The first step after them.
        step: u64,
        /// The step that brought them.
        decided_at: u64,
        /// ESS of the batch they were decided on.
        before: EssReport,
        /// ESS of the first batch drawn with them; 1 at every level where nothing else is wrong.
        after: EssReport,
    },
}

impl ResyncEvent {
    /// Says it in the log.
    pub fn log(&self) {
        match self {
            Self::Decided { decision: PolicyDecision::Refused { null_ess }, policy, .. } => {
                let level = policy.trigger.ess_level();
                tracing::warn!(%level, null_ess, "the trigger refuses this level: equal versions give this ESS too");
            }
            event => tracing::info!(?event, "synchronisation"),
        }
    }

    /// The step it was written down after.
    pub fn step(&self) -> u64 {
        match self {
            Self::Decided { step, .. } | Self::Effect { step, .. } => *step,
        }
    }
}

impl fmt::Display for ResyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decided { step, decision, inputs, policy } => {
                let Trigger { threshold, .. } = policy.trigger;
                let (level, ess) = (policy.trigger.ess_level(), policy.trigger.watched(&inputs.ess));
                let updates = inputs.updates;
                write!(f, "step {step}: {decision}; {level} ESS {ess:.4}, threshold {threshold}, {updates} updates")?;
                if let Some(null) = &inputs.null {
                    write!(f, ", {:.4} at equal versions", policy.trigger.watched(null))?;
                }
                match inputs.forecast.tail_aware {
                    Some(left) => write!(f, ", forecast {left:.1} updates left"),
                    None => Ok(()),
                }
            }
            Self::Effect { step, decided_at, before, after } => {
                let [before, after] = [before, after].map(|ess| {
                    format!("token {:.4}, sequence {:.4}, horizon {:.4}", ess.token, ess.sequence, ess.horizon)
                });
                write!(f, "step {step}: the weights given after step {decided_at} took ESS from {before} to {after}")
            }
        }
    }
}

/// What a run knows of its synchronisations.
#[derive(Debug)]
pub struct Resyncs {
    policy: Policy,
    every: u64,
    triggers: bool,
    forecaster: Forecaster,
    forecast: Forecast,
    null: Option<EssReport>,
    pending: Option<(u64, EssReport)>,
}

/// What a step brings.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// ESS of the answers drawn at the sampler's version; where it drew none of them, of those drawn at the newest other.
    pub ess: EssReport,
    /// ESS at equal versions, once measured.
    pub null: Option<EssReport>,
    /// Updates until the ESS crosses the threshold.
    pub forecast: Forecast,
    /// Whether the sampler gets new weights, and why.
    pub resync: Option<ResyncReason>,
    /// What is to be written down.
    pub events: Vec<ResyncEvent>,
}

impl Resyncs {
    /// Follows `policy` where `triggers`; after every `every` steps in any case, 0 for never.
    pub fn new(policy: Policy, every: u64, triggers: bool) -> Self {
        let forecaster = Forecaster::new(policy.trigger.threshold);
        Self { policy, every, triggers, forecaster, forecast: Forecast::default(), null: None, pending: None }
    }

    /// Decides after step `number`, by the answers drawn at the version the sampler holds now: those that were in flight when it
    /// got new weights cannot trigger twice. `None` for a step without any ESS.
    pub fn after(&mut self, number: u64, report: &StepReport, held: WeightVersion) -> Option<Outcome> {
        match report.ess_at(held) {
            Some(&ess) => Some(self.judged(number, report, (held, ess))),
            None => {
                let (_, ess) = report.ess.iter().max_by_key(|(version, _)| *version)?;
                let resync = self.is_due(number).then_some(ResyncReason::Interval);
                Some(Outcome { ess: *ess, null: self.null, forecast: self.forecast, resync, events: vec![] })
            }
        }
    }

    fn judged(&mut self, number: u64, report: &StepReport, (drawn_at, ess): (WeightVersion, EssReport)) -> Outcome {
        if report.before == drawn_at {
            self.null = Some(ess);
        }
        let behind = report.before.step.saturating_sub(drawn_at.step);
        let seen = (self.policy.trigger.watched(&ess), report.terms.shape.lag_variance);
        let forecast = self.forecaster.observe(behind, seen);
        self.forecast = forecast;
        let inputs = Inputs { updates: behind + 1, ess, null: self.null, forecast };
        let effect = self.pending.take().map(|(decided_at, before)| ResyncEvent::Effect {
            step: number,
            decided_at,
            before,
            after: ess,
        });
        let decision = self.decide(number, &inputs);
        let resync = match decision {
            PolicyDecision::Resync(reason) => {
                self.forecaster.resynchronised();
                self.pending = Some((number, ess));
                Some(reason.into())
            }
            _ => None,
        };
        let decided = (decision != PolicyDecision::Keep).then_some(ResyncEvent::Decided {
            step: number,
            decision,
            inputs,
            policy: self.policy,
        });
        Outcome { ess, null: self.null, forecast, resync, events: effect.into_iter().chain(decided).collect() }
    }

    fn is_due(&self, number: u64) -> bool {
        self.every > 0 && number.is_multiple_of(self.every)
    }

    fn decide(&self, number: u64, inputs: &Inputs) -> PolicyDecision {
        if self.is_due(number) {
            return PolicyDecision::Resync(Reason::Interval);
        }
        if self.triggers { self.policy.decide(inputs) } else { PolicyDecision::Keep }
    }
}

impl From<Reason> for ResyncReason {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Ess => Self::Ess,
            Reason::Interval => Self::Interval,
            Reason::Forecast => Self::Forecast,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_core::dlc::statistics::TermReport;

    const FIRST: WeightVersion = WeightVersion { epoch: 0, step: 0 };

    fn report(step: u64, drawn_at: WeightVersion, ess: f64) -> StepReport {
        let before = WeightVersion { epoch: 0, step };
        let ess = EssReport { token: 1.0, sequence: ess, horizon: ess, horizon_tokens: 24, sequences: 8, tokens: 64 };
        StepReport {
            before,
            after: before.next(),
            loss: 0.0,
            gradient_norm: 1.0,
            terms: TermReport::default(),
            ess: vec![(drawn_at, ess)],
        }
    }

    #[test]
    fn a_decision_leaves_its_inputs_and_its_effect() {
        let mut resyncs = Resyncs::new(Policy::default(), 0, true);
        for (step, ess) in [(0, 1.0), (1, 0.8)] {
            let outcome = resyncs.after(step + 1, &report(step, FIRST, ess), FIRST).unwrap();
            assert_eq!((outcome.resync, outcome.events), (None, vec![]));
        }
        let outcome = resyncs.after(3, &report(2, FIRST, 0.4), FIRST).unwrap();
        assert_eq!(outcome.resync, Some(ResyncReason::Ess));
        let [ResyncEvent::Decided { step: 3, inputs, .. }] = &outcome.events[..] else { panic!("{outcome:?}") };
        assert_eq!((inputs.updates, inputs.ess.horizon), (3, 0.4));
        let new = WeightVersion { epoch: 0, step: 3 };
        let outcome = resyncs.after(4, &report(3, new, 1.0), new).unwrap();
        let [ResyncEvent::Effect { step: 4, decided_at: 3, before, after }] = &outcome.events[..] else {
            panic!("{outcome:?}")
        };
        assert_eq!((before.horizon, after.horizon), (0.4, 1.0));
    }

    #[test]
    fn without_triggers_only_the_interval_counts() {
        let mut resyncs = Resyncs::new(Policy::default(), 2, false);
        assert_eq!(resyncs.after(1, &report(0, FIRST, 0.1), FIRST).unwrap().resync, None);
        assert_eq!(resyncs.after(2, &report(1, FIRST, 0.1), FIRST).unwrap().resync, Some(ResyncReason::Interval));
    }

    #[test]
    fn answers_of_older_weights_do_not_trigger() {
        let mut resyncs = Resyncs::new(Policy::default(), 0, true);
        let held = WeightVersion { epoch: 0, step: 2 };
        let outcome = resyncs.after(3, &report(2, FIRST, 0.1), held).unwrap();
        assert_eq!((outcome.ess.horizon, outcome.resync, outcome.events), (0.1, None, vec![]));
        let without = StepReport { ess: vec![], ..report(3, FIRST, 0.1) };
        assert!(resyncs.after(4, &without, held).is_none());
    }
}
