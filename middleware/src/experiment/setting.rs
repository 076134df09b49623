//! How large an experiment is, and everything it is going to run: written to its directory before the first arm starts, so
//! that it can be taken up again. A directory has one setting; parts are added to it.

use super::{Arm, ExperimentError, Part, parts, read_json, write_json};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, path::Path};

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
    /// The first seed of the arms.
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
            first_seed: 1,
            task_seed: 20_261_129,
            horizon: lockstep_core::dlc::ess::DEFAULT_HORIZON,
        }
    }

    /// 64 prompts, 24 updates, one seed, two references.
    pub fn small() -> Self {
        Self { prompts: 64, steps: 24, references: 2, evaluation_prompts: 64, ..Self::big() }
    }

    /// The large setting, shorter.
    pub fn deep() -> Self {
        Self { steps: 24, references: 3, ..Self::big() }
    }

    /// The updates after which the distance is looked at.
    pub fn evaluations(&self) -> Vec<u64> {
        (1..=self.steps).filter(|step| step.is_multiple_of(self.evaluate_every)).collect()
    }

    /// About how many seconds an arm takes on a core that it has to itself: of the size of [`Setting::big`] it took 50.
    pub fn seconds(&self) -> f64 {
        let answers = |of: &Self| (u64::from(of.prompts) * u64::from(of.answers) * of.steps) as f64;
        50.0 * answers(self) / answers(&Self::big())
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
    /// What all arms share.
    pub setting: Setting,
    /// The parts asked for so far.
    pub parts: Vec<Part>,
    /// The arms, in the order in which they start: those others wait for come first.
    pub arms: Vec<Arm>,
}

impl Plan {
    /// The arms of some parts; `seeds` of each where it is not the part's own number.
    pub fn new(parts: &[Part], setting: Setting, seeds: Option<u64>) -> Self {
        let arms = parts::arms(parts, &setting, seeds);
        Self { setting, parts: parts.to_vec(), arms }
    }

    /// Writes the plan into a directory; one of the same setting that lies there keeps its arms and gets these too.
    ///
    /// # Errors
    /// A directory that holds another setting, or cannot be written.
    pub fn claim(&self, directory: &Path) -> Result<(), ExperimentError> {
        let path = directory.join("plan.json");
        if path.is_file() {
            let mut there = Self::read(directory)?;
            if there.setting != self.setting {
                return Err(ExperimentError::OtherPlan(directory.to_owned()));
            }
            there.add(self);
            return write_json(&path, &there);
        }
        std::fs::create_dir_all(directory)
            .map_err(|source| ExperimentError::System { what: "creating the directory", source })?;
        write_json(&path, self)
    }

    fn add(&mut self, other: &Self) {
        self.parts.extend(other.parts.iter().filter(|part| !self.parts.contains(part)).copied().collect::<Vec<_>>());
        let there: BTreeSet<String> = self.arms.iter().map(Arm::name).collect();
        self.arms.extend(other.arms.iter().filter(|arm| !there.contains(&arm.name())).cloned());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_added_and_another_setting_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let plan = |part, setting: Setting| Plan::new(&[part], setting, Some(1));
        let (core, rivals) = (plan(Part::Core, Setting::big()), plan(Part::Rivals, Setting::big()));
        core.claim(directory.path()).unwrap();
        rivals.claim(directory.path()).unwrap();
        core.claim(directory.path()).unwrap();
        let both = Plan::read(directory.path()).unwrap();
        assert_eq!(both.parts, [Part::Core, Part::Rivals]);
        assert_eq!(both.arms[..core.arms.len()], core.arms);
        let names: BTreeSet<String> = both.arms.iter().map(Arm::name).collect();
        assert_eq!(names.len(), both.arms.len(), "an arm of both parts is there once");
        assert!(rivals.arms.iter().all(|arm| names.contains(&arm.name())));
        let other = plan(Part::Core, Setting { steps: 3, ..Setting::big() });
        assert!(matches!(other.claim(directory.path()), Err(ExperimentError::OtherPlan(_))));
        assert_eq!(Plan::read(directory.path()).unwrap(), both);
    }
}
