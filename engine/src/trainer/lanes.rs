//! Passes of a small model side by side: its matrices are too small to be worth cutting up among threads. Each lane is a
//! pool of one thread, so that what runs in it does not share its work with the others.

use crate::train_error::TrainResult;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::panic::resume_unwind;
use std::thread::scope;

/// Above this many floats a model's passes run one after the other, each on all threads: every lane has a gradient of its
/// own.
const SMALL: usize = 1 << 24;

/// Stack of a lane, in bytes: backward recurses once for every node of the graph.
const STACK: usize = 64 << 20;

/// Where passes run.
#[derive(Debug)]
pub(super) struct Lanes(Vec<ThreadPool>);

impl Lanes {
    /// No lanes: a card runs one pass after the other.
    pub(super) fn one() -> Self {
        Self(Vec::new())
    }

    /// One lane a thread for a small model, none for a large one.
    pub(super) fn new(floats: usize) -> Self {
        let threads = if floats <= SMALL { rayon::current_num_threads() } else { 1 };
        let lane = |_| ThreadPoolBuilder::new().num_threads(1).stack_size(STACK).build().ok();
        Self(if threads > 1 { (0..threads).filter_map(lane).collect() } else { Vec::new() })
    }

    /// `f` of every item, and `take` of the results in order; no more results are held than there are lanes. The error is
    /// the first one.
    pub(super) fn run<I: Copy + Send + Sync, R: Send>(
        &self,
        items: &[I],
        f: impl Fn(I) -> TrainResult<R> + Sync,
        mut take: impl FnMut(R) -> TrainResult<()>,
    ) -> TrainResult<()> {
        if self.0.len() < 2 || items.len() < 2 {
            return items.iter().try_for_each(|item| take(f(*item)?));
        }
        for wave in items.chunks(self.0.len()) {
            let results: Vec<TrainResult<R>> = scope(|scope| {
                let lane = |(lane, item): (_, &I)| {
                    let (lane, item, f): (&ThreadPool, I, _) = (lane, *item, &f);
                    scope.spawn(move || lane.install(|| f(item)))
                };
                let running: Vec<_> = self.0.iter().zip(wave).map(lane).collect();
                running.into_iter().map(|lane| lane.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
            });
            results.into_iter().try_for_each(|result| take(result?))?;
        }
        Ok(())
    }
}
