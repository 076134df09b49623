//! What a step is remembered by: one line of `metrics.jsonl`.
//!
//! Holds nothing that depends on the clock, so that two runs with one seed write the same file; see [`StepTiming`] for the rest.

use lockstep_core::{
    WeightVersion,
    dlc::{EssReport, Forecast, statistics::TermReport},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One training step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepMetrics {
    /// Number of the step, from 1.
    pub step: u64,
    /// Number of the plan it trained on.
    pub plan: u64,
    /// Rollouts in the batch.
    pub rollouts: usize,
    /// Mean reward of the batch.
    pub reward: f64,
    /// Mean number of sampled tokens of an answer.
    pub length: f64,
    /// Share of the answers cut by the token limit.
    pub truncated_share: f64,
    /// The weights that drew the batch.
    pub sampler_version: WeightVersion,
    /// The trainer's weights before the update.
    pub trainer_version: WeightVersion,
    /// ESS of the raw lag ratios of the batch.
    pub ess: EssReport,
    /// ESS between two scorings at equal versions, at the watched level; `null` until it was measured.
    pub null_ess: Option<f64>,
    /// Lag and numeric discrepancy, apart.
    pub terms: TermReport,
    /// Some of it once more, under the names that verl and TRL give it.
    pub aliases: BTreeMap<String, f64>,
    /// Updates until the watched ESS crosses its threshold, and how wrong that was before.
    pub forecast: Forecast,
    /// Whether the sampler got new weights after this step, and why.
    pub resync: Option<ResyncReason>,
    /// Mean loss a token.
    pub loss: f64,
    /// L2 norm of the gradient before clipping.
    pub gradient_norm: f64,
}

/// Why the sampler got new weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResyncReason {
    /// The ESS fell below the threshold.
    Ess,
    /// The interval was up.
    Interval,
    /// The ESS was about to fall below the threshold.
    Forecast,
}

/// How long a step took, in seconds: one line of `timings.jsonl`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct StepTiming {
    /// Number of the step, from 1.
    pub step: u64,
    /// Drawing the answers, their way to the ledger included.
    pub sample_seconds: f64,
    /// Scoring at the sampler's weights.
    pub score_seconds: f64,
    /// Forward, backward and update.
    pub train_seconds: f64,
    /// Giving the sampler new weights.
    pub resync_seconds: f64,
}
