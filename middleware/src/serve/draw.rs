//! One answer, from the request to its last token: drawn by a replica, checked, written to the ledger, handed on.
//!
//! An answer whose replica breaks is resumed on another one from the tokens it has. An answer of a plan is drawn to its end
//! even when its client has left: leaving would otherwise be a filter by length.

use super::{Gateway, capture::CaptureError, pool::Busy, stop::Stops, updates::Began};
use crate::{
    config::Stage,
    dispatch::{Taken, milliseconds_since_1970},
    ledger::{Record, SentAnswer, SentRecord},
};
use futures_util::StreamExt;
use lockstep_core::{
    BehaviorDistribution, Delta, FinishReason, RolloutId, TokenId,
    ports::{PortError, PortResult, SampleRequest},
    rollout::Request,
};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// How often an answer is taken up again after an engine broke off.
const MAX_INTERRUPTIONS: u32 = 3;
/// Deltas that wait for a slow client; then the engine waits too.
const WAITING: usize = 16;

/// Why an answer did not come to its end.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DrawError {
    /// The engine refused, broke, or is not there.
    #[error("engine {engine}, after {tokens} tokens of rollout {rollout}: {source}")]
    Engine {
        /// The engine.
        engine: String,
        /// Sampled tokens by then; they are kept.
        tokens: usize,
        /// The rollout.
        rollout: RolloutId,
        /// What it said.
        #[source]
        source: PortError,
    },
    /// The ledger could not keep what arrived.
    #[error(transparent)]
    Capture(#[from] CaptureError),
}

/// An answer to draw.
#[derive(Debug)]
pub struct Order {
    /// What was asked.
    pub request: Request,
    /// What is there already.
    pub have: Vec<Arc<Delta>>,
    /// 1, and one more for every time its tokens were lost.
    pub attempt: u32,
    /// Whether it is drawn to its end whoever listens.
    pub planned: bool,
    /// Texts that end it.
    pub stops: Option<Stops>,
    /// Its place among the answers in flight.
    pub permit: Option<OwnedSemaphorePermit>,
}

impl Order {
    /// The order for an answer of no plan, with what there is of it.
    pub(super) fn loose(request: Request, have: Vec<Arc<Delta>>) -> Self {
        Self { request, have, attempt: 1, planned: false, stops: None, permit: None }
    }

    /// The order for an answer of a plan.
    pub(super) fn planned(taken: Taken) -> Self {
        let Taken { request, have, attempt, .. } = taken;
        Self { request, have, attempt, planned: true, stops: None, permit: None }
    }
}

/// Deltas as they are captured; the last one has a finish reason and is durable.
pub type Answer = mpsc::Receiver<Result<Arc<Delta>, DrawError>>;

/// Begins to draw; the deltas that are there already come first.
pub fn start(gateway: Arc<Gateway>, order: Order) -> Answer {
    let (sender, receiver) = mpsc::channel(WAITING);
    tokio::spawn(async move { Drawing::new(gateway, order, sender).run().await });
    receiver
}

struct Drawing {
    gateway: Arc<Gateway>,
    request: Request,
    planned: bool,
    stops: Option<Stops>,
    deltas: Vec<Arc<Delta>>,
    tokens: Vec<TokenId>,
    sender: mpsc::Sender<Result<Arc<Delta>, DrawError>>,
    began: Began,
    /// 1, and one more for every time it broke off before its first token.
    attempt: u32,
    settled: bool,
    _permit: Option<OwnedSemaphorePermit>,
}

/// How one try ended.
enum Ended {
    Finished,
    ClientLeft,
    Broke { engine: String, source: PortError },
}

impl Drawing {
    fn new(gateway: Arc<Gateway>, order: Order, sender: mpsc::Sender<Result<Arc<Delta>, DrawError>>) -> Self {
        let Order { request, have, attempt, planned, mut stops, permit } = order;
        let tokens: Vec<TokenId> = have.iter().flat_map(|delta| delta.behavior.tokens().iter().copied()).collect();
        if let Some(stops) = &mut stops {
            let _ = stops.ends_at(&tokens);
        }
        let mut began = gateway.updates.begin();
        began.resumes(have.first().map(|delta| delta.stamp.clone()));
        Self {
            gateway,
            request,
            planned,
            stops,
            deltas: have,
            tokens,
            sender,
            began,
            attempt,
            settled: false,
            _permit: permit,
        }
    }

    async fn run(mut self) {
        for delta in self.deltas.clone() {
            let _ = self.sender.send(Ok(delta)).await;
        }
        let outcome = self.drawn_to_its_end().await;
        let id = self.request.id;
        self.settle();
        if let Err(error) = outcome {
            self.gateway.counts.failed();
            tracing::warn!(rollout = %id, %error, "an answer broke off");
            let _ = self.sender.send(Err(error)).await;
        }
    }

