//! The gateway as a sampler of the wire contract: whoever draws from a sampler draws through it, and the conformance suite
//! judges it as it judges an engine. What is drawn so is of no plan; it is checked and written to the ledger like all else,
//! and carries the caller's names again on its way back.

use super::{
    Gateway,
    draw::{self, Order},
    refusal::Refusal,
    updates::CacheEffect,
};
use async_trait::async_trait;
use axum::http::StatusCode;
use futures_util::{StreamExt, stream};
use lockstep_core::{
    Delta, RolloutId, SamplingParams, Stamp,
    ports::{
        Control, ControlCapabilities, DeltaStream, PortError, PortResult, PublishedWeights, SampleRequest, Sampler,
        SamplerCapabilities,
    },
    rollout::Request,
    sampling::Limits,
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

type Running = HashMap<RolloutId, Arc<Notify>>;

/// Draws through a gateway.
#[derive(Debug)]
pub(super) struct Through {
    gateway: Arc<Gateway>,
    running: Arc<Mutex<Running>>,
}

/// An answer under the name its caller gave it.
struct Named {
    id: RolloutId,
    /// Tokens the caller had.
    resumed: u32,
    answer: draw::Answer,
    halt: Arc<Notify>,
    running: Arc<Mutex<Running>>,
}

impl Drop for Named {
    fn drop(&mut self) {
        let mut running = lock(&self.running);
        if running.get(&self.id).is_some_and(|other| Arc::ptr_eq(other, &self.halt)) {
            running.remove(&self.id);
        }
    }
}

fn lock(running: &Mutex<Running>) -> MutexGuard<'_, Running> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Named {
    async fn next(&mut self) -> Option<PortResult<Delta>> {
        let delta = tokio::select! {
            delta = self.answer.recv() => delta?,
            () = self.halt.notified() => return None,
        };
        Some(match delta {
            Ok(delta) => Ok(Delta { rollout: self.id, start: delta.start + self.resumed, ..(*delta).clone() }),
            Err(error) => Err(port_error(&Refusal::from(error))),
        })
    }
}

fn port_error(refusal: &Refusal) -> PortError {
    let told = refusal.to_string();
    match refusal.status() {
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => PortError::Unavailable(told),
        status if status.is_server_error() => PortError::Failed(told),
        _ => PortError::Refused(told),
    }
}

/// What is left to draw, from the tokens that are there: they were not drawn here, so they are a prompt here.
fn left(asked: SampleRequest) -> Result<Request, Refusal> {
    let SampleRequest { request, resumed } = asked;
    let (params, limits) = (&request.params, request.params.limits());
    let (drawn, limit) = (resumed.len() as u32, limits.max_new_tokens);
    let max_new_tokens = limit.saturating_sub(drawn);
    if max_new_tokens == 0 {
        let message = format!("rollout {} has {drawn} of {limit} tokens: nothing is left to draw", request.id);
        return Err(Refusal::request(message));
    }
    let limits = Limits { stop: limits.stop.clone(), max_new_tokens };
    // Another seed than that of the tokens which are there, so that what follows does not repeat them.
    let seed = params.for_attempt(drawn + 1).seed();
    let params = SamplingParams::new(params.temperature(), *params.truncation(), limits, seed);
    let params = params.map_err(|error| Refusal::request(error.to_string()))?;
    Ok(Request { prompt: [request.prompt, resumed].concat(), params, ..request })
}

impl Through {
    pub(super) fn new(gateway: Arc<Gateway>) -> Self {
        Self { gateway, running: Arc::default() }
    }

    async fn begin(&self, asked: SampleRequest) -> Result<Named, Refusal> {
        let gateway = &self.gateway;
        let resumed = asked.resumed.len() as u32;
        let Request { id, prompt, params, .. } = left(asked)?;
        let vocabulary = gateway.pool.vocabulary();
        if let Some(token) = prompt.iter().find(|token| token.0 >= vocabulary) {
            return Err(Refusal::request(format!("token {token} is outside the vocabulary of {vocabulary}")));
        }
        let permit = gateway.in_flight.clone().try_acquire_owned();
        let permit = Some(permit.map_err(|_| Refusal::busy(gateway.options.in_flight))?);
        let orders = gateway.open_loose(&[prompt], |_| Ok(params.clone()), 1).await?;
        let order = orders.into_iter().next().ok_or_else(|| Refusal::internal("a plan without a request"))?;
        let order = Order { permit, ..order };
        let (halt, running) = (Arc::new(Notify::new()), self.running.clone());
        lock(&running).insert(id, halt.clone());
        Ok(Named { id, resumed, answer: draw::start(gateway.clone(), order), halt, running })
    }
}

/// The control planes of all replicas, by their names.
///
/// # Errors
/// A replica without one.
pub(super) fn controls(gateway: &Gateway) -> PortResult<Vec<(&str, Arc<dyn Control>)>> {
    let control = |replica: &'_ Arc<super::pool::Replica>| replica.control().cloned();
    let replicas = gateway.pool.replicas().iter();
    let found = replicas.map(|replica| {
        let name = replica.name();
        let none = || PortError::Refused(format!("engine {name} has no control plane of its own; use its routes"));
        Ok((name, control(replica).ok_or_else(none)?))
    });
    found.collect()
}

#[async_trait]
impl Sampler for Through {
    fn capabilities(&self) -> SamplerCapabilities {
        let first = self.gateway.pool.replicas().first();
        first.map_or_else(|| unreachable!("a pool has a replica"), |first| first.capabilities().clone())
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            let named = self.begin(request).await.map_err(|refusal| port_error(&refusal))?;
            answers.push(
                stream::unfold(named, |mut named| async { named.next().await.map(|delta| (delta, named)) }).boxed(),
            );
        }
        Ok(stream::select_all(answers).boxed())
    }

    async fn cancel(&self, rollouts: &[RolloutId]) -> PortResult<()> {
        let running = lock(&self.running);
        rollouts.iter().filter_map(|id| running.get(id)).for_each(|halt| halt.notify_one());
        Ok(())
    }
}

#[async_trait]
impl Control for Through {
    fn capabilities(&self) -> ControlCapabilities {
        let replicas = self.gateway.pool.replicas().iter();
        let digest = |replica: &Arc<super::pool::Replica>| {
            replica.control().is_some_and(|control| control.capabilities().digest)
        };
        ControlCapabilities { digest: replicas.clone().all(digest) }
    }

    async fn pause(&self) -> PortResult<()> {
        let controls = controls(&self.gateway)?;
        self.gateway.pool.pause(true);
        for (_, control) in controls {
            control.pause().await?;
        }
        Ok(())
    }

    async fn load_weights(&self, weights: &PublishedWeights) -> PortResult<Stamp> {
        let updates = &self.gateway.updates;
        updates.announce(CacheEffect::Recomputed);
        let mut stamp = Stamp::undeclared();
        for (_, control) in controls(&self.gateway)? {
            stamp = control.load_weights(weights).await?;
        }
        updates.updated(CacheEffect::Recomputed, true);
        Ok(stamp)
    }

    async fn resume(&self) -> PortResult<()> {
        for (_, control) in controls(&self.gateway)? {
            control.resume().await?;
        }
        self.gateway.updates.resumed();
        self.gateway.pool.pause(false);
        Ok(())
    }

    async fn version(&self) -> PortResult<Stamp> {
        let controls = controls(&self.gateway)?;
        let (_, first) = controls.first().ok_or_else(|| PortError::Unavailable("no engine".to_owned()))?;
        first.version().await
    }
}
