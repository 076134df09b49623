//! The sampler behind its ports: a worker that owns it, and a few flags that reach it between two tokens.

use super::Qwen3Sampler;
use super::run::{Run, Shared};
use crate::worker::Worker;
use async_trait::async_trait;
use lockstep_core::ports::{
    Control, ControlCapabilities, DeltaStream, PortResult, PublishedWeights, SampleRequest, Sampler,
    SamplerCapabilities,
};
use lockstep_core::token::RolloutId;
use lockstep_core::version::Stamp;
use std::sync::Arc;

/// What the worker owns.
#[derive(Debug)]
struct Bench {
    sampler: Qwen3Sampler,
    /// Runs that a pause stopped.
    paused: Vec<Run>,
}

impl Bench {
    fn run(&mut self, run: Run, shared: &Shared) {
        self.paused.extend(self.sampler.run(run, shared));
    }
}

/// [`Sampler`] and [`Control`] over one [`Qwen3Sampler`]. The answers of one call are drawn together, calls one after the
/// other. A pause takes effect after the next token of every answer; when the sampler is resumed they go on from the
/// tokens they have, with the weights it then holds and a cache that those build anew. New weights without a pause wait
/// for the running call.
#[derive(Debug)]
pub struct SamplerPort {
    worker: Worker<Bench>,
    shared: Arc<Shared>,
    capabilities: SamplerCapabilities,
}

impl SamplerPort {
    /// Gives the sampler a thread of its own.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn new(sampler: Qwen3Sampler) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::new(sampler.stamp()));
        let capabilities = sampler.capabilities();
        let worker = Worker::start("lockstep-sampler", Bench { sampler, paused: Vec::new() })?;
        Ok(Self { worker, shared, capabilities })
    }
}

#[async_trait]
impl Sampler for SamplerPort {
    fn capabilities(&self) -> SamplerCapabilities {
        self.capabilities.clone()
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        let call = self.shared.open(&requests)?;
        let (run, deltas) = Run::new(call, requests);
        let shared = self.shared.clone();
        // Its outcome travels with the deltas.
        drop(self.worker.call(move |bench| bench.run(run, &shared)));
        Ok(Box::pin(deltas))
    }

    async fn cancel(&self, rollouts: &[RolloutId]) -> PortResult<()> {
        self.shared.cancel(rollouts);
        Ok(())
    }
}

#[async_trait]
impl Control for SamplerPort {
    fn capabilities(&self) -> ControlCapabilities {
        ControlCapabilities { digest: true }
    }

    async fn pause(&self) -> PortResult<()> {
        self.shared.pause(true);
        self.worker.call(|_| ()).await
    }

    async fn load_weights(&self, weights: &PublishedWeights) -> PortResult<Stamp> {
        let (weights, shared) = (weights.clone(), self.shared.clone());
        let loaded = self.worker.call(move |bench| {
            let stamp = bench.sampler.load_weights(&weights)?;
            shared.set_stamp(stamp.clone());
            Ok::<_, super::SamplerError>(stamp)
        });
        Ok(loaded.await??)
    }

    async fn resume(&self) -> PortResult<()> {
        self.shared.pause(false);
        let runs = self.worker.call(|bench| std::mem::take(&mut bench.paused)).await?;
        let shared = self.shared.clone();
        drop(self.worker.call(move |bench| runs.into_iter().for_each(|run| bench.run(run, &shared))));
        Ok(())
    }

    async fn version(&self) -> PortResult<Stamp> {
        Ok(self.shared.stamp())
    }
}
