//! A call of `generate` on its way: its answers, and where their deltas go.

use super::answer::Answer;
use super::{Qwen3Sampler, SamplerError, engine_request};
use crate::generate::{Drawn, Request, generate};
use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_core::Stream;
use lockstep_core::delta::Delta;
use lockstep_core::ports::{PortError, PortResult, SampleRequest};
use lockstep_core::token::RolloutId;
use lockstep_core::version::Stamp;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

/// What callers change while the worker draws.
#[derive(Debug)]
pub(super) struct Shared {
    paused: AtomicBool,
    /// Answers that are being drawn, or wait to be; true once cancelled.
    answers: Mutex<BTreeMap<RolloutId, bool>>,
    stamp: Mutex<Stamp>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(stamp: Stamp) -> Self {
        Self { paused: AtomicBool::new(false), answers: Mutex::default(), stamp: Mutex::new(stamp) }
    }

    pub(super) fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::SeqCst);
    }

    pub(super) fn stamp(&self) -> Stamp {
        locked(&self.stamp).clone()
    }

    pub(super) fn set_stamp(&self, stamp: Stamp) {
        *locked(&self.stamp) = stamp;
    }

    /// Notes all of them, or none where one is being answered already.
    pub(super) fn open(&self, requests: &[SampleRequest]) -> PortResult<()> {
        let mut answers = locked(&self.answers);
        for (at, SampleRequest { request, .. }) in requests.iter().enumerate() {
            if answers.insert(request.id, false).is_some() {
                for opened in &requests[..at] {
                    answers.remove(&opened.request.id);
                }
                return Err(PortError::Refused(format!("rollout {} is being answered already", request.id)));
            }
        }
        Ok(())
    }

    pub(super) fn cancel(&self, rollouts: &[RolloutId]) {
        let mut answers = locked(&self.answers);
        for rollout in rollouts {
            if let Some(cancelled) = answers.get_mut(rollout) {
                *cancelled = true;
            }
        }
    }

    fn cancelled(&self, rollout: RolloutId) -> bool {
        locked(&self.answers).get(&rollout).copied().unwrap_or(true)
    }

    fn close(&self, rollout: RolloutId) {
        locked(&self.answers).remove(&rollout);
    }
}

/// A delta, a failure, or `None` for the end: a channel that closes without it was left by a worker that broke.
type Message = Option<PortResult<Delta>>;

/// Answers that are drawn together.
#[derive(Debug)]
pub(super) struct Run {
    answers: Vec<Answer>,
    out: UnboundedSender<Message>,
}

impl Run {
    pub(super) fn new(requests: Vec<SampleRequest>) -> (Self, Deltas) {
        let (out, inbox) = unbounded();
        (Self { answers: requests.into_iter().map(Answer::new).collect(), out }, Deltas { inbox, over: false })
    }

    /// False where nobody listens any more.
    fn send(&self, delta: Option<Delta>) -> bool {
        delta.is_none_or(|delta| self.out.unbounded_send(Some(Ok(delta))).is_ok())
    }

    /// Forgets the answers for which `over` holds.
    fn close(&mut self, shared: &Shared, over: impl Fn(&Answer) -> bool) {
        self.answers.retain(|answer| {
            let over = over(answer);
            if over {
                shared.close(answer.id());
            }
            !over
        });
    }

    fn end(mut self, shared: &Shared, failure: Option<PortError>) {
        self.close(shared, |_| true);
        // Where nobody listens, nobody misses the end.
        if let Some(failure) = failure {
            let _ = self.out.unbounded_send(Some(Err(failure)));
        }
        let _ = self.out.unbounded_send(None);
    }
}

impl Qwen3Sampler {
    /// Draws until every answer is complete or cancelled. Gives back what a pause left unfinished.
    pub(super) fn run(&self, mut run: Run, shared: &Shared) -> Option<Run> {
        run.close(shared, |answer| shared.cancelled(answer.id()));
        if shared.paused.load(Ordering::SeqCst) && !run.answers.is_empty() {
            return Some(run);
        }
        if let Err(error) = self.draw(&mut run, shared) {
            run.end(shared, Some(error.into()));
            return None;
        }
        let mut listening = true;
        for at in 0..run.answers.len() {
            let rest = run.answers[at].pause(self);
            listening &= run.send(rest);
        }
        run.close(shared, |answer| !listening || answer.ended() || shared.cancelled(answer.id()));
        if run.answers.is_empty() {
            run.end(shared, None);
            return None;
        }
        Some(run)
    }

    fn draw(&self, run: &mut Run, shared: &Shared) -> Result<(), SamplerError> {
        let stamp = self.stamp();
        run.answers.iter_mut().for_each(|answer| answer.begin(&stamp));
        let requests: Vec<Request> = run.answers.iter().map(|answer| engine_request(&answer.asked)).collect();
        let (mut broken, mut listening) = (None, true);
        let on_token = |index: usize, drawn: Drawn| {
            match run.answers[index].push(self, drawn) {
                Ok(delta) => listening &= run.send(delta),
                Err(error) => broken = broken.take().or(Some(error)),
            }
            let stop = broken.is_some() || !listening || shared.paused.load(Ordering::SeqCst);
            if stop || shared.cancelled(run.answers[index].id()) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        generate(&self.model, &requests, self.listed, on_token)?;
        broken.map_or(Ok(()), Err)
    }
}

/// The deltas of a run. Dropping it stops the answers.
#[derive(Debug)]
pub(super) struct Deltas {
    inbox: UnboundedReceiver<Message>,
    over: bool,
}

impl Stream for Deltas {
    type Item = PortResult<Delta>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        let message = std::task::ready!(Pin::new(&mut self.inbox).poll_next(context));
        self.over = !matches!(message, Some(Some(_)));
        let broken = || Err(PortError::Failed("the sampler stopped before its answers ended".into()));
        Poll::Ready(match message {
            Some(item) => item,
            None => Some(broken()),
        })
    }
}
