//! A demand on a pair, the verdict on it, and the fault that must turn the verdict red.

use crate::{obstacle::Obstacle, target::Target};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

/// What a check found, with one line of evidence that carries the numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", content = "evidence", rename_all = "kebab-case")]
pub enum Verdict {
    /// The demand is met.
    Pass(String),
    /// It is broken.
    Fail(String),
    /// The target lacks what the check needs.
    NotApplicable(String),
    /// Neither could be shown: an error, or a question without power.
    CouldNotRun(String),
}

impl Verdict {
    /// Pass or fail by a condition, with the same evidence.
    pub fn of(met: bool, evidence: String) -> Self {
        if met { Self::Pass(evidence) } else { Self::Fail(evidence) }
    }

    /// The line behind it.
    pub fn evidence(&self) -> &str {
        match self {
            Self::Pass(line) | Self::Fail(line) | Self::NotApplicable(line) | Self::CouldNotRun(line) => line,
        }
    }

    /// The verdict in words.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Pass(_) => "pass",
            Self::Fail(_) => "FAIL",
            Self::NotApplicable(_) => "not applicable",
            Self::CouldNotRun(_) => "could not run",
        }
    }

    /// True for a pass.
    pub fn is_pass(&self) -> bool {
        matches!(self, Self::Pass(_))
    }

    /// True for a fail.
    pub fn is_fail(&self) -> bool {
        matches!(self, Self::Fail(_))
    }
}

/// How often a check is red on a pair that meets its demand.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FalseAlarm {
    /// Probability a run.
    pub probability: f64,
    /// Where the number comes from.
    pub why: &'static str,
}

/// Decorators around a target's ports that break one demand.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// Its name.
    pub id: &'static str,
    /// What it does.
    pub does: &'static str,
    /// Puts it on a target.
    pub break_target: fn(Target) -> Target,
}

/// A demand that can be checked through the ports.
#[async_trait]
pub trait Check: Send + Sync {
    /// Its name: also the name of its metric and the anchor of its documentation.
    fn id(&self) -> &'static str;

    /// What it demands, in one sentence.
    fn demand(&self) -> &'static str;

    /// Tokens it asks the sampler for, at most.
    fn cost(&self, target: &Target) -> u64;

    /// How often it is wrong about an honest pair.
    fn false_alarm(&self) -> FalseAlarm;

    /// What a red verdict means, how the fault arises in the wild, and what fixes it.
    fn explain(&self) -> &'static str;

    /// Public reports of the fault, `owner/project#number`.
    fn cases(&self) -> &'static [&'static str];

    /// The fault that must turn it red.
    fn fault(&self) -> Fault;

    /// Other faults that must turn it red.
    fn extra_faults(&self) -> Vec<Fault> {
        vec![]
    }

    /// Asks the questions.
    ///
    /// # Errors
    /// Whatever keeps it from a pass or a fail.
    async fn examine(&self, target: &Target) -> Result<Verdict, Obstacle>;

    /// The verdict on a target.
    async fn run(&self, target: &Target) -> Verdict {
        self.examine(target).await.unwrap_or_else(Verdict::from)
    }

    /// Every fault that must turn it red.
    fn faults(&self) -> Vec<Fault> {
        let mut faults = vec![self.fault()];
        faults.extend(self.extra_faults());
        faults
    }
}