    /// Gives the plan what there is of the answer, once.
    fn settle(&mut self) {
        if !std::mem::replace(&mut self.settled, true) {
            self.gateway.ended(&self.request, std::mem::take(&mut self.deltas));
        }
    }

    async fn drawn_to_its_end(&mut self) -> Result<(), DrawError> {
        let mut broken = None;
        let mut interruptions = 0;
        loop {
            if self.deltas.last().is_some_and(|delta| delta.finish.is_some()) {
                return Ok(());
            }
            if let Some(finish) = self.finished_already() {
                return self.end_without_a_token(finish).await;
            }
            self.gateway.pool.opened().await;
            let had = self.tokens.len();
            let Ok(replica) = self.gateway.pool.pick(broken.as_deref()) else { return Ok(()) };
            self.sent(replica.name()).await?;
            let (engine, source) = match self.once(&replica).await? {
                Ended::Finished | Ended::ClientLeft => return Ok(()),
                Ended::Broke { engine, source } => (engine, source),
            };
            let refused = matches!(source, PortError::Refused(_));
            if !refused {
                replica.failed();
            }
            interruptions = if self.tokens.len() > had { 1 } else { interruptions + 1 };
            let another = self.gateway.pool.replicas().len() > 1;
            let again = interruptions <= MAX_INTERRUPTIONS && (matches!(source, PortError::Unavailable(_)) || another);
            if refused || !again {
                let (tokens, rollout) = (self.tokens.len(), self.request.id);
                return Err(DrawError::Engine { engine, tokens, rollout, source });
            }
            self.gateway.counts.resumed();
            tracing::warn!(rollout = %self.request.id, tokens = self.tokens.len(), %source, "resumed after {engine}");
            self.attempt += u32::from(self.tokens.is_empty());
            broken = Some(engine);
        }
    }

    /// Tells the ledger who draws an answer of a plan, and from where.
    async fn sent(&mut self, engine: &str) -> Result<(), DrawError> {
        if !self.planned {
            return Ok(());
        }
        let (rollout, attempt, tokens) = (self.request.id, self.attempt, self.tokens.len() as u32);
        let (sampler, at) = (engine.to_owned(), milliseconds_since_1970());
        let sent = SentRecord { sampler, at, answers: vec![SentAnswer { rollout, attempt, tokens }] };
        Ok(self.gateway.capture.record(Record::Sent(sent)).await?)
    }

    /// An engine may break after the last token and before it says why it ended.
    fn finished_already(&self) -> Option<FinishReason> {
        let limits = self.request.params.limits();
        let last = *self.tokens.last()?;
        let full = self.tokens.len() >= limits.max_new_tokens as usize;
        let stopped = limits.stop.contains(&last).then_some(FinishReason::Stop(last));
        stopped.or(full.then_some(FinishReason::Length))
    }

    async fn end_without_a_token(&mut self, finish: FinishReason) -> Result<(), DrawError> {
        let Some(last) = self.deltas.last().cloned() else { return Ok(()) };
        if last.finish.is_some() {
            return Ok(());
        }
        let start = self.tokens.len() as u32;
        let behavior = BehaviorDistribution::default();
        self.accept(Delta { start, behavior, finish: Some(finish), ..(*last).clone() }).await
    }

    async fn once(&mut self, replica: &Busy) -> Result<Ended, DrawError> {
        let engine = replica.name().to_owned();
        if !self.tokens.is_empty() && !replica.capabilities().resumes {
            let source = PortError::Refused("it cannot resume an answer from the tokens it has".to_owned());
            return Ok(Ended::Broke { engine, source });
        }
        let sampler = replica.sampler().clone();
        let mut request = self.request.clone();
        request.params = request.params.for_attempt(self.attempt);
        let ask = SampleRequest { request, resumed: self.tokens.clone() };
        let mut stream = match patiently(&self.gateway, sampler.generate(vec![ask])).await {
            Ok(stream) => stream,
            Err(source) => return Ok(Ended::Broke { engine, source }),
        };
        loop {
            let next = patiently(&self.gateway, async { stream.next().await.transpose() });
            let next = tokio::select! {
                biased;
                next = next => next,
                () = self.sender.closed(), if !self.planned => {
                    let _ = sampler.cancel(&[self.request.id]).await;
                    self.gateway.counts.abandoned();
                    return Ok(Ended::ClientLeft);
                }
            };
            let taken = next.and_then(|delta| self.check(delta));
            let (delta, cut) = match taken {
                Ok(taken) => taken,
                Err(source) => return Ok(Ended::Broke { engine, source }),
            };
            let last = delta.finish.is_some();
            self.accept(delta).await?;
            if cut {
                let _ = sampler.cancel(&[self.request.id]).await;
            }
            if last {
                replica.finished();
                return Ok(Ended::Finished);
            }
        }
    }

