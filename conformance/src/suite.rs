//! The checks in order, and running them.

use crate::{
    check::{Check, Fault, Finding, Verdict},
    checks,
    meter::{Meter, metered},
    obstacle::Obstacle,
    report::{Report, Row},
    target::Target,
    training,
};
use std::{fmt, sync::Arc};

/// Tokens a run of the suite asks the sampler for, at most.
pub const BUDGET: u64 = 20_000;

/// Some checks.
pub struct Suite {
    checks: Vec<Check>,
}

/// What a running suite says.
#[derive(Debug, Clone, Copy)]
pub enum Progress<'a> {
    /// A check begins.
    Started {
        /// Its name.
        id: &'static str,
        /// Its place, from 0.
        index: usize,
        /// Checks in the suite.
        of: usize,
    },
    /// It is done.
    Finished(&'a Row),
}

impl Suite {
    /// Every check that does not train: those of the four fixes, those of the two terms, those of the correction.
    pub fn all() -> Self {
        Self { checks: checks::ALL.to_vec() }
    }

    /// The same and the checks that train: minutes.
    pub fn deep() -> Self {
        Self { checks: checks::ALL.into_iter().chain(checks::DEEP).collect() }
    }

    /// The checks with these names, those that train too; `Err` carries a name that is none.
    ///
    /// # Errors
    /// A name no check has.
    pub fn only(ids: &[&str]) -> Result<Self, String> {
        let mut suite = Self::deep();
        let unknown = ids.iter().find(|id| suite.get(id).is_none());
        if let Some(unknown) = unknown {
            return Err((*unknown).to_owned());
        }
        suite.checks.retain(|check| ids.contains(&check.id));
        Ok(suite)
    }

    /// The checks, in order.
    pub fn checks(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter()
    }

    /// The check of a name.
    pub fn get(&self, id: &str) -> Option<&Check> {
        self.checks().find(|check| check.id == id)
    }

    /// Tokens all checks ask for, at most.
    pub fn cost(&self, target: &Target) -> u64 {
        self.checks().map(|check| (check.cost)(target)).sum()
    }

    /// Runs the checks one after another; each begins with the weights the one before left. The sampler is asked for at
    /// most [`BUDGET`] tokens in all; a check that would ask for more could not run.
    pub async fn run(&self, target: &Target, progress: &mut (dyn FnMut(Progress<'_>) + Send)) -> Report {
        let (of, mut rows) = (self.checks.len(), Vec::new());
        let meter = Arc::new(Meter::new(BUDGET));
        let target = metered(target, &meter);
        for (index, check) in self.checks().enumerate() {
            progress(Progress::Started { id: check.id, index, of });
            let before = meter.drawn();
            let Finding { verdict, figures } = check.look(&target).await;
            let row = Row {
                id: check.id.to_owned(),
                demand: check.demand.to_owned(),
                verdict,
                tokens: meter.drawn() - before,
                false_alarm: check.false_alarm.probability,
                false_alarm_why: check.false_alarm.why.to_owned(),
                cases: check.cases.iter().map(ToString::to_string).collect(),
                figures,
            };
            progress(Progress::Finished(&row));
            rows.push(row);
        }
        Report::new(rows)
    }

    /// Puts every fault on the target in turn and runs its own check: every fault with the verdict on it.
    pub async fn self_test(&self, target: &Target) -> Vec<(Fault, Verdict)> {
        let mut verdicts = Vec::new();
        for (check, fault) in self.checks().flat_map(|check| check.faults().map(move |fault| (check, fault))) {
            // A fault may have left the sampler with weights nobody keeps; where there is no control plane none did.
            let ready = training::synchronise(target).await.map(|_| ());
            let verdict = match ready {
                Ok(()) | Err(Obstacle::NotApplicable(_)) => check.run(&(fault.break_target)(target.clone())).await,
                Err(obstacle) => obstacle.into(),
            };
            verdicts.push((fault, verdict));
        }
        verdicts
    }
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.checks().map(|check| check.id)).finish()
    }
}
