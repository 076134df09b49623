//! The driver against samplers that answer, die, fall silent and come back.

mod network;

use super::{fixture::*, *};
use crate::{
    audit::{Account, Audit},
    ledger::{self, Ledger, Record},
};
use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt, stream};
use lockstep_core::{
    BatchPlan, Rollout, RolloutId, ScoredBatch, WeightVersion,
    dispatch::{Mode, Rules},
    dlc::statistics::TermReport,
    ports::{DeltaStream, PortError, PortResult, SampleRequest, Sampler, SamplerCapabilities, StepReport},
    reward::Outcome,
};
use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

/// Answers of `3 + 2 * index` tokens, two a delta. `breaks` says after how many deltas of a call it breaks off, call by call.
struct Fake {
    breaks: Mutex<Vec<Option<usize>>>,
    silent: bool,
    asked: Mutex<Vec<SampleRequest>>,
}

fn fake(breaks: &[Option<usize>]) -> Arc<Fake> {
    let breaks = Mutex::new(breaks.iter().rev().copied().collect());
    Arc::new(Fake { breaks, silent: false, asked: Mutex::default() })
}

#[async_trait]
impl Sampler for Fake {
    fn capabilities(&self) -> SamplerCapabilities {
        SamplerCapabilities { profile: profile(), vocabulary: 50, resumes: true }
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        self.asked.lock().unwrap().extend(requests.clone());
        if self.silent {
            return Ok(Box::pin(stream::pending()));
        }
        let mut deltas = Vec::new();
        for SampleRequest { request, resumed } in requests {
            let length = 3 + 2 * request.id.index;
            let mut start = resumed.len() as u32;
            while start < length {
                let tokens = 2.min(length - start);
                deltas.push(Ok(delta(request.id, (start, tokens), 0, start + tokens == length)));
                start += tokens;
            }
        }
        if let Some(after) = self.breaks.lock().unwrap().pop().flatten() {
            deltas.truncate(after);
            deltas.push(Err(PortError::Unavailable("the fake sampler died".into())));
        }
        Ok(stream::iter(deltas).boxed())
    }

    async fn cancel(&self, _: &[RolloutId]) -> PortResult<()> {
        Ok(())
    }
}

fn plan(number: u64) -> BatchPlan {
    BatchPlan::restore(number, (0..4).map(|index| request(number, index, index / 2)).collect()).unwrap()
}

fn start(directory: &Path, samplers: &[Arc<Fake>], rules: Rules, restored: WeightVersion) -> Driver {
    start_with(directory, samplers, Settings { rules, lease: Duration::from_secs(3600), first: 0 }, restored)
}

fn start_with(directory: &Path, samplers: &[Arc<Fake>], settings: Settings, restored: WeightVersion) -> Driver {
    let (ledger, records) = Ledger::open(directory).unwrap();
    let station =
        |(at, sampler): (usize, &Arc<Fake>)| Station { name: format!("fake-{at}"), sampler: sampler.clone(), slots: 3 };
    let stations = samplers.iter().enumerate().map(station).collect();
    let judge: Judge = Arc::new(|rollout| match rollout.id().index {
        3 => Outcome::Failed { reason: "timed out".into(), counts_as: -1.0 },
        index => Outcome::Reward(f64::from(index)),
    });
    let mut driver =
        Driver::start(settings, stations, judge, (ledger, History::of(records).unwrap(), restored)).unwrap();
    driver.draw().unwrap();
    driver
}

fn version(epoch: u32, step: u64) -> WeightVersion {
    WeightVersion { epoch, step }
}

fn report(before: WeightVersion) -> StepReport {
    let terms = TermReport::default();
    StepReport { before, after: before.next(), loss: 0.0, gradient_norm: 0.0, terms, ess: vec![] }
}

fn lengths(batch: &ScoredBatch) -> Vec<usize> {
    batch.batch().rollouts().iter().map(Rollout::len).collect()
}

fn rules(max_open_plans: u32) -> Rules {
    Rules { max_open_plans, mode: Mode::Strict, ..Rules::default() }
}

fn audit(directory: &Path) -> Audit {
    Audit::of(&Account::of(&ledger::read(directory).unwrap()).unwrap())
}

