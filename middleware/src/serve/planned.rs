//! The gateway's plans and their ledger: what is acknowledged is on the disk, and what is on the disk counts.

use super::{
    Gateway, Options,
    capture::{Capture, CaptureError},
    draw::Order,
    loose::Loose,
    refusal::Refusal,
};
use crate::{
    dispatch::{FIRST_LOOSE, History, HistoryError, Opened, Plans, PlansError, Reported, Sealed},
    ledger::{Ledger, LedgerError, Record, TrainedOn},
    session::SessionRecord,
};
use lockstep_core::{
    Delta, RolloutId, SamplingParams, TokenId,
    dispatch::DispatchError,
    plan::PlanError,
    reward::{Outcome, RewardError},
    rollout::Request,
};
use std::{path::Path, sync::Arc, thread::JoinHandle};

/// A ledger that cannot be taken up.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// It cannot be read or written.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// Its records contradict each other.
    #[error("the ledger cannot be taken up again: {0}")]
    History(#[from] HistoryError),
    /// Its plans contradict each other.
    #[error("the ledger cannot be taken up again: {0}")]
    Plans(#[from] PlansError),
}

/// What a gateway was before it ended.
#[derive(Debug)]
pub struct Restored {
    /// The way into the ledger.
    pub capture: Capture,
    /// Its plans that were not trained on.
    pub plans: Plans,
    /// Its requests of no plan.
    pub loose: Loose,
    /// Its conversations.
    pub sessions: Vec<SessionRecord>,
    /// The thread that writes.
    pub writer: JoinHandle<Ledger>,
}

/// Opens the ledger of a directory, and what it says of the gateway that wrote it.
///
/// # Errors
/// A ledger that cannot be opened, or whose records contradict each other.
pub fn restore(directory: &Path, options: &Options) -> Result<Restored, RestoreError> {
    let (mut ledger, records) = Ledger::open(directory)?;
    let mut history = History::of(records)?;
    let plans = Plans::recover(options.rules, options.lease.as_millis() as u64, &mut history)?;
    let (max_open_plans, window) = (options.rules.max_open_plans, options.rules.window() as u32);
    ledger.append(&Record::Dispatch { max_open_plans, window })?;
    ledger.sync()?;
    let (capture, writer) = Capture::start(ledger)?;
    let loose = Loose::from_number(history.next_loose());
    Ok(Restored { capture, plans, loose, sessions: history.sessions, writer })
}

impl Gateway {
    /// The order for a rollout a client names, and whether the ledger does not know its request yet.
    pub(super) fn take(
        &self,
        id: RolloutId,
        prompt: &[TokenId],
        params: SamplingParams,
    ) -> Result<(Order, bool), Refusal> {
        if id.plan >= FIRST_LOOSE {
            return Ok((self.loose.take(id, prompt, &params)?, false));
        }
        let taken = self.plans.take(id, prompt, params)?;
        let first = taken.first;
        Ok((Order::planned(taken), first))
    }

    /// The orders of a client that names no rollout, opened in the ledger. `params` has one entry an answer.
    ///
    /// # Errors
    /// Those of `params`, a ledger that has stopped.
    pub(super) async fn open_loose(
        &self,
        prompts: &[Vec<TokenId>],
        params: impl Fn(RolloutId) -> Result<SamplingParams, Refusal>,
        answers: u32,
    ) -> Result<Vec<Order>, Refusal> {
        let requests = self.loose.requests(prompts, params, answers)?;
        if let Some(first) = requests.first().filter(|_| self.capture.is_on()) {
            let opened = Record::PlanOpened { plan: first.id.plan, requests: requests.clone() };
            self.capture.record(opened).await.map_err(captured)?;
        }
        Ok(requests.into_iter().map(|request| Order::loose(request, Vec::new())).collect())
    }

    /// An answer has ended, or broken off with what there is of it.
    pub(super) fn ended(&self, request: &Request, deltas: Vec<Arc<Delta>>) {
        let finished = deltas.last().is_some_and(|delta| delta.finish.is_some());
        if request.id.plan < FIRST_LOOSE {
            if let Err(error) = self.plans.ended(request, deltas) {
                tracing::error!(rollout = %request.id, %error, "an answer that passed every check is not taken");
            }
        } else if !finished && !deltas.is_empty() {
            self.loose.broke(request.clone(), deltas);
        }
    }

    /// Opens a plan, durably; as [`Plans::open`].
    pub(super) async fn open_plan(&self, (groups, answers): (u32, u32), asked: Option<u64>) -> Result<Opened, Refusal> {
        if self.pull.is_some() {
            let message = "this gateway opens its plans itself, from its prompts; ask for the next batch";
            return Err(Refusal::conflict(message));
        }
        let opened = self.plans.open(groups, answers, asked)?;
        if opened.again {
            self.settled().await?;
        } else {
            self.keep(Record::PlanReserved { plan: opened.plan, groups, answers }).await?;
        }
        Ok(opened)
    }

    /// Notes how judging a rollout came out, durably; the same again is acknowledged, and not stored.
    pub(super) async fn note_reward(&self, rollout: RolloutId, outcome: Outcome) -> Result<(), Refusal> {
        let record = match outcome.clone() {
            Outcome::Reward(reward) => Record::Reward { rollout, reward },
            Outcome::Failed { reason, counts_as } => Record::RewardFailed { rollout, reason, counts_as },
        };
        if rollout.plan >= FIRST_LOOSE {
            let reward = outcome.reward();
            if !reward.is_finite() {
                return Err(PlansError::from(RewardError::NotFinite { rollout, reward }).into());
            }
            self.loose.check(rollout)?;
            return self.keep(record).await;
        }
        if !self.plans.may_judge(rollout, &outcome)? {
            return self.settled().await;
        }
        self.keep(record).await?;
        Ok(self.plans.judge(rollout, &outcome)?)
    }

    /// Judging a rollout failed. After so many times it counts as what was fixed before the run; gives the times that are left.
    pub(super) async fn note_failure(&self, rollout: RolloutId, reason: &str) -> Result<u32, Refusal> {
        let (most, counts_as) = (self.options.judging.attempts, self.options.judging.counts_as);
        let failures = self.plans.judging_failed(rollout)?;
        if failures < most {
            return Ok(most - failures);
        }
        let reason = format!("{reason} (attempt {failures} of {most})");
        self.note_reward(rollout, Outcome::Failed { reason, counts_as }).await?;
        Ok(0)
    }

    /// The batch of a plan, as soon as all of it is there.
    pub(super) async fn sealed(&self, plan: u64) -> Result<Sealed, Refusal> {
        // A plan that is still to come is waited for; one that never will is not.
        if let Some(plans) = self.pull.as_ref().and_then(|pull| pull.plans).filter(|plans| plan >= *plans) {
            return Err(Refusal::unknown(format!("plan {plan} is none of the {plans} that there will be")));
        }
        let sealed = self.plans.seal(plan).await?;
        if sealed.first {
            self.keep(Record::PlanSealed { plan }).await?;
        }
        Ok(sealed)
    }

    /// Holds what was trained on against the plan. What differs is refused, and stays in the ledger as it was said.
    pub(super) async fn trained(&self, plan: u64, rollouts: Vec<TrainedOn>) -> Result<(), Refusal> {
        let _one_at_a_time = self.reporting.lock().await;
        match self.plans.report_consumed(plan, &rollouts, false) {
            Ok(Reported::Again) => self.settled().await,
            Ok(Reported::Part | Reported::Whole) => {
                self.keep(Record::Trained { plan, rollouts: rollouts.clone() }).await?;
                self.plans.report_consumed(plan, &rollouts, true)?;
                Ok(())
            }
            Err(error) => {
                if error.is_selection() {
                    self.counts.difference();
                    self.keep(Record::Misreported { plan, rollouts }).await?;
                }
                Err(error.into())
            }
        }
    }

    pub(super) async fn keep(&self, record: Record) -> Result<(), Refusal> {
        self.capture.record_durably(record).await.map_err(captured)
    }

    async fn settled(&self) -> Result<(), Refusal> {
        self.capture.settled().await.map_err(captured)
    }

    /// Milliseconds since the gateway began.
    pub(super) fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}

pub(super) fn captured(error: CaptureError) -> Refusal {
    Refusal::internal(error.to_string())
}

impl From<PlansError> for Refusal {
    fn from(error: PlansError) -> Self {
        let told = error.to_string();
        match error {
            PlansError::Dispatch(DispatchError::NoPlan(_) | DispatchError::NoRollout(_))
            | PlansError::Plan(PlanError::Unplanned { .. }) => Self::unknown(told),
            PlansError::Dispatch(DispatchError::Empty(_)) | PlansError::TooMany { .. } => Self::request(told),
            PlansError::Reward(RewardError::NotFinite { .. }) => Self::field("reward", told),
            PlansError::Stopped(_) => Self::internal(told),
            _ => Self::conflict(told),
        }
    }
}
