//! How large an experiment is, and everything it is going to run: written to its directory before the first arm starts, so
//! that it can be taken up again and cannot change on the way.

use super::{Arm, ExperimentError, arm, read_json, write_json};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// How much of the matrix is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// Three methods, one seed, a small setting: whether it works, and the largest effects.
    Quick,
    /// As wrapped, plain and untrained, one seed: the training of `lockstep conformance --deep`.
    Deep,
    /// What the claims need, three seeds.
    Core,
    /// Every rival, every precision, five seeds, and the grids of learning rate and staleness.
    All,
}

/// What all arms share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Prompts in a batch.
    pub prompts: u32,
    /// Answers to each.
    pub answers: u32,
    /// Updates of an arm.
    pub steps: u64,
    /// Learning rate, unless an arm has its own.
    pub learning_rate: f64,
    /// Updates between two looks at the distance.
    pub evaluate_every: u64,
    /// Prompts of a look; never those of a batch.
    pub evaluation_prompts: u32,
    /// Answers to each, of each reference.
    pub evaluation_answers: u32,
    /// On-policy reference runs; their pairs are the noise floor.
    pub references: u64,
    /// Seeds of each arm.
    pub seeds: u64,
    /// The first of them.
    pub first_seed: u64,
    /// Fixes the prompts, which are the same in every arm.
    pub task_seed: u64,
    /// H of the horizon ESS.
    pub horizon: u32,
}

impl Setting {
    /// 128 prompts, 8 answers, 40 updates: the never-trained control is far away, and the floor is low.
    pub fn big() -> Self {
        Self {
            prompts: 128,
            answers: 8,
            steps: 40,
            learning_rate: 1e-4,
            evaluate_every: 4,
            evaluation_prompts: 128,
            evaluation_answers: 1,
            references: 4,
            seeds: 3,
            first_seed: 1,
            task_seed: 20_261_129,
            horizon: lockstep_core::dlc::ess::DEFAULT_HORIZON,
        }
    }

    /// 64 prompts, 24 updates, one seed, two references.
    pub fn small() -> Self {
        Self { prompts: 64, steps: 24, references: 2, seeds: 1, evaluation_prompts: 64, ..Self::big() }
    }

    /// The large setting, shorter.
    pub fn deep() -> Self {
        Self { steps: 24, references: 3, seeds: 1, ..Self::big() }
    }

    /// The updates after which the distance is looked at.
    pub fn evaluations(&self) -> Vec<u64> {
        (1..=self.steps).filter(|step| step.is_multiple_of(self.evaluate_every)).collect()
    }

    /// Seeds of the arms.
    pub fn arm_seeds(&self) -> std::ops::Range<u64> {
        self.first_seed..self.first_seed + self.seeds
    }

    /// Seeds of the references: never those of an arm.
    pub fn reference_seeds(&self) -> std::ops::Range<u64> {
        let first = 1_000_000 + self.first_seed;
        first..first + self.references
    }
}

/// Everything an experiment is going to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// How much of the matrix.
    pub extent: Extent,
    /// What all arms share.
    pub setting: Setting,
    /// The arms, in the order in which they start: those others wait for come first.
    pub arms: Vec<Arm>,
}

impl Plan {
    /// The arms of an extent.
    pub fn new(extent: Extent, setting: Setting) -> Self {
        let arms = arm::matrix(extent, &setting);
        Self { extent, setting, arms }
    }

    /// Writes the plan into a directory, or finds the same one there.
    ///
    /// # Errors
    /// A directory that holds another plan, or cannot be written.
    pub fn claim(&self, directory: &Path) -> Result<(), ExperimentError> {
        let path = directory.join("plan.json");
        if path.is_file() {
            let same = Self::read(directory)? == *self;
            return if same { Ok(()) } else { Err(ExperimentError::OtherPlan(directory.to_owned())) };
        }
        std::fs::create_dir_all(directory)
            .map_err(|source| ExperimentError::System { what: "creating the directory", source })?;
        write_json(&path, self)
    }

    /// The plan of a directory.
    ///
    /// # Errors
    /// No plan there, or one that does not read.
    pub fn read(directory: &Path) -> Result<Self, ExperimentError> {
        read_json(&directory.join("plan.json"))
    }

    /// The arm of a name.
    ///
    /// # Errors
    /// No such arm.
    pub fn arm(&self, name: &str) -> Result<&Arm, ExperimentError> {
        let arm = self.arms.iter().find(|arm| arm.name() == name);
        arm.ok_or_else(|| ExperimentError::NoArm(name.to_owned()))
    }
}
