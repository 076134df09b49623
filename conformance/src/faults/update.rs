//! Faults of an update in the middle of an answer.

use super::{
    blended::{When, blending},
    tampered::answering,
};
use crate::{check::Fault, target::Target};
use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use lockstep_core::{
    Delta, RolloutId, Stamp,
    delta::KvHistory,
    ports::{DeltaStream, PortResult, SampleRequest, Sampler, SamplerCapabilities},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Labels an answer when it is admitted.
pub const ADMISSION_LABEL: Fault = Fault {
    id: "admission-label",
    does: "labels every token of an answer with the version that was loaded when it began",
    break_target: |target| {
        relabelling(target, |stamps, stamp| {
            let first = stamps.first().cloned().unwrap_or(stamp);
            (first.clone(), vec![first])
        })
    },
};

/// Labels a run of tokens when it is handed out.
pub const RACING_LABEL: Fault = Fault {
    id: "racing-label",
    does: "reads the version when tokens are handed out, not when they are drawn: those on their way get the new label",
    break_target: |mut target| {
        target.sampler = target.sampler.map(|inner| Arc::new(Racing { inner }) as _);
        target
    },
};

/// Notices an update late.
pub const BOUNDARY_LATE: Fault = Fault {
    id: "boundary-late",
    does: "labels the first tokens that new weights draw with the old version",
    break_target: |target| {
        relabelling(target, |stamps, stamp| {
            let before = stamps.last().cloned().unwrap_or_else(|| stamp.clone());
            (before, vec![stamp])
        })
    },
};

/// Goes on with the cache of the old weights.
pub const STALE_KV: Fault = Fault {
    id: "stale-kv",
    does: "goes on after an update with the keys and values of the old weights, and does not say so",
    break_target: |target| blending(target, When::WithinAnAnswer, 0.5),
};

/// The stamp a delta gets, and what is remembered, from what was remembered and its own stamp.
type Relabel = fn(&[Stamp], Stamp) -> (Stamp, Vec<Stamp>);

fn relabelling(target: Target, relabel: Relabel) -> Target {
    let seen = Mutex::new(BTreeMap::<RolloutId, Vec<Stamp>>::new());
    answering(target, move |delta, _| {
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let own = seen.entry(delta.rollout).or_default();
        let (stamp, kept) = relabel(own, delta.stamp.clone());
        *own = kept;
        Ok(Delta { stamp, kv: KvHistory::Fresh, ..delta })
    })
}

struct Racing {
    inner: Arc<dyn Sampler>,
}

#[async_trait]
impl Sampler for Racing {
    fn capabilities(&self) -> SamplerCapabilities {
        self.inner.capabilities()
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        let inner = self.inner.generate(requests).await?;
        let mut waiting = BTreeMap::<RolloutId, Delta>::new();
        let handed_out = move |delta: PortResult<Delta>| {
            let out = match delta {
                Ok(delta) => next(&mut waiting, delta).into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            };
            stream::iter(out)
        };
        Ok(Box::pin(inner.flat_map(handed_out)))
    }

    async fn cancel(&self, rollouts: &[RolloutId]) -> PortResult<()> {
        self.inner.cancel(rollouts).await
    }
}

/// The delta that waited, with the stamp of the one that came; the last one does not wait.
fn next(waiting: &mut BTreeMap<RolloutId, Delta>, delta: Delta) -> Vec<Delta> {
    let (stamp, kv) = (delta.stamp.clone(), delta.kv);
    let mut out: Vec<Delta> =
        waiting.remove(&delta.rollout).map(|earlier| Delta { stamp, kv, ..earlier }).into_iter().collect();
    if delta.finish.is_some() {
        out.push(delta);
    } else {
        waiting.insert(delta.rollout, delta);
    }
    out
}
