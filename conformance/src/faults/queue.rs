//! Faults of batch membership: batches that depend on length, age or reward.

use crate::{check::Fault, mix::keyed, target::Target};
use async_trait::async_trait;
use lockstep_core::ports::{Outcome, Outcomes, PortResult, Queue, QueueEntry};
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

/// Cancels a group for one member.
pub const GROUP_CANCELLED: Fault = Fault {
    id: "group-cancelled",
    does: "cancels the whole group of the answer that takes longest",
    break_target: |target| queued(target, |batches| each(batches, group_cancelled)),
};

/// Samples interrupted answers again.
pub const RESAMPLED: Fault = Fault {
    id: "resampled",
    does: "samples the longest answer again after an interruption: a shorter one stands in its place",
    break_target: |target| {
        queued(target, |batches| {
            each(batches, |batch| with_longest(batch, |length| length.div_ceil(2).min(length - 1)))
        })
    },
};

/// Drops groups whose answers have one reward.
pub const ZERO_VARIANCE_DROPPED: Fault = Fault {
    id: "zero-variance-dropped",
    does: "drops groups whose answers all have the same reward",
    break_target: |target| {
        outcomes(target, |batch| {
            let level = |outcome: &Outcome| {
                let group = batch.iter().filter(|other| other.group == outcome.group);
                group.clone().all(|other| other.reward == outcome.reward)
            };
            remaining(&batch, level)
        })
    },
};

/// Drops answers that were cut.
pub const OVERLONG_FILTERED: Fault = Fault {
    id: "overlong-filtered",
    does: "leaves out the answers that the token limit cut",
    break_target: |target| outcomes(target, |batch| remaining(&batch, |outcome| outcome.cut)),
};

/// Drops failures.
pub const FAILURES_DROPPED: Fault = Fault {
    id: "failures-dropped",
    does: "leaves out the answers without a reward",
    break_target: |target| outcomes(target, |batch| remaining(&batch, |outcome| outcome.reward <= 0.0)),
};

/// Keeps the better half.
pub const BEST_KEPT: Fault = Fault {
    id: "best-kept",
    does: "trains on the better half of the answers",
    break_target: |target| {
        outcomes(target, |mut batch| {
            batch.sort_by(|a, b| b.reward.total_cmp(&a.reward));
            batch.truncate(batch.len() / 2);
            batch
        })
    },
};

type Batches = Vec<Vec<QueueEntry>>;
type Rebatch = fn(Batches) -> Batches;
type Refilter = fn(Vec<Outcome>) -> Vec<Outcome>;

struct Rebatched {
    inner: Arc<dyn Queue>,
    rebatch: Rebatch,
    refilter: Refilter,
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

    async fn outcomes(&self) -> PortResult<Outcomes> {
        let Outcomes { generated, trained } = self.inner.outcomes().await?;
        Ok(Outcomes { generated, trained: trained.into_iter().map(self.refilter).collect() })
    }
}

fn queued(target: Target, rebatch: Rebatch) -> Target {
    wrapped(target, rebatch, |batch| batch)
}

fn outcomes(target: Target, refilter: Refilter) -> Target {
    wrapped(target, |batches| batches, refilter)
}

fn wrapped(mut target: Target, rebatch: Rebatch, refilter: Refilter) -> Target {
    target.queue = target.queue.map(|inner| Arc::new(Rebatched { inner, rebatch, refilter }) as _);
    target
}

/// Without the dropped ones; where there are none, without the first.
fn remaining(batch: &[Outcome], dropped: impl Fn(&Outcome) -> bool) -> Vec<Outcome> {
    let kept: Vec<Outcome> = batch.iter().copied().filter(|outcome| !dropped(outcome)).collect();
    if kept.len() < batch.len() { kept } else { batch[1..].to_vec() }
}

/// Four entries around the longest one.
fn group_cancelled(batch: Vec<QueueEntry>) -> Vec<QueueEntry> {
    let longest = batch.iter().enumerate().max_by_key(|(_, entry)| entry.length).map_or(0, |(at, _)| at / 4);
    batch.iter().enumerate().filter(|(at, _)| at / 4 != longest).map(|(_, entry)| *entry).collect()
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

fn cut_short(batch: Vec<QueueEntry>) -> Vec<QueueEntry> {
    with_longest(batch, |length| length.saturating_sub(1))
}

fn with_longest(mut batch: Vec<QueueEntry>, change: impl Fn(u32) -> u32) -> Vec<QueueEntry> {
    if let Some(longest) = batch.iter_mut().max_by_key(|entry| entry.length) {
        longest.length = change(longest.length);
    }
    batch
}