    /// A delta as it may be written: of this rollout, in order, inside the vocabulary and the limit, and cut where a stop text
    /// ends it.
    fn check(&mut self, delta: Option<Delta>) -> PortResult<(Delta, bool)> {
        let id = self.request.id;
        let failed = |what: String| Err(PortError::Failed(what));
        let Some(mut delta) = delta else {
            return Err(PortError::Unavailable(format!("the stream ended before rollout {id} did")));
        };
        if delta.rollout != id {
            return failed(format!("a delta of rollout {} among those of {id}", delta.rollout));
        }
        if delta.start as usize != self.tokens.len() {
            return failed(format!("a delta starts at token {}, but {} are there", delta.start, self.tokens.len()));
        }
        if delta.behavior.is_empty() && delta.finish.is_none() {
            return failed(format!("an empty delta of rollout {id} that does not end it"));
        }
        let vocabulary = self.gateway.pool.vocabulary();
        let outside = delta.behavior.tokens().iter().position(|token| token.0 >= vocabulary);
        if let Some(at) = outside {
            let (token, at) = (delta.behavior.tokens()[at], at + self.tokens.len());
            return failed(format!("token {token} at position {at} is outside the vocabulary of {vocabulary}"));
        }
        let limits = self.request.params.limits();
        let limit = limits.max_new_tokens as usize;
        let total = self.tokens.len() + delta.behavior.len();
        if total > limit {
            return failed(format!("rollout {id} has {total} tokens, but was asked for at most {limit}"));
        }
        if total == 0 {
            return failed(format!("rollout {id} ended without a token"));
        }
        if let Some(FinishReason::Stop(id)) = delta.finish
            && !(limits.stop.contains(&id) && delta.behavior.tokens().last().or(self.tokens.last()) == Some(&id))
        {
            let rollout = self.request.id;
            return failed(format!("rollout {rollout} ended at {id}, which is not its last token or no stop id of it"));
        }
        if delta.finish == Some(FinishReason::StopText) {
            return failed(format!("rollout {id} ended at a stop text, but the engine was given none"));
        }
        if let Some(at) = self.untruncated(&delta) {
            return failed(format!(
                "the support at position {at} is over the whole vocabulary, though the draw was truncated"
            ));
        }
        self.gateway.updates.stamp(&mut delta, &mut self.began);
        self.cut(delta)
    }

    /// Where a support ignores the filters that were asked for; only said where the truth is enforced.
    fn untruncated(&self, delta: &Delta) -> Option<usize> {
        if self.gateway.options.stage == Stage::Observe || self.request.params.truncation().is_none() {
            return None;
        }
        let rest = delta.behavior.columns().rest.as_ref()?;
        let at = rest.vocabulary.iter().position(|&vocabulary| vocabulary > 0);
        at.map(|at| at + delta.start as usize)
    }

    fn cut(&mut self, delta: Delta) -> PortResult<(Delta, bool)> {
        let Some(stops) = &mut self.stops else { return Ok((delta, false)) };
        let found = stops.ends_at(delta.behavior.tokens());
        let Some(kept) = found.map_err(|error| PortError::Failed(error.to_string()))? else {
            return Ok((delta, false));
        };
        let behavior = delta.behavior.slice(0..kept);
        Ok((Delta { behavior, finish: Some(FinishReason::StopText), ..delta }, true))
    }

    /// Writes a delta and hands it on to whoever listens; the last one only when it is durable.
    async fn accept(&mut self, delta: Delta) -> Result<(), DrawError> {
        let delta = Arc::new(delta);
        self.gateway.counts.tokens(&delta);
        if delta.finish.is_some() && self.planned {
            self.gateway.capture.delta(delta.clone()).await?;
            let arrived = Record::Arrived { rollout: delta.rollout, at: milliseconds_since_1970() };
            self.gateway.capture.record_durably(arrived).await?;
        } else if delta.finish.is_some() {
            self.gateway.capture.delta_durably(delta.clone()).await?;
        } else {
            self.gateway.capture.delta(delta.clone()).await?;
        }
        self.tokens.extend_from_slice(delta.behavior.tokens());
        self.deltas.push(delta.clone());
        if delta.finish.is_some() {
            self.settle();
        }
        let _ = self.sender.send(Ok(delta)).await;
        Ok(())
    }
}

/// An engine that says nothing for too long is as good as gone; while it is paused it may be silent.
async fn patiently<T>(gateway: &Gateway, call: impl Future<Output = PortResult<T>>) -> PortResult<T> {
    let silence = gateway.options.silence;
    let mut call = std::pin::pin!(call);
    loop {
        match tokio::time::timeout(silence, &mut call).await {
            Ok(answer) => return answer,
            Err(_) if gateway.pool.is_paused() => gateway.pool.opened().await,
            Err(_) => {
                let seconds = silence.as_secs_f64();
                return Err(PortError::Unavailable(format!("it said nothing for {seconds} seconds")));
            }
        }
    }
}
