//! What the steps add up to. Computes, and writes no text.

use super::RunSummary;
use crate::metrics::{ResyncReason, StepMetrics};
use lockstep_core::dlc::resync::TriggerLevel;

/// Steps averaged at either end of a run.
pub(super) const WINDOW: usize = 10;

/// A value and the step it was seen at.
pub(super) type At = (f64, u64);

/// The numbers of a run. Means are over steps unless they say otherwise, and not a number where one of the steps is not.
#[derive(Debug)]
pub(super) struct Facts {
    /// Steps in `reward_first` and `reward_last`: [`WINDOW`], or half of a run too short for two windows.
    pub(super) window: usize,
    pub(super) reward_first: f64,
    pub(super) reward_last: f64,
    /// Step and reason of every re-synchronisation.
    pub(super) resyncs: Vec<(u64, ResyncReason)>,
    pub(super) token: Option<At>,
    pub(super) sequence: Option<At>,
    pub(super) horizon: Option<At>,
    /// Smallest null ESS, and on how many steps it was measured.
    pub(super) null: Option<At>,
    pub(super) null_measured: usize,
    /// Steps whose watched ESS is below the threshold.
    pub(super) below: usize,
    pub(super) lag_kl: f64,
    pub(super) numeric_kl: f64,
    pub(super) support_size: f64,
    /// Answers cut by the token limit, and all answers.
    pub(super) truncated: f64,
    pub(super) answers: usize,
}

impl Facts {
    pub(super) fn of(summary: &RunSummary<'_>) -> Self {
        let steps = summary.metrics;
        let window = WINDOW.min(steps.len() / 2).max(steps.len().min(1));
        let over = |value: fn(&StepMetrics) -> f64| mean(steps, value);
        let low = |value: fn(&StepMetrics) -> f64| smallest(steps.iter().map(|step| (value(step), step.step)));
        let nulls = || steps.iter().filter_map(|step| Some((step.null_ess?, step.step)));
        let watched = |step: &&StepMetrics| watched(step, summary.level) < summary.threshold;
        Self {
            window,
            reward_first: mean(&steps[..window], |step| step.reward),
            reward_last: mean(&steps[steps.len() - window..], |step| step.reward),
            resyncs: steps.iter().filter_map(|step| Some((step.step, step.resync?))).collect(),
            token: low(|step| step.ess.token),
            sequence: low(|step| step.ess.sequence),
            horizon: low(|step| step.ess.horizon),
            null: smallest(nulls()),
            null_measured: nulls().count(),
            below: steps.iter().filter(watched).count(),
            lag_kl: over(|step| step.terms.lag.kl),
            numeric_kl: over(|step| step.terms.numeric.kl),
            support_size: over(|step| step.terms.support_size),
            truncated: steps.iter().map(|step| step.truncated_share * step.rollouts as f64).sum(),
            answers: steps.iter().map(|step| step.rollouts).sum(),
        }
    }

    /// Smallest ESS at the watched level.
    pub(super) fn watched(&self, level: TriggerLevel) -> Option<At> {
        match level {
            TriggerLevel::Horizon => self.horizon,
            TriggerLevel::Sequence => self.sequence,
            TriggerLevel::Token => self.token,
        }
    }
}

fn watched(step: &StepMetrics, level: TriggerLevel) -> f64 {
    match level {
        TriggerLevel::Horizon => step.ess.horizon,
        TriggerLevel::Sequence => step.ess.sequence,
        TriggerLevel::Token => step.ess.token,
    }
}

fn mean(steps: &[StepMetrics], value: fn(&StepMetrics) -> f64) -> f64 {
    steps.iter().map(value).sum::<f64>() / steps.len() as f64
}

fn smallest(values: impl Iterator<Item = At>) -> Option<At> {
    values.filter(|(value, _)| value.is_finite()).min_by(|a, b| a.0.total_cmp(&b.0))
}

/// Mean reward of the last [`WINDOW`] steps, from the first step that has as many behind it.
pub(super) fn running_reward(steps: &[StepMetrics]) -> Vec<Option<f64>> {
    let windows = steps.windows(WINDOW).map(|window| Some(mean(window, |step| step.reward)));
    let before = steps.len().min(WINDOW - 1);
    std::iter::repeat_n(None, before).chain(windows).collect()
}

/// Versions the sampler is behind the trainer; `None` where they are of different epochs and cannot be subtracted.
pub(super) fn version_lag(step: &StepMetrics) -> Option<f64> {
    let (trainer, sampler) = (step.trainer_version, step.sampler_version);
    (trainer.epoch == sampler.epoch).then_some(trainer.step as f64 - sampler.step as f64)
}
