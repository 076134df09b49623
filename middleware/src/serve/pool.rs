//! The replicas of the engine: which one takes the next answer, and whether any may draw at all.

use super::refusal::Refusal;
use async_trait::async_trait;
use axum::http::Uri;
use lockstep_core::ports::{Control, PortResult, Sampler, SamplerCapabilities};
use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicUsize, Ordering},
};
use tokio::sync::watch;

/// Why a set of replicas cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// None at all.
    #[error("there is no engine to stand in front of")]
    Empty,
    /// They are not replicas of one model.
    #[error("{first} has a vocabulary of {expected} ids, but {other} one of {found}")]
    Vocabulary {
        /// The first replica.
        first: String,
        /// Its vocabulary.
        expected: u32,
        /// Another one.
        other: String,
        /// Its vocabulary.
        found: u32,
    },
}

/// Whoever gives an engine's tokens their versions, and must know of the updates that pass beside its control plane.
#[async_trait]
pub trait Watched: Send + Sync {
    /// An update begins.
    fn update_begins(&self);

    /// It has ended, well or badly.
    async fn update_ended(&self) -> PortResult<()>;
}

#[async_trait]
impl Watched for lockstep_adapters::Engine {
    fn update_begins(&self) {
        lockstep_adapters::Engine::update_begins(self);
    }

    async fn update_ended(&self) -> PortResult<()> {
        lockstep_adapters::Engine::update_ended(self).await
    }
}

/// One engine.
pub struct Replica {
    name: String,
    sampler: Arc<dyn Sampler>,
    control: Option<Arc<dyn Control>>,
    url: Option<Uri>,
    watched: Option<Arc<dyn Watched>>,
    capabilities: SamplerCapabilities,
    in_flight: AtomicUsize,
    failures: AtomicU32,
}

impl Replica {
    /// An engine by the name it has in errors and metrics.
    pub fn new(name: impl Into<String>, sampler: Arc<dyn Sampler>, control: Option<Arc<dyn Control>>) -> Self {
        let capabilities = sampler.capabilities();
        let (in_flight, failures) = Default::default();
        Self { name: name.into(), sampler, control, url: None, watched: None, capabilities, in_flight, failures }
    }

    /// Where its own HTTP routes are, so that weight updates can be passed on.
    #[must_use]
    pub fn at(mut self, url: Uri) -> Self {
        self.url = Some(url);
        self
    }

    /// Who must know of weight updates.
    #[must_use]
    pub fn watched_by(mut self, watched: Arc<dyn Watched>) -> Self {
        self.watched = Some(watched);
        self
    }

    /// Who must know of weight updates.
    pub(super) fn watched(&self) -> Option<&Arc<dyn Watched>> {
        self.watched.as_ref()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The port that draws.
    pub fn sampler(&self) -> &Arc<dyn Sampler> {
        &self.sampler
    }

    /// The port that changes weights.
    pub fn control(&self) -> Option<&Arc<dyn Control>> {
        self.control.as_ref()
    }

    /// Where its HTTP routes are.
    pub fn url(&self) -> Option<&Uri> {
        self.url.as_ref()
    }

    /// What it can do.
    pub fn capabilities(&self) -> &SamplerCapabilities {
        &self.capabilities
    }

    /// Answers it is drawing.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Failures since the last answer it finished.
    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    pub(super) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn finished(&self) {
        self.failures.store(0, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica").field("name", &self.name).field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}

/// A replica with one answer more in flight, until this is dropped.
#[derive(Debug)]
pub struct Busy(Arc<Replica>);

impl std::ops::Deref for Busy {
    type Target = Arc<Replica>;

    fn deref(&self) -> &Arc<Replica> {
        &self.0
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All replicas, and the gate that a pause closes.
#[derive(Debug)]
pub struct Pool {
    replicas: Vec<Arc<Replica>>,
    paused: watch::Sender<bool>,
}

impl Pool {
    /// # Errors
    /// No replica, or replicas of different vocabularies.
    pub fn new(replicas: Vec<Replica>) -> Result<Self, PoolError> {
        let first = replicas.first().ok_or(PoolError::Empty)?;
        let expected = first.capabilities.vocabulary;
        if let Some(other) = replicas.iter().find(|replica| replica.capabilities.vocabulary != expected) {
            let (first, found) = (first.name.clone(), other.capabilities.vocabulary);
            return Err(PoolError::Vocabulary { first, expected, other: other.name.clone(), found });
        }
        Ok(Self { replicas: replicas.into_iter().map(Arc::new).collect(), paused: watch::Sender::new(false) })
    }

    /// The replicas.
    pub fn replicas(&self) -> &[Arc<Replica>] {
        &self.replicas
    }

    /// Ids in the model's vocabulary.
    pub fn vocabulary(&self) -> u32 {
        self.replicas.first().map_or(0, |replica| replica.capabilities.vocabulary)
    }

    /// The replica for the next answer: not the one that just broke if there is another, healthy ones first, then the
    /// one with the fewest answers in flight.
    pub fn pick(&self, broken: Option<&str>) -> Result<Busy, Refusal> {
        let order =
            |replica: &&Arc<Replica>| (broken == Some(&*replica.name), replica.failures() > 0, replica.in_flight());
        let picked = self.replicas.iter().min_by_key(order);
        let picked = picked.ok_or_else(|| Refusal::unavailable("no engine"))?;
        picked.in_flight.fetch_add(1, Ordering::Relaxed);
        Ok(Busy(picked.clone()))
    }

    /// Closes or opens the gate.
    pub fn pause(&self, paused: bool) {
        self.paused.send_replace(paused);
    }

    /// Whether the gate is closed.
    pub fn is_paused(&self) -> bool {
        *self.paused.borrow()
    }

    /// Waits until the gate is open.
    pub async fn opened(&self) {
        if self.is_paused() {
            let _ = self.paused.subscribe().wait_for(|paused| !paused).await;
        }
    }
}
