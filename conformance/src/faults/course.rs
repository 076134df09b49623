//! Faults of a whole training.

use crate::{
    check::Fault,
    course::{Course, Look, Way},
};
use async_trait::async_trait;
use lockstep_core::ports::PortResult;
use std::sync::Arc;

/// Trains without the correction it says it has.
pub const UNCORRECTED: Fault = Fault {
    id: "uncorrected",
    does: "trains without the correction, on a sampler that is left behind",
    break_target: |mut target| {
        target.course = target.course.map(|inner| Arc::new(Uncorrected { inner }) as _);
        target
    },
};

struct Uncorrected {
    inner: Arc<dyn Course>,
}

#[async_trait]
impl Course for Uncorrected {
    async fn looks(&self, way: Way) -> PortResult<Vec<Look>> {
        self.inner.looks(if way == Way::Wrapped { Way::Plain } else { way }).await
    }
}
