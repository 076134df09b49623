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
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

/// What callers change while the worker draws.
#[derive(Debug)]
pub(super) struct Shared {
    paused: AtomicBool,
    /// Answers that are being drawn, or wait to be.
    answers: Mutex<BTreeMap<RolloutId, Opened>>,
    /// Calls so far.
    calls: AtomicU64,
    stamp: Mutex<Stamp>,
}

/// An answer that is being drawn: by which call, and whether it was cancelled.
#[derive(Debug, Clone, Copy)]
struct Opened {
    call: u64,
    cancelled: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(stamp: Stamp) -> Self {
        let (paused, calls) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { paused, answers: Mutex::default(), calls, stamp: Mutex::new(stamp) }
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

    /// Notes all of them under a number for their call, or none where one is being answered already. One that was cancelled may
    /// be asked for again before the call that drew it has noticed.
    pub(super) fn open(&self, requests: &[SampleRequest]) -> PortResult<u64> {
        let mut answers = locked(&self.answers);
        let mut own = BTreeSet::new();
        let running = |id: &RolloutId| answers.get(id).is_some_and(|opened| !opened.cancelled);
        let mut ids = requests.iter().map(|asked| asked.request.id);
        if let Some(id) = ids.find(|id| running(id) || !own.insert(*id)) {
            return Err(PortError::Refused(format!("rollout {id} is being answered already")));
        }
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        answers.extend(own.into_iter().map(|id| (id, Opened { call, cancelled: false })));
        Ok(call)
    }

    pub(super) fn cancel(&self, rollouts: &[RolloutId]) {
        let mut answers = locked(&self.answers);
        for rollout in rollouts {
            if let Some(opened) = answers.get_mut(rollout) {
                opened.cancelled = true;
            }
        }
    }

    /// True where another call has the answer now, too.
    fn cancelled(&self, rollout: RolloutId, call: u64) -> bool {
        let own = locked(&self.answers).get(&rollout).copied().filter(|opened| opened.call == call);
        own.is_none_or(|opened| opened.cancelled)
    }

    fn close(&self, rollout: RolloutId, call: u64) {
        let mut answers = locked(&self.answers);
        if answers.get(&rollout).is_some_and(|opened| opened.call == call) {
            answers.remove(&rollout);
        }
    }
}

/// A delta, a failure, or `None` for the end: a channel that closes without it was left by a worker that broke.
type Message = Option<PortResult<Delta>>;

/// Answers that are drawn together.
#[derive(Debug)]
pub(super) struct Run {
    call: u64,
    answers: Vec<Answer>,
    out: UnboundedSender<Message>,
}

impl Run {
    /// `call` is the number that [`Shared::open`] gave.
    pub(super) fn new(call: u64, requests: Vec<SampleRequest>) -> (Self, Deltas) {
        let (out, inbox) = unbounded();
        (Self { call, answers: requests.into_iter().map(Answer::new).collect(), out }, Deltas { inbox, over: false })
    }

    /// False where nobody listens any more.
    fn send(&self, delta: Option<Delta>) -> bool {
        delta.is_none_or(|delta| self.out.unbounded_send(Some(Ok(delta))).is_ok())
    }

    /// Forgets the answers for which `over` holds.
    fn close(&mut self, shared: &Shared, over: impl Fn(&Answer) -> bool) {
        let call = self.call;
        self.answers.retain(|answer| {
            let over = over(answer);
            if over {
                shared.close(answer.id(), call);
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
        let (call, deaf) = (run.call, run.out.is_closed());
        run.close(shared, |answer| deaf || shared.cancelled(answer.id(), call));
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
        run.close(shared, |answer| !listening || answer.ended() || shared.cancelled(answer.id(), call));
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
            if stop || shared.cancelled(run.answers[index].id(), run.call) {
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
