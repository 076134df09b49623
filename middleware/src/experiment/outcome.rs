//! What an arm leaves behind, and what the arms of one row add up to. Holds nothing that depends on the clock: two runs of
//! an arm with one seed write the same file.

use super::{Arm, ExperimentError, Plan, play::Places, read_json};
use lockstep_core::{
    dlc::{EssReport, Forecast, Inputs, PolicyDecision, statistics::TermReport},
    ports::PublishedWeights,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One training step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Its number, from 1.
    pub step: u64,
    /// Mean reward of the batch: the sampler's, not the policy's.
    pub reward: f64,
    /// ESS of the raw lag ratios, at every level.
    pub ess: EssReport,
    /// Lag, numeric discrepancy, and both.
    pub terms: TermReport,
    /// Updates until the ESS crosses its threshold.
    pub forecast: Forecast,
    /// Mean loss.
    pub loss: f64,
    /// L2 norm of the gradient before clipping.
    pub gradient_norm: f64,
}

/// A look at the distance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// After which step.
    pub step: u64,
    /// `KL(reference || policy)` on the reference's prefixes, one a reference, nats a token.
    pub distances: Vec<f64>,
    /// Mean reward of the policy's own answers.
    pub reward: f64,
}

/// The sampler got new weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Synced {
    /// After which step.
    pub step: u64,
    /// What was known then.
    pub inputs: Inputs,
    /// Why.
    pub decision: PolicyDecision,
}

/// Everything an arm leaves behind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The arm.
    pub arm: Arm,
    /// Every step.
    pub steps: Vec<StepRecord>,
    /// Every look.
    pub evaluations: Vec<Evaluation>,
    /// Every synchronisation.
    pub synced: Vec<Synced>,
    /// A reference's weights after each look.
    pub published: Vec<(u64, PublishedWeights)>,
}

impl Outcome {
    /// An arm that has done nothing yet.
    pub fn new(arm: Arm) -> Self {
        Self { arm, steps: Vec::new(), evaluations: Vec::new(), synced: Vec::new(), published: Vec::new() }
    }
}

/// Distances between the references.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Floor {
    /// After each look: the distance of every ordered pair, nats a token.
    pub pairs: Vec<(u64, Vec<f64>)>,
}

impl Floor {
    /// The mean over the pairs after a step.
    pub fn at(&self, step: u64) -> Option<f64> {
        let (_, pairs) = self.pairs.iter().find(|(at, _)| *at == step)?;
        mean(pairs)
    }
}

/// The arms of one row that are done.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// One entry a seed.
    pub arms: Vec<Outcome>,
}

/// Everything that is there of an experiment.
#[derive(Debug, Clone)]
pub struct Results {
    /// The plan.
    pub plan: Plan,
    /// The noise floor, once it was measured.
    pub floor: Option<Floor>,
    /// The references.
    pub references: Vec<Outcome>,
    /// All other rows with at least one arm, in the plan's order.
    pub rows: Vec<Row>,
    /// Arms that are not done.
    pub missing: usize,
}

impl Results {
    /// Reads what the arms have left so far.
    ///
    /// # Errors
    /// A file that does not read.
    pub fn read(plan: Plan, places: &Places) -> Result<Self, ExperimentError> {
        let floor = places.floor();
        let floor = if floor.is_file() { Some(read_json(&floor)?) } else { None };
        let mut results = Self { floor, references: Vec::new(), rows: Vec::new(), missing: 0, plan };
        let mut places_of = BTreeMap::<String, usize>::new();
        for arm in &results.plan.arms {
            let path = places.outcome(&arm.name());
            if !path.is_file() {
                results.missing += 1;
                continue;
            }
            let outcome: Outcome = read_json(&path)?;
            if arm.reference {
                results.references.push(outcome);
                continue;
            }
            let name = arm.row();
            let at = *places_of.entry(name.clone()).or_insert(results.rows.len());
            match results.rows.get_mut(at) {
                Some(row) => row.arms.push(outcome),
                None => results.rows.push(Row { name, arms: vec![outcome] }),
            }
        }
        Ok(results)
    }

    /// A row by its name.
    pub fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// The distance of a row after a step in noise floors: mean over seeds and references.
    pub fn floors(&self, row: &str, step: u64) -> Option<f64> {
        let floor = self.floor.as_ref()?.at(step)?;
        Some(self.row(row)?.distance(step)? / floor)
    }

    /// The largest distance of one arm in noise floors.
    pub fn worst(&self, arm: &Outcome) -> Option<f64> {
        let floors = |look: &Evaluation| Some(mean(&look.distances)? / self.floor.as_ref()?.at(look.step)?);
        arm.evaluations.iter().filter_map(floors).reduce(f64::max)
    }

    /// Distances in noise floors after every look.
    pub fn curve(&self, row: &str) -> Vec<(u64, f64)> {
        let looks = self.plan.setting.evaluations();
        looks.into_iter().filter_map(|step| Some((step, self.floors(row, step)?))).collect()
    }
}

impl Row {
    /// Mean distance after a step, nats a token.
    pub fn distance(&self, step: u64) -> Option<f64> {
        let looks = self.arms.iter().flat_map(|arm| arm.evaluations.iter().filter(move |look| look.step == step));
        let distances: Vec<f64> = looks.filter_map(|look| mean(&look.distances)).collect();
        mean(&distances)
    }

    /// Mean over seeds of something of one step.
    pub fn step(&self, step: u64, of: impl Fn(&StepRecord) -> f64) -> Option<f64> {
        let records = self.arms.iter().filter_map(|arm| arm.steps.iter().find(|record| record.step == step));
        mean(&records.map(of).collect::<Vec<_>>())
    }

    /// Mean reward of the policy's own answers after a step.
    pub fn reward(&self, step: u64) -> Option<f64> {
        let looks = self.arms.iter().filter_map(|arm| arm.evaluations.iter().find(|look| look.step == step));
        mean(&looks.map(|look| look.reward).collect::<Vec<_>>())
    }

    /// Mean number of synchronisations.
    pub fn syncs(&self) -> f64 {
        mean(&self.arms.iter().map(|arm| arm.synced.len() as f64).collect::<Vec<_>>()).unwrap_or(0.0)
    }

    /// The first step of each seed at which the ESS of a level is below a threshold.
    pub fn crossings(&self, threshold: f64, of: impl Fn(&EssReport) -> f64) -> Vec<Option<u64>> {
        let first =
            |arm: &Outcome| arm.steps.iter().find(|record| of(&record.ess) < threshold).map(|record| record.step);
        self.arms.iter().map(first).collect()
    }
}

/// The mean; `None` of nothing.
pub(super) fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}
