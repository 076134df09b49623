//! How close each correction stays to on-policy training: arms that train through the same sampler, trainer and middleware
//! path as any run, held against independent on-policy runs.
//!
//! ```text
//! distance of a method = KL(on-policy || method) on prefixes that the on-policy run drew
//! noise floor          = the same between two on-policy runs that differ in nothing but their draws
//! ```
//!
//! [`setting`] says how large, [`arm`] what runs, [`parts`] which of it, [`play`] runs one arm, [`measure`] holds policies against each other,
//! [`schedule`] runs all arms in processes of their own, [`outcome`] reads what they left, [`verdict`] judges the claims by it,
//! [`table`], [`markdown`] and [`render`] show it.

pub mod arm;
pub(crate) mod claims;
pub mod markdown;
pub mod measure;
pub mod outcome;
mod page;
pub mod parts;
pub mod play;
pub mod schedule;
mod search;
pub mod setting;
pub mod table;
pub mod verdict;
mod wrong;

pub use arm::{Arm, Sync};
pub use page::{lead, render};
pub use parts::Part;
pub use setting::{Plan, Setting};

use crate::{dispatch::DispatchError, journal::WriteError, ledger::LedgerError, small_model::SmallModelError};
use lockstep_core::{plan::PlanError, ports::PortError, reward::RewardError, sampling::SamplingError};
use std::path::{Path, PathBuf};

/// An experiment that could not go on.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// Filling a plan.
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    /// Sampler or trainer.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A file.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A file that cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The plan of a batch.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Its rewards.
    #[error(transparent)]
    Reward(#[from] RewardError),
    /// Its parameters.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The correction of an arm.
    #[error(transparent)]
    Clip(#[from] lockstep_core::dlc::rule::ClipError),
    /// The model.
    #[error(transparent)]
    Model(#[from] SmallModelError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] lockstep_engine::Error),
    /// The task.
    #[error("{0}")]
    Task(String),
    /// A thread or a process.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What came back.
        #[source]
        source: std::io::Error,
    },
    /// No such arm.
    #[error("the plan has no arm {0:?}")]
    NoArm(String),
    /// An arm that must be done before this one.
    #[error("arm {arm} needs the result of {needs}, which is not there")]
    NotDone {
        /// The arm.
        arm: String,
        /// What it waits for.
        needs: String,
    },
    /// An arm whose process failed.
    #[error("arm {arm} ended with {status}; its output is in {}", log.display())]
    Arm {
        /// The arm.
        arm: String,
        /// Its exit status.
        status: String,
        /// What it wrote.
        log: PathBuf,
    },
    /// Results of another setting.
    #[error("{} holds an experiment of another setting; choose another directory, or the options it was begun with", .0.display())]
    OtherPlan(PathBuf),
    /// No answers at the sampler's own version.
    #[error("step {step}: no answer was drawn at the sampler's version")]
    NoEss {
        /// The step.
        step: u64,
    },
}

impl ExperimentError {
    fn read(path: &Path, reason: impl std::fmt::Display) -> Self {
        Self::Read { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// Reads a JSON file of the experiment.
fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, ExperimentError> {
    let text = std::fs::read_to_string(path).map_err(|error| ExperimentError::read(path, error))?;
    serde_json::from_str(&text).map_err(|error| ExperimentError::read(path, error))
}

/// Writes a JSON file of the experiment whole.
fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), ExperimentError> {
    let text = serde_json::to_string(value).map_err(|error| ExperimentError::read(path, error))?;
    Ok(crate::journal::write_whole(path, &(text + "\n"))?)
}
