//! Samplers behind a network that drops, partitions and reorders, by a seed, and a process that is killed between: nothing that
//! was recorded is lost or doubled, and no plan's membership changes.

use super::*;
use crate::simulate::random::pick;
use lockstep_core::Delta;
use std::{
    collections::VecDeque,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll},
};

/// A sampler, and the network before it.
struct Link {
    seed: u64,
    calls: AtomicU64,
    /// Whether the network may swallow a piece and go on, as none may.
    swallows: bool,
}

/// What comes over the network of one call.
struct Wire {
    words: VecDeque<PortResult<Delta>>,
    /// Polls until the next word.
    waits: VecDeque<u64>,
}

impl futures_core::Stream for Wire {
    type Item = PortResult<Delta>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(wait) = self.waits.front_mut().filter(|wait| **wait > 0) {
            *wait -= 1;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.waits.pop_front();
        Poll::Ready(self.words.pop_front())
    }
}

fn length(request: &SampleRequest) -> u32 {
    1 + pick(12, &[request.request.id.plan, u64::from(request.request.id.index)]) as u32
}

/// The pieces of an answer from where it goes on.
fn rest(request: &SampleRequest) -> VecDeque<Delta> {
    let (length, start) = (length(request), request.resumed.len() as u32);
    (start..length).map(|at| delta(request.request.id, (at, 1), 0, at + 1 == length)).collect()
}

impl Link {
    /// The words of a call: those of different answers in any order. Where the network parts, an error comes in between, and what
    /// was under way comes late.
    fn words(&self, call: u64, requests: &[SampleRequest]) -> VecDeque<PortResult<Delta>> {
        let mut answers: Vec<VecDeque<Delta>> = requests.iter().map(rest).collect();
        let mut words = VecDeque::new();
        while !answers.is_empty() {
            let at = pick(answers.len() as u64, &[self.seed, call, words.len() as u64]) as usize;
            words.extend(answers[at].pop_front().map(Ok));
            answers.retain(|answer| !answer.is_empty());
        }
        let cut = pick(words.len() as u64 + 1, &[self.seed, call, 71]) as usize;
        match pick(3, &[self.seed, call, 72]) {
            0 => words.insert(cut, Err(PortError::Unavailable("the network parted".into()))),
            1 if self.swallows => drop(words.remove(cut)),
            _ => {}
        }
        words
    }
}

#[async_trait]
impl Sampler for Link {
    fn capabilities(&self) -> SamplerCapabilities {
        SamplerCapabilities { profile: profile(), vocabulary: 50, resumes: true }
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if pick(6, &[self.seed, call, 73]) == 0 {
            return Err(PortError::Unavailable("the connection was refused".into()));
        }
        let words = self.words(call, &requests);
        let waits = (0..words.len() as u64).map(|at| pick(4, &[self.seed, call, at, 74])).collect();
        Ok(Wire { words, waits }.boxed())
    }

    async fn cancel(&self, _: &[RolloutId]) -> PortResult<()> {
        Ok(())
    }
}

fn links(seed: u64, swallows: bool) -> Vec<Arc<Link>> {
    let link = |at: u64| Arc::new(Link { seed: seed * 8 + at, calls: AtomicU64::new(0), swallows });
    (0..1 + pick(3, &[seed, 75])).map(link).collect()
}

const PLANS: u64 = 5;

fn started(directory: &Path, links: &[Arc<Link>], restored: WeightVersion) -> Driver {
    let (ledger, records) = Ledger::open(directory).unwrap();
    let station =
        |(at, link): (usize, &Arc<Link>)| Station { name: format!("link-{at}"), sampler: link.clone(), slots: 3 };
    let rules =
        Rules { max_open_plans: 3, mode: Mode::Windowed { plans: 2 }, max_attempts: 1000, max_interruptions: 1000 };
    let settings = Settings { rules, lease: Duration::from_secs(3600), first: 0 };
    let judge: Judge = Arc::new(|rollout| Outcome::Reward(f64::from(rollout.id().index)));
    let history = History::of(records).unwrap();
    let stations = links.iter().enumerate().map(station).collect();
    let mut driver = Driver::start(settings, stations, judge, (ledger, history, restored)).unwrap();
    driver.draw().unwrap();
    driver
}

/// Trains on every plan, killed now and then; gives the lengths of every batch by plan.
async fn run(seed: u64, directory: &Path) -> Result<Vec<(u64, Vec<usize>)>, DispatchError> {
    let (links, mut batches) = (links(seed, false), Vec::new());
    let mut epoch = 0;
    while (batches.len() as u64) < PLANS {
        let mut held = version(epoch, batches.len() as u64);
        epoch += 1;
        let mut driver = started(directory, &links, held);
        for _ in 0..1 + pick(PLANS, &[seed, u64::from(epoch), 76]) {
            while let Some(number) = driver.may_open().filter(|&number| number < PLANS) {
                driver.open(plan(number))?;
            }
            if batches.len() as u64 == PLANS {
                break;
            }
            let batch = driver.next().await?;
            driver.consumed(&batch, &report(held))?;
            held = held.next();
            batches.push((batch.batch().plan(), lengths(&batch)));
        }
    }
    batches.sort_unstable();
    Ok(batches)
}

/// What a ledger has of tokens, in its order.
fn drawn(directory: &Path) -> Vec<(RolloutId, u32)> {
    let records = ledger::read(directory).unwrap();
    let told = records.iter().filter_map(|record| match record {
        Record::Delta(delta) => Some((delta.rollout, delta.start)),
        _ => None,
    });
    told.collect()
}

#[tokio::test]
async fn whatever_the_network_does_every_answer_is_there_once_and_in_its_plan() {
    let expected: Vec<(u64, Vec<usize>)> = (0..PLANS)
        .map(|number| {
            let asked = plan(number).requests().to_vec();
            let whole = asked.into_iter().map(|request| SampleRequest { request, resumed: vec![] });
            (number, whole.map(|request| length(&request) as usize).collect())
        })
        .collect();
    for seed in 0..100 {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(run(seed, directory.path()).await.unwrap(), expected, "seed {seed}");
        let audit = audit(directory.path());
        assert!(!audit.is_red(), "seed {seed}\n{}", audit.table());
        let mut tokens = drawn(directory.path());
        let all = tokens.len();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), all, "seed {seed}: tokens were recorded twice");
    }
}

#[tokio::test]
async fn a_seed_is_the_same_network_twice() {
    for seed in 0..5 {
        let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        for directory in &directories {
            run(seed, directory.path()).await.unwrap();
        }
        assert_eq!(drawn(directories[0].path()), drawn(directories[1].path()), "seed {seed}");
    }
}

/// A network that swallows a piece and goes on is no network; it is noticed at once, and named.
#[tokio::test]
async fn a_swallowed_piece_is_noticed() {
    let mut noticed = 0;
    for seed in 0..20 {
        let directory = tempfile::tempdir().unwrap();
        let mut driver = started(directory.path(), &links(seed, true), version(0, 0));
        driver.open(plan(0)).unwrap();
        if let Err(error) = driver.next().await {
            assert!(error.to_string().contains("rollout p0.r"), "{error}");
            noticed += 1;
        }
    }
    assert!(noticed > 5, "{noticed} of 20");
}
