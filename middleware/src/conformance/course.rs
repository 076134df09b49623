//! The built-in pair's training, as wrapped and plain, for `--deep`: the arms of `lockstep experiment`.

use crate::experiment::{
    ExperimentError, Part, Plan, Setting,
    claims::{DLC, NONE_STALE, UNTRAINED},
    outcome::Results,
    play::Places,
    schedule,
};
use async_trait::async_trait;
use lockstep_conformance::{Course, Look, Way};
use lockstep_core::ports::{PortError, PortResult};
use std::path::PathBuf;
use tokio::sync::OnceCell;

/// Arms at the same time.
const PROCESSES: usize = 2;

/// A training that runs once, when it is first asked about.
#[derive(Debug)]
pub struct BuiltInCourse {
    out: PathBuf,
    setting: Setting,
    results: OnceCell<Results>,
}

impl BuiltInCourse {
    /// A training that writes into a directory of its own.
    pub fn new(out: PathBuf, setting: Setting) -> Self {
        Self { out, setting, results: OnceCell::new() }
    }

    async fn train(&self) -> Result<Results, ExperimentError> {
        let (plan, places) = (Plan::new(&[Part::Deep], self.setting.clone(), None), Places::of(&self.out));
        plan.claim(&self.out)?;
        schedule::all(&plan, &places, PROCESSES).await?;
        Results::read(plan, &places)
    }
}

#[async_trait]
impl Course for BuiltInCourse {
    async fn looks(&self, way: Way) -> PortResult<Vec<Look>> {
        let failed = |error: ExperimentError| PortError::Failed(error.to_string());
        let results = self.results.get_or_try_init(|| async { self.train().await.map_err(failed) }).await?;
        let row = match way {
            Way::Wrapped => DLC,
            Way::Plain => NONE_STALE,
            Way::Still => UNTRAINED,
        };
        Ok(results.curve(row).into_iter().map(|(step, floors)| Look { step, floors }).collect())
    }
}
