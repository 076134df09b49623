//! The gateway's side of the wire contract: what a trainer asks over gRPC.

use super::{Gateway, refusal::Refusal, sampler::controls, updates::CacheEffect};
use crate::{
    config::Stage,
    dispatch::{Consumer, Opened, Sealed},
    ledger::{Record, ResyncRecord, TrainedOn},
    resync,
    wire::{batch, proto, required},
};
use axum::http::StatusCode;
use futures_core::Stream;
use lockstep_core::{
    Stamp, WeightVersion,
    ports::{PortError, PublishedWeights, StepReport},
    reward::Outcome,
};
use std::{
    pin::Pin,
    sync::{Arc, PoisonError},
};
use tonic::{Request, Response, Status};

/// The service `Middleware`.
#[derive(Debug, Clone)]
pub(super) struct Service {
    gateway: Arc<Gateway>,
}

impl Service {
    pub(super) fn new(gateway: Arc<Gateway>) -> Self {
        Self { gateway }
    }

    /// A trainer that pulls, where there is something to pull.
    fn consumer(&self, id: proto::ConsumerId) -> Result<Consumer, Refusal> {
        if self.gateway.pull.is_none() {
            return Err(Refusal::conflict(NO_PROMPTS));
        }
        Ok(Consumer { name: id.consumer, rank: id.rank, ranks: id.ranks })
    }

    async fn stamp(&self) -> Option<Stamp> {
        let control = self.gateway.pool.replicas().first()?.control()?.clone();
        control.version().await.ok()
    }

    /// What the policy says after a trainer's step.
    fn decide(&self, report: &StepReport, held: WeightVersion) -> Option<resync::Outcome> {
        let mut resyncs = self.gateway.resyncs.lock().unwrap_or_else(PoisonError::into_inner);
        resyncs.after(report.after.step, report, held)
    }

    /// Every replica, one after the other: pause all, load all, resume all.
    async fn give(&self, weights: &PublishedWeights) -> Result<Stamp, Status> {
        let gateway = &self.gateway;
        let controls = controls(gateway).map_err(|error| Status::failed_precondition(error.to_string()))?;
        let failed = |name: &str, error: PortError| {
            let said = format!("engine {name}: {error}");
            match error {
                PortError::Unavailable(_) => Status::unavailable(said),
                PortError::Refused(_) | PortError::Failed(_) => Status::failed_precondition(said),
            }
        };
        gateway.pool.pause(true);
        let loaded = async {
            for (name, control) in &controls {
                control.pause().await.map_err(|error| failed(name, error))?;
            }
            gateway.updates.announce(CacheEffect::Recomputed);
            let mut stamp = Stamp::undeclared();
            for (name, control) in &controls {
                stamp = control.load_weights(weights).await.map_err(|error| failed(name, error))?;
            }
            gateway.updates.updated(CacheEffect::Recomputed, true);
            for (name, control) in &controls {
                control.resume().await.map_err(|error| failed(name, error))?;
            }
            Ok(stamp)
        };
        let loaded = loaded.await;
        gateway.updates.resumed();
        gateway.pool.pause(false);
        loaded
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let told = refusal.to_string();
        match refusal.status() {
            StatusCode::NOT_FOUND => Self::not_found(told),
            StatusCode::CONFLICT => Self::failed_precondition(told),
            StatusCode::SERVICE_UNAVAILABLE => Self::unavailable(told),
            StatusCode::TOO_MANY_REQUESTS => Self::resource_exhausted(told),
            StatusCode::NOT_IMPLEMENTED => Self::unimplemented(told),
            status if status.is_server_error() => Self::internal(told),
            _ => Self::invalid_argument(told),
        }
    }
}

type Chunks = Pin<Box<dyn Stream<Item = Result<proto::BatchChunk, Status>> + Send>>;

fn chunks(sealed: &Sealed) -> Chunks {
    let messages = batch::write_sealed(&sealed.batch, &sealed.rewards);
    Box::pin(tokio_stream::iter(messages.into_iter().map(Ok)))
}

const NO_PROMPTS: &str =
    "this gateway has no prompts of its own: open a plan, and send its rollout ids with the requests";

#[tonic::async_trait]
impl proto::middleware_server::Middleware for Service {
    type SealPlanStream = Chunks;
    type NextBatchStream = Chunks;

    async fn describe(&self, _: Request<proto::Empty>) -> Result<Response<proto::MiddlewareDescription>, Status> {
        let first = self.gateway.pool.replicas().first().ok_or_else(|| Status::unavailable("no engine"))?;
        let can = first.capabilities();
        let sampler = proto::SamplerDescription {
            profile: Some((&*can.profile).into()),
            vocabulary: can.vocabulary,
            resumes: can.resumes,
            digest: first.control().is_some_and(|control| control.capabilities().digest),
        };
        let stage = match self.gateway.options.stage {
            Stage::Observe => proto::Stage::Observe,
            Stage::Fix => proto::Stage::Fix,
            Stage::Dlc => proto::Stage::Dlc,
        };
        Ok(Response::new(proto::MiddlewareDescription {
            lockstep_version: env!("CARGO_PKG_VERSION").to_owned(),
            stage: stage as i32,
            sampler: Some(sampler),
            stamp: self.stamp().await.filter(|stamp| stamp.version().is_some()).map(|stamp| (&stamp).into()),
            pull: self.gateway.pull.is_some(),
            lease_seconds: self.gateway.pull.as_ref().map_or(0, |_| self.gateway.options.lease.as_secs().max(1) as u32),
        }))
    }

