//! Faults of weight versions.

use super::mapped::Mapped;
use crate::{check::Fault, target::Target};
use async_trait::async_trait;
use lockstep_core::{
    Delta, Evidence, Stamp,
    ports::{Control, ControlCapabilities, PortError, PortResult, PublishedWeights},
};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

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
    break_target: |mut target| {
        let first = OnceLock::<Stamp>::new();
        let relabel = move |delta: Delta| {
            let stamp = first.get_or_init(|| delta.stamp.clone()).clone();
            Ok(Delta { stamp, ..delta })
        };
        target.sampler = target.sampler.map(|inner| Mapped::around(inner, Arc::new(relabel)));
        target
    },
};

/// Says nothing.
pub const UNDECLARED: Fault = Fault {
    id: "undeclared",
    does: "does not say which weights drew a token",
    break_target: |mut target| {
        let silence = |delta: Delta| Ok(Delta { stamp: Stamp::undeclared(), ..delta });
        target.sampler = target.sampler.map(|inner| Mapped::around(inner, Arc::new(silence)));
        target
    },
};

/// The stamp a lying control plane gives out, once it has been told to load.
type Claim = Arc<Mutex<Option<Stamp>>>;

fn label_without_load(mut target: Target) -> Target {
    let claim = Claim::default();
    let said = claim.clone();
    let relabel = move |delta: Delta| {
        let claimed = said.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Delta { stamp: claimed.unwrap_or(delta.stamp), ..delta })
    };
    target.sampler = target.sampler.map(|inner| Mapped::around(inner, Arc::new(relabel)));
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