#[tokio::test]
async fn a_plan_is_filled_by_two_samplers_and_a_failed_reward_keeps_its_row() {
    let directory = tempfile::tempdir().unwrap();
    let samplers = [fake(&[]), fake(&[])];
    let mut driver = start(directory.path(), &samplers, rules(1), version(0, 0));
    driver.open(plan(0)).unwrap();
    let batch = driver.next().await.unwrap();
    assert_eq!((lengths(&batch), batch.rewards()), (vec![3, 5, 7, 9], &[0.0, 1.0, 2.0, -1.0][..]));
    assert!(samplers.iter().all(|sampler| !sampler.asked.lock().unwrap().is_empty()));
    driver.consumed(&batch, &report(version(0, 0))).unwrap();
    let failed = |record: &Record| matches!(record, Record::RewardFailed { reason, .. } if reason == "timed out");
    assert!(ledger::read(directory.path()).unwrap().iter().any(failed));
    let found = audit(directory.path());
    assert!(!found.is_red(), "{}", found.table());
    assert_eq!(driver.next().await.unwrap_err().to_string(), "no plan is open, and a batch is waited for");
}

#[tokio::test]
async fn what_a_dying_sampler_left_is_resumed_under_the_same_id() {
    let directory = tempfile::tempdir().unwrap();
    let sampler = fake(&[Some(3), None]);
    let mut driver = start(directory.path(), std::slice::from_ref(&sampler), rules(1), version(0, 0));
    driver.open(plan(0)).unwrap();
    let batch = driver.next().await.unwrap();
    assert_eq!(lengths(&batch), [3, 5, 7, 9]);
    let attempts: Vec<u32> = batch.batch().rollouts().iter().map(Rollout::attempts).collect();
    assert_eq!(attempts, [1, 1, 2, 2], "of the third and the fourth nothing was recorded when it died");
    let asked = sampler.asked.lock().unwrap().clone();
    let seed = |request: &SampleRequest| request.request.params.seed();
    let again = asked.iter().rev().find(|request| request.request.id.index == 1).unwrap();
    assert_eq!((again.resumed.len(), seed(again)), (2, 1));
    let anew = asked.iter().rev().find(|request| request.request.id.index == 2).unwrap();
    assert!(anew.resumed.is_empty() && seed(anew) != 1, "a new seed where the tokens are gone");
    driver.consumed(&batch, &report(version(0, 0))).unwrap();
    assert!(!audit(directory.path()).is_red());
}

#[tokio::test]
async fn a_sampler_that_only_dies_ends_the_plan_with_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let mut driver = start(directory.path(), &[fake(&[Some(0); 9])], rules(1), version(0, 0));
    let opened = driver.open(plan(0));
    let error = match opened {
        Ok(()) => driver.next().await.unwrap_err(),
        Err(error) => error,
    };
    let said = "rollout p0.r0 of plan 0 was broken off 4 times, 3 are allowed; the last time: the fake sampler died";
    assert_eq!(error.to_string(), said);
}

/// Of no length at all: whoever has something to say when it is asked says it before its lease ends.
#[tokio::test]
async fn a_silent_sampler_loses_its_lease_and_its_answers() {
    let directory = tempfile::tempdir().unwrap();
    let silent = Arc::new(Fake { breaks: Mutex::default(), silent: true, asked: Mutex::default() });
    let settings = Settings { rules: rules(1), lease: Duration::ZERO, first: 0 };
    let mut driver = start_with(directory.path(), &[silent.clone(), fake(&[])], settings, version(0, 0));
    driver.open(plan(0)).unwrap();
    assert_eq!(lengths(&driver.next().await.unwrap()), [3, 5, 7, 9]);
    assert_eq!(silent.asked.lock().unwrap().len(), 2);
}

/// A sampler that says nothing to its first call, and goes on with it until it is cancelled.
struct Held {
    inner: Arc<Fake>,
    running: Mutex<Vec<RolloutId>>,
}

#[async_trait]
impl Sampler for Held {
    fn capabilities(&self) -> SamplerCapabilities {
        self.inner.capabilities()
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        let ids: Vec<RolloutId> = requests.iter().map(|asked| asked.request.id).collect();
        if let Some(id) = ids.iter().find(|id| self.running.lock().unwrap().contains(id)) {
            return Err(PortError::Refused(format!("rollout {id} is being answered already")));
        }
        if self.inner.asked.lock().unwrap().is_empty() {
            self.inner.asked.lock().unwrap().extend(requests);
            self.running.lock().unwrap().extend(ids);
            return Ok(Box::pin(stream::pending()));
        }
        self.inner.generate(requests).await
    }

    async fn cancel(&self, rollouts: &[RolloutId]) -> PortResult<()> {
        self.running.lock().unwrap().retain(|id| !rollouts.contains(id));
        Ok(())
    }
}

