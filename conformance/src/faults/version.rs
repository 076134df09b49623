//! Faults of weight versions.

use super::{
    blended::{When, blending},
    report::noisy,
    rows::{descending, draw, of_weights},
    tampered::{answering, reporting},
};
use crate::{check::Fault, mix::unit, target::Target};
use async_trait::async_trait;
use lockstep_core::{
    Delta, Evidence, Stamp, Support, TokenId, WeightVersion,
    ports::{Control, ControlCapabilities, PortError, PortResult, PublishedWeights},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

/// Says the new version, keeps the old weights.
pub const LABEL_WITHOUT_LOAD: Fault = Fault {
    id: "label-without-load",
    does: "takes the new label and keeps the old weights",
    break_target: label_without_load,
};

/// Loads the weights, keeps the old label.
pub const STALE_LABEL: Fault = Fault {
    id: "stale-label",
    does: "loads the new weights and keeps labelling tokens with the version of its first one",
    break_target: |target| {
        let first = OnceLock::<Stamp>::new();
        answering(target, move |delta, _| {
            let stamp = first.get_or_init(|| delta.stamp.clone()).clone();
            Ok(Delta { stamp, ..delta })
        })
    },
};

/// Says nothing.
pub const UNDECLARED: Fault = Fault {
    id: "undeclared",
    does: "does not say which weights drew a token",
    break_target: |target| answering(target, |delta, _| Ok(Delta { stamp: Stamp::undeclared(), ..delta })),
};

/// Updates the body and not the head.
pub const HEAD_NOT_UPDATED: Fault = Fault {
    id: "head-not-updated",
    does: "loads the new weights but for the head, which is tied to the embedding: most of the change is missing",
    break_target: |target| blending(target, When::AfterTheFirst, 0.7),
};

/// Changes under one label.
pub const SILENT_UPDATE: Fault = Fault {
    id: "silent-update",
    does: "changes its weights between two calls and keeps the label",
    break_target: |target| noisy(target, |at| if at.call.before == 0 { 0.0 } else { 1.0 }),
};

/// Changes the label and nothing else.
pub const LABEL_DRIFTS: Fault = Fault {
    id: "label-drifts",
    does: "counts its version up with every call",
    break_target: |target| {
        answering(target, |delta, call| {
            let Some(version) = delta.stamp.version() else { return Ok(delta) };
            let version = WeightVersion { step: version.step + call.before, ..version };
            let stamp = Stamp::declared(version, Evidence::Label(version.to_string()));
            Ok(Delta { stamp: stamp.unwrap_or_else(Stamp::undeclared), ..delta })
        })
    },
};

/// Answers from the prefix cache of older weights.
pub const STALE_PREFIX: Fault = Fault {
    id: "stale-prefix",
    does: "answers a prompt it has seen from the cache of the weights that saw it",
    break_target: |target| {
        let cache = Mutex::new(BTreeMap::<Vec<TokenId>, Support>::new());
        reporting(target, move |support, at| {
            if at.row > 0 || !support.is_exact() {
                return Ok(support.clone());
            }
            let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
            let prompt = at.call.request.request.prompt.clone();
            let entries = descending(cache.entry(prompt).or_insert_with(|| support.clone()));
            let token = draw(&entries, unit(&at.key()));
            token.map_or_else(|| Ok(support.clone()), |token| of_weights(token, &entries))
        })
    },
};

/// The stamp a lying control plane gives out, once it has been told to load.
type Claim = Arc<Mutex<Option<Stamp>>>;

fn label_without_load(target: Target) -> Target {
    let claim = Claim::default();
    let said = claim.clone();
    let mut target = answering(target, move |delta, _| {
        let claimed = said.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Delta { stamp: claimed.unwrap_or(delta.stamp), ..delta })
    });
    target.control = target.control.map(|inner| Arc::new(Liar { inner, claim }) as _);
    target
}

struct Liar {
    inner: Arc<dyn Control>,
    claim: Claim,
}

#[async_trait]
impl Control for Liar {
    fn capabilities(&self) -> ControlCapabilities {
        self.inner.capabilities()
    }

    async fn pause(&self) -> PortResult<()> {
        self.inner.pause().await
    }

    async fn load_weights(&self, weights: &PublishedWeights) -> PortResult<Stamp> {
        let label = Evidence::Label(weights.version.to_string());
        let stamp = Stamp::declared(weights.version, label);
        let stamp = stamp.ok_or_else(|| PortError::Failed(format!("no label for {}", weights.version)))?;
        *self.claim.lock().unwrap_or_else(PoisonError::into_inner) = Some(stamp.clone());
        Ok(stamp)
    }

    async fn resume(&self) -> PortResult<()> {
        self.inner.resume().await
    }

    async fn version(&self) -> PortResult<Stamp> {
        let claimed = self.claim.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match claimed {
            Some(stamp) => Ok(stamp),
            None => self.inner.version().await,
        }
    }
}
