//! One thread that owns a value and does what it is told, in order. Its stack is large because candle's backward recurses
//! once for every node of the graph. Knows nothing of models.

use futures_channel::oneshot;
use lockstep_core::ports::{PortError, PortResult};
use std::any::Any;
use std::future::Future;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle, current};

/// Stack of the thread, in bytes.
const STACK: usize = 64 << 20;

type Job<T> = Box<dyn FnOnce(&mut T) -> ControlFlow<()> + Send>;

/// A thread that owns a `T`. Dropping it waits for the jobs that were given to it.
#[derive(Debug)]
pub struct Worker<T> {
    name: String,
    jobs: Option<mpsc::Sender<Job<T>>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Worker<T> {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(name: &str, mut value: T) -> std::io::Result<Self> {
        let (jobs, inbox) = mpsc::channel::<Job<T>>();
        let run = move || while inbox.recv().is_ok_and(|job| job(&mut value).is_continue()) {};
        let thread = Builder::new().name(name.into()).stack_size(STACK).spawn(run)?;
        Ok(Self { name: name.into(), jobs: Some(jobs), thread: Some(thread) })
    }

    /// Queues `job`; the future gives its result. The job runs even where nobody waits for it.
    ///
    /// # Errors
    /// [`PortError::Failed`] when the job panics, which stops the worker, or when the worker has stopped already.
    pub fn call<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> impl Future<Output = PortResult<R>> + Send + 'static {
        let (answer, result) = oneshot::channel();
        let name = self.name.clone();
        let stopped = PortError::Failed(format!("worker {name} has stopped"));
        let job: Job<T> = Box::new(move |value| {
            let result = catch_unwind(AssertUnwindSafe(|| job(value)));
            let flow = if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
            let told = result.map_err(|panic| PortError::Failed(format!("worker {name} panicked: {}", said(&*panic))));
            // A caller that no longer waits does not want the result.
            let _ = answer.send(told);
            flow
        });
        // A job that cannot be sent is dropped with its end of the channel, so the receiver hears of it.
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
        async move { result.await.unwrap_or(Err(stopped)) }
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.jobs = None;
        let own = |thread: &JoinHandle<()>| thread.thread().id() == current().id();
        if let Some(thread) = self.thread.take().filter(|thread| !own(thread)) {
            // Panics of jobs were told to their callers.
            let _ = thread.join();
        }
    }
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