/// As after a pause of the whole machine: the lease is over, and the sampler is still at it.
#[tokio::test]
async fn a_sampler_that_lost_its_lease_is_called_off_before_it_is_asked_again() {
    let directory = tempfile::tempdir().unwrap();
    let settings = Settings { rules: rules(1), lease: Duration::ZERO, first: 0 };
    let held = Arc::new(Held { inner: fake(&[]), running: Mutex::default() });
    let station = Station { name: "held".into(), sampler: held.clone(), slots: 3 };
    let judge: Judge = Arc::new(|_| Outcome::Reward(0.0));
    let ledger = Ledger::open(directory.path()).unwrap().0;
    let history = History::of(Vec::new()).unwrap();
    let mut driver = Driver::start(settings, vec![station], judge, (ledger, history, version(0, 0))).unwrap();
    driver.draw().unwrap();
    driver.open(plan(0)).unwrap();
    assert_eq!(lengths(&driver.next().await.unwrap()), [3, 5, 7, 9]);
    assert!(held.running.lock().unwrap().is_empty());
}

#[tokio::test]
async fn with_two_open_plans_the_next_one_is_filled_while_the_trainer_works() {
    let directory = tempfile::tempdir().unwrap();
    let sampler = fake(&[]);
    let mut driver = start(directory.path(), std::slice::from_ref(&sampler), rules(2), version(0, 0));
    driver.open(plan(0)).unwrap();
    driver.open(plan(1)).unwrap();
    assert_eq!(driver.may_open(), None);
    let first = driver.next().await.unwrap();
    driver.during(tokio::task::yield_now()).await.unwrap();
    driver.consumed(&first, &report(version(0, 0))).unwrap();
    assert_eq!(driver.may_open(), Some(2));
    let second = driver.next().await.unwrap();
    assert_eq!((first.batch().plan(), second.batch().plan()), (0, 1));
    driver.consumed(&second, &report(version(0, 1))).unwrap();
    assert!(!audit(directory.path()).is_red());
}

/// The process ends with one plan trained on, one in the making. The trainer remembers no step.
#[tokio::test]
async fn a_run_goes_on_from_its_ledger() {
    let directory = tempfile::tempdir().unwrap();
    let sampler = fake(&[None, None, Some(3)]);
    let mut driver = start(directory.path(), &[sampler], rules(2), version(0, 0));
    driver.open(plan(0)).unwrap();
    let batch = driver.next().await.unwrap();
    driver.consumed(&batch, &report(version(0, 0))).unwrap();
    driver.open(plan(1)).unwrap();
    assert!(driver.during(std::future::pending::<()>()).now_or_never().is_none());
    drop(driver);

    let again = fake(&[]);
    let refused = Driver::start(
        Settings { rules: rules(2), lease: Duration::from_secs(1), first: 0 },
        vec![],
        Arc::new(|_| Outcome::Reward(0.0)),
        (
            Ledger::open(directory.path()).unwrap().0,
            History::of(ledger::read(directory.path()).unwrap()).unwrap(),
            version(0, 0),
        ),
    );
    let said = "the trainer restarted at e0.s0, but the ledger has a step to e0.s1 already; it must open a new epoch";
    assert_eq!(refused.unwrap_err().to_string(), said);
    let mut driver = start(directory.path(), std::slice::from_ref(&again), rules(2), version(1, 0));
    let first = driver.next().await.unwrap();
    assert_eq!(first, batch, "what was lost with the trainer is trained on again, from the ledger");
    driver.consumed(&first, &report(version(1, 0))).unwrap();
    let second = driver.next().await.unwrap();
    assert_eq!(lengths(&second), [3, 5, 7, 9]);
    driver.consumed(&second, &report(version(1, 1))).unwrap();
    assert!(again.asked.lock().unwrap().iter().all(|request| request.request.id.plan == 1));
    let records = ledger::read(directory.path()).unwrap();
    let resumed = records.iter().find_map(|record| match record {
        Record::Resumed { restored, again, resumed, .. } => Some((*restored, again.clone(), resumed.len())),
        _ => None,
    });
    let (restored, again, resumed) = resumed.unwrap();
    assert_eq!((restored, again), (version(1, 0), vec![0]));
    assert!(resumed <= 4);
    let found = audit(directory.path());
    assert!(!found.is_red(), "{}", found.table());
    assert_eq!(found.batches, 2);
}
