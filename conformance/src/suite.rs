//! The checks in order, and running them.

use crate::{
    check::{Check, FalseAlarm, Verdict},
    checks,
    report::{Report, Row},
    target::Target,
};
use std::fmt;

/// Some checks.
pub struct Suite {
    checks: Vec<Box<dyn Check>>,
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
    /// Every check: those of the four fixes, those of the two terms, that of the correction.
    pub fn all() -> Self {
        Self {
            checks: vec![
                Box::new(checks::distribution::Drawn),
                Box::new(checks::tokens::Identity),
                Box::new(checks::batch::Membership),
                Box::new(checks::version::Proven),
                Box::new(checks::numeric::Size),
                Box::new(checks::lag::Zero),
                Box::new(checks::correction::Gradient),
            ],
        }
    }

    /// The checks with these names; `Err` carries a name that is none.
    ///
    /// # Errors
    /// A name no check has.
    pub fn only(ids: &[&str]) -> Result<Self, String> {
        let mut suite = Self::all();
        let unknown = ids.iter().find(|id| suite.get(id).is_none());
        if let Some(unknown) = unknown {
            return Err((*unknown).to_owned());
        }
        suite.checks.retain(|check| ids.contains(&check.id()));
        Ok(suite)
    }

    /// The checks, in order.
    pub fn checks(&self) -> impl Iterator<Item = &dyn Check> {
        self.checks.iter().map(Box::as_ref)
    }

    /// The check of a name.
    pub fn get(&self, id: &str) -> Option<&dyn Check> {
        self.checks().find(|check| check.id() == id)
    }

    /// Tokens all checks ask for, at most.
    pub fn cost(&self, target: &Target) -> u64 {
        self.checks().map(|check| check.cost(target)).sum()
    }

    /// Runs the checks one after another; each begins with the weights the one before left.
    pub async fn run(&self, target: &Target, progress: &mut (dyn FnMut(Progress<'_>) + Send)) -> Report {
        let (of, mut rows) = (self.checks.len(), Vec::new());
        for (index, check) in self.checks().enumerate() {
            progress(Progress::Started { id: check.id(), index, of });
            let FalseAlarm { probability, why } = check.false_alarm();
            let verdict: Verdict = check.run(target).await;
            let row = Row {
                id: check.id().to_owned(),
                demand: check.demand().to_owned(),
                verdict,
                tokens: check.cost(target),
                false_alarm: probability,
                false_alarm_why: why.to_owned(),
            };
            progress(Progress::Finished(&row));
            rows.push(row);
        }
        Report::new(rows)
    }
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.checks().map(Check::id)).finish()
    }
}
