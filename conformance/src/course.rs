//! A short training, run several ways from one start, and how far each ends from on-policy training.

use async_trait::async_trait;
use lockstep_core::ports::PortResult;

/// A way to train.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// As the pair is wrapped: corrected, with the sampler synchronised when the correction asks for it.
    Wrapped,
    /// Without correction, the sampler left behind.
    Plain,
    /// Not at all: how far away standing still is.
    Still,
}

/// The distance after some updates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Look {
    /// Updates so far.
    pub step: u64,
    /// Divergence from on-policy runs, in multiples of that between two of them.
    pub floors: f64,
}

/// Trains a pair anew, each time from the same start.
#[async_trait]
pub trait Course: Send + Sync {
    /// The looks of one way, in order.
    async fn looks(&self, way: Way) -> PortResult<Vec<Look>>;
}
