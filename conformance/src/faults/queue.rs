//! Faults of batch membership: batches that depend on length, age or reward.

use crate::{check::Fault, mix::keyed, target::Target};
use async_trait::async_trait;
use lockstep_core::ports::{PortResult, Queue, QueueEntry};
use std::sync::Arc;

/// Fills batches with whatever finishes first.
pub const FIRST_FINISHED: Fault = Fault {
    id: "first-finished",
    does: "fills each batch with the answers that finish first and leaves the longest for later",
    break_target: |target| queued(target, first_finished),
};

/// Drops what has waited too long.
pub const AGED_OUT: Fault = Fault {
    id: "aged-out",
    does: "drops the first plan because its weights are too old by the time it is complete",
    break_target: |target| queued(target, |mut batches| batches.split_off(1.min(batches.len() - 1))),
};

/// Drops groups after looking at their rewards.
pub const FILTERED: Fault = Fault {
    id: "filtered",
    does: "drops about a third of the rollouts after looking at their rewards",
    break_target: |target| queued(target, |batches| each(batches, |batch| without(&batch, dropped))),
};

/// Drops the groups whose rewards are all the same.
pub const ZERO_VARIANCE: Fault = Fault {
    id: "zero-variance",
    does: "drops a run of answers to one prompt because their rewards are all the same",
    break_target: |target| {
        queued(target, |batches| each(batches, |mut batch| batch.split_off(batch.len().div_ceil(2))))
    },
};

/// Samples again what could have been resumed.
pub const RESAMPLED: Fault = Fault {
    id: "resampled",
    does: "samples the longest answer again after a failure, from its first token, and trains on the shorter one it gets",
    break_target: |target| queued(target, |batches| each(batches, resampled)),
};

/// Trains on some answers twice.
pub const TRAINED_TWICE: Fault = Fault {
    id: "trained-twice",
    does: "fills a batch up with a second copy of one of its rollouts",
    break_target: |target| queued(target, |batches| each(batches, twice)),
};

/// Cuts the longest answers.
pub const CUT_SHORT: Fault = Fault {
    id: "cut-short",
    does: "trains on the longest answer without its last token",
    break_target: |target| queued(target, |batches| each(batches, cut_short)),
};

type Batches = Vec<Vec<QueueEntry>>;
type Rebatch = fn(Batches) -> Batches;

struct Rebatched {
    inner: Arc<dyn Queue>,
    rebatch: Rebatch,
}

#[async_trait]
impl Queue for Rebatched {
    async fn generated(&self) -> PortResult<Vec<QueueEntry>> {
        self.inner.generated().await
    }

    async fn consumed(&self) -> PortResult<Batches> {
        let consumed = self.inner.consumed().await?;
        Ok(if consumed.is_empty() { consumed } else { (self.rebatch)(consumed) })
    }
}

fn queued(mut target: Target, rebatch: Rebatch) -> Target {
    target.queue = target.queue.map(|inner| Arc::new(Rebatched { inner, rebatch }) as _);
    target
}

fn each(batches: Batches, change: impl Fn(Vec<QueueEntry>) -> Vec<QueueEntry>) -> Batches {
    batches.into_iter().map(change).collect()
}

/// Two plans in flight at a time; the shorter half of what is there makes the next batch.
fn first_finished(batches: Batches) -> Batches {
    let mut waiting: Vec<QueueEntry> = Vec::new();
    let mut out = Vec::new();
    let sizes: Vec<usize> = batches.iter().map(Vec::len).collect();
    let mut arriving = batches.into_iter();
    waiting.extend(arriving.next().into_iter().flatten());
    for size in sizes {
        waiting.extend(arriving.next().into_iter().flatten());
        waiting.sort_by_key(|entry| entry.length);
        let rest = waiting.split_off(size.min(waiting.len()));
        out.push(std::mem::replace(&mut waiting, rest));
    }
    out
}

fn without(batch: &[QueueEntry], dropped: impl Fn(&QueueEntry) -> bool) -> Vec<QueueEntry> {
    let kept: Vec<QueueEntry> = batch.iter().copied().filter(|entry| !dropped(entry)).collect();
    if kept.len() < batch.len() { kept } else { batch[1..].to_vec() }
}

fn dropped(entry: &QueueEntry) -> bool {
    keyed(&[entry.rollout.plan, u64::from(entry.rollout.index)]).is_multiple_of(3)
}

fn twice(mut batch: Vec<QueueEntry>) -> Vec<QueueEntry> {
    batch.extend(batch.first().copied());
    batch
}

fn resampled(mut batch: Vec<QueueEntry>) -> Vec<QueueEntry> {
    if let Some(longest) = batch.iter_mut().max_by_key(|entry| entry.length) {
        longest.length /= 2;
    }
    batch
}

fn cut_short(mut batch: Vec<QueueEntry>) -> Vec<QueueEntry> {
    if let Some(longest) = batch.iter_mut().max_by_key(|entry| entry.length) {
        longest.length = longest.length.saturating_sub(1);
    }
    batch
}