    async fn open_plan(&self, request: Request<proto::OpenPlanRequest>) -> Result<Response<proto::OpenedPlan>, Status> {
        let proto::OpenPlanRequest { groups, answers, plan } = request.into_inner();
        let Opened { plan, rollouts, .. } = self.gateway.open_plan((groups, answers), plan).await?;
        Ok(Response::new(proto::OpenedPlan { plan, rollouts: rollouts.into_iter().map(Into::into).collect() }))
    }

    async fn seal_plan(&self, request: Request<proto::PlanId>) -> Result<Response<Chunks>, Status> {
        let sealed = self.gateway.sealed(request.into_inner().plan).await?;
        Ok(Response::new(chunks(&sealed)))
    }

    async fn next_batch(&self, request: Request<proto::NextBatchRequest>) -> Result<Response<Chunks>, Status> {
        let consumer = self.consumer(required(request.into_inner().consumer, "next batch", "consumer")?)?;
        let given = self.gateway.plans.next(&consumer, self.gateway.now()).await.map_err(Refusal::from)?;
        Ok(Response::new(given.map_or_else(|| Box::pin(tokio_stream::empty()) as Chunks, |sealed| chunks(&sealed))))
    }

    async fn reward(&self, request: Request<proto::Rewards>) -> Result<Response<proto::Empty>, Status> {
        for proto::RolloutReward { rollout, outcome } in request.into_inner().rewards {
            let rollout = required(rollout, "reward", "rollout")?.into();
            match required(outcome, "reward", "outcome")? {
                proto::rollout_reward::Outcome::Reward(reward) => {
                    self.gateway.note_reward(rollout, Outcome::Reward(reward)).await?;
                }
                proto::rollout_reward::Outcome::Failed(reason) => {
                    self.gateway.note_failure(rollout, &reason).await?;
                }
            }
        }
        Ok(Response::new(proto::Empty {}))
    }

    async fn report_consumed(&self, request: Request<proto::Consumed>) -> Result<Response<proto::Empty>, Status> {
        let proto::Consumed { plan, rollouts } = request.into_inner();
        let trained = rollouts.into_iter().map(|proto::ConsumedRollout { rollout, tokens, masked_in }| {
            let rollout = required(rollout, "consumed rollout", "rollout")?.into();
            Ok(TrainedOn { rollout, tokens, masked_in })
        });
        let trained = trained.collect::<Result<Vec<_>, crate::wire::WireError>>()?;
        self.gateway.trained(plan, trained).await?;
        Ok(Response::new(proto::Empty {}))
    }

    async fn report_step(
        &self,
        request: Request<proto::StepReport>,
    ) -> Result<Response<proto::ResyncDecision>, Status> {
        let report = StepReport::try_from(request.into_inner())?;
        let trigger = &self.gateway.trigger;
        let (level, threshold) = (trigger.ess_level().to_string(), trigger.threshold);
        let keep = proto::ResyncDecision { resynchronise: false, level, ess: None, threshold };
        let version = self.stamp().await.and_then(|stamp| stamp.version());
        let undeclared =
            || Status::failed_precondition("the sampler does not declare its weights, so no ESS can be its own");
        let version = version.ok_or_else(undeclared)?;
        let Some(ess) = report.ess_at(version) else { return Ok(Response::new(keep)) };
        let Some(outcome) = self.decide(&report, version) else { return Ok(Response::new(keep)) };
        for event in outcome.events {
            event.log();
            self.gateway.keep(Record::Synchronisation(event)).await?;
        }
        let (resynchronise, ess) = (outcome.resync.is_some(), trigger.watched(ess));
        Ok(Response::new(proto::ResyncDecision { resynchronise, ess: Some(ess), ..keep }))
    }

    async fn synchronise(&self, request: Request<proto::PublishedWeights>) -> Result<Response<proto::Stamp>, Status> {
        let weights = PublishedWeights::try_from(request.into_inner())?;
        let stamp = self.give(&weights).await?;
        self.gateway.keep(Record::Resync(ResyncRecord { weights, stamp: stamp.clone() })).await?;
        Ok(Response::new((&stamp).into()))
    }

    async fn heartbeat(&self, request: Request<proto::ConsumerId>) -> Result<Response<proto::Empty>, Status> {
        let consumer = self.consumer(request.into_inner())?;
        self.gateway.plans.heartbeat(&consumer, self.gateway.now()).map_err(Refusal::from)?;
        Ok(Response::new(proto::Empty {}))
    }
}
