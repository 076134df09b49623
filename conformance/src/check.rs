//! A demand on a pair, the verdict on it, and the fault that must turn the verdict red.

use crate::{figure::Figure, obstacle::Obstacle, target::Target};
use futures_util::future::BoxFuture;
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

/// A verdict, and the pictures that show what is behind it.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// The verdict.
    pub verdict: Verdict,
    /// What a report can draw.
    pub figures: Vec<Figure>,
}

impl Finding {
    /// Pass or fail by a condition, with the same evidence.
    pub fn of(met: bool, evidence: String) -> Self {
        Verdict::of(met, evidence).into()
    }

    /// The same with a picture.
    #[must_use]
    pub fn with(mut self, figure: Figure) -> Self {
        self.figures.push(figure);
        self
    }
}

impl From<Verdict> for Finding {
    fn from(verdict: Verdict) -> Self {
        Self { verdict, figures: vec![] }
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

impl FalseAlarm {
    /// An equality, or a bound on rounding: never red on an honest pair.
    pub const NONE: Self = Self { probability: 0.0, why: "an equality or a bound on rounding, not a statistical test" };
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

/// The future of a question.
pub type Examination<'a> = BoxFuture<'a, Result<Finding, Obstacle>>;

/// A demand that can be checked through the ports. A check cannot be written down without a fault that turns it red.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    /// Its name: also the name of its metric and the anchor of its documentation.
    pub id: &'static str,
    /// What it demands, in one sentence.
    pub demand: &'static str,
    /// Tokens it asks the sampler for, at most.
    pub cost: fn(&Target) -> u64,
    /// How often it is wrong about an honest pair.
    pub false_alarm: FalseAlarm,
    /// What a red verdict means, how the fault arises in the wild, and what fixes it.
    pub explain: &'static str,
    /// Public reports of the fault, `owner/project#number`.
    pub cases: &'static [&'static str],
    /// The fault that must turn it red.
    pub fault: Fault,
    /// Other faults that must turn it red.
    pub extra_faults: &'static [Fault],
    /// Asks the questions; an error is whatever keeps it from a pass or a fail.
    pub examine: for<'a> fn(&'a Target) -> Examination<'a>,
}

impl Check {
    /// What it finds on a target.
    pub async fn look(&self, target: &Target) -> Finding {
        (self.examine)(target).await.unwrap_or_else(|obstacle| Verdict::from(obstacle).into())
    }

    /// The verdict on a target.
    pub async fn run(&self, target: &Target) -> Verdict {
        self.look(target).await.verdict
    }

    /// Every fault that must turn it red.
    pub fn faults(&self) -> impl Iterator<Item = Fault> + use<> {
        std::iter::once(self.fault).chain(self.extra_faults.iter().copied())
    }
}
