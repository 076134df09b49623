//! The ports over a bench: a token of each answer in turn, each call on a thread of its own.

use super::{
    CandleModel,
    bench::{Answer, Bench},
};
use async_trait::async_trait;
use futures_util::stream::poll_fn;
use lockstep_core::{
    Delta, RolloutId, Stamp, WeightVersion,
    ports::{
        Control, ControlCapabilities, DeltaStream, PortResult, PublishedWeights, SampleRequest, Sampler,
        SamplerCapabilities,
    },
};
use std::{
    collections::{BTreeSet, VecDeque},
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::mpsc;

/// Deltas that may wait for a slow reader: the model does not run ahead of who reads it.
const WAITING: usize = 64;

/// How often a paused call looks whether anybody still waits for it.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug)]
struct Shared {
    bench: Mutex<Bench>,
    resumed: Condvar,
    cancelled: Mutex<BTreeSet<RolloutId>>,
}

impl Shared {
    fn bench(&self) -> MutexGuard<'_, Bench> {
        self.bench.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancelled(&self) -> MutexGuard<'_, BTreeSet<RolloutId>> {
        self.cancelled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// [`Sampler`] and [`Control`] over a model of `candle_transformers`. Its labels are claims: candle has no digest.
#[derive(Debug)]
pub struct CandleSampler {
    shared: Arc<Shared>,
    capabilities: SamplerCapabilities,
}

impl CandleSampler {
    /// Loads a Hugging Face directory of a Qwen3, whose weights are `version`.
    ///
    /// # Errors
    /// A directory that is not there, or that candle does not read.
    pub fn open(kind: CandleModel, directory: &Path, version: WeightVersion) -> PortResult<Self> {
        let bench = Bench::open(kind, directory, version)?;
        let (profile, vocabulary) = (bench.profile.clone(), bench.vocabulary());
        let capabilities = SamplerCapabilities { profile, vocabulary, resumes: true };
        let (resumed, cancelled) = (Condvar::new(), Mutex::default());
        Ok(Self { shared: Arc::new(Shared { bench: Mutex::new(bench), resumed, cancelled }), capabilities })
    }
}

type Out = mpsc::Sender<PortResult<Delta>>;

/// Draws until every answer is complete or cancelled, or nobody listens.
fn drive(shared: &Shared, requests: Vec<SampleRequest>, out: &Out) {
    let mut answers: VecDeque<Answer> = requests.into_iter().map(Answer::new).collect();
    while let Some(mut answer) = answers.pop_front() {
        if shared.cancelled().remove(&answer.asked.request.id) {
            continue;
        }
        let Some(mut bench) = running(shared, out) else { return };
        let delta = bench.next(&mut answer);
        drop(bench);
        let broken = delta.is_err();
        if out.blocking_send(delta).is_err() || broken {
            return;
        }
        if !answer.ended {
            answers.push_back(answer);
        }
    }
}

/// The bench once it is not paused; `None` where nobody listens any more.
fn running<'a>(shared: &'a Shared, out: &Out) -> Option<MutexGuard<'a, Bench>> {
    let mut bench = shared.bench();
    while bench.paused {
        if out.is_closed() {
            return None;
        }
        bench = shared.resumed.wait_timeout(bench, LOOK).unwrap_or_else(PoisonError::into_inner).0;
    }
    Some(bench)
}

#[async_trait]
impl Sampler for CandleSampler {
    fn capabilities(&self) -> SamplerCapabilities {
        self.capabilities.clone()
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        requests.iter().try_for_each(|asked| self.shared.bench().check(asked))?;
        // What was cancelled before is asked for again.
        self.shared.cancelled().retain(|id| requests.iter().all(|asked| asked.request.id != *id));
        let (out, mut deltas) = mpsc::channel(WAITING);
        let shared = self.shared.clone();
        tokio::task::spawn_blocking(move || drive(&shared, requests, &out));
        Ok(Box::pin(poll_fn(move |context| deltas.poll_recv(context))))
    }

    async fn cancel(&self, rollouts: &[RolloutId]) -> PortResult<()> {
        self.shared.cancelled().extend(rollouts);
        Ok(())
    }
}

#[async_trait]
impl Control for CandleSampler {
    fn capabilities(&self) -> ControlCapabilities {
        ControlCapabilities { digest: false }
    }

    async fn pause(&self) -> PortResult<()> {
        self.shared.bench().paused = true;
        Ok(())
    }

    async fn load_weights(&self, weights: &PublishedWeights) -> PortResult<Stamp> {
        self.shared.bench().load(weights)
    }

    async fn resume(&self) -> PortResult<()> {
        self.shared.bench().paused = false;
        self.shared.resumed.notify_all();
        Ok(())
    }

    async fn version(&self) -> PortResult<Stamp> {
        Ok(self.shared.bench().stamp.clone())
    }
}
