//! A sampler and its control plane behind the wire.

use super::status;
use crate::wire::{WireError, proto, words};
use futures_util::StreamExt;
use lockstep_core::ports::{Control, PublishedWeights, SampleRequest, Sampler};
use std::{pin::Pin, sync::Arc};
use tonic::{Request, Response, Status, Streaming};

/// Most deltas in one message.
const DELTAS_A_MESSAGE: usize = 64;

/// Translates calls of the wire into calls of the ports.
#[derive(Debug)]
pub struct SamplerService<S> {
    sampler: Arc<S>,
}

impl<S> SamplerService<S> {
    /// Serves this sampler.
    pub fn new(sampler: Arc<S>) -> Self {
        Self { sampler }
    }
}

type Deltas = Pin<Box<dyn futures_core::Stream<Item = Result<proto::Deltas, Status>> + Send>>;

#[tonic::async_trait]
impl<S: Sampler + Control + 'static> proto::sampler_server::Sampler for SamplerService<S> {
    type GenerateStream = Deltas;

    async fn describe(&self, _: Request<proto::Empty>) -> Result<Response<proto::SamplerDescription>, Status> {
        let can = Sampler::capabilities(&*self.sampler);
        Ok(Response::new(proto::SamplerDescription {
            profile: Some((&*can.profile).into()),
            vocabulary: can.vocabulary,
            resumes: can.resumes,
            digest: Control::capabilities(&*self.sampler).digest,
        }))
    }

    async fn generate(
        &self,
        requests: Request<Streaming<proto::SampleRequests>>,
    ) -> Result<Response<Self::GenerateStream>, Status> {
        let mut requests = requests.into_inner();
        let mut all = Vec::new();
        while let Some(message) = requests.message().await? {
            let read = message.requests.into_iter().map(SampleRequest::try_from);
            all.extend(read.collect::<Result<Vec<_>, WireError>>()?);
        }
        let deltas = self.sampler.generate(all).await.map_err(status)?;
        let messages = deltas.ready_chunks(DELTAS_A_MESSAGE).map(|ready| {
            let deltas = ready.into_iter().map(|delta| delta.map(|delta| words::delta(&delta, 0)));
            Ok(proto::Deltas { deltas: deltas.collect::<Result<_, _>>().map_err(status)? })
        });
        Ok(Response::new(Box::pin(messages)))
    }

    async fn cancel(&self, ids: Request<proto::RolloutIds>) -> Result<Response<proto::Empty>, Status> {
        let ids: Vec<_> = ids.into_inner().ids.into_iter().map(Into::into).collect();
        self.sampler.cancel(&ids).await.map_err(status)?;
        Ok(Response::new(proto::Empty {}))
    }

    async fn pause(&self, _: Request<proto::Empty>) -> Result<Response<proto::Empty>, Status> {
        self.sampler.pause().await.map_err(status)?;
        Ok(Response::new(proto::Empty {}))
    }

    async fn load_weights(&self, weights: Request<proto::PublishedWeights>) -> Result<Response<proto::Stamp>, Status> {
        let weights = PublishedWeights::try_from(weights.into_inner())?;
        let stamp = self.sampler.load_weights(&weights).await.map_err(status)?;
        Ok(Response::new((&stamp).into()))
    }

    async fn resume(&self, _: Request<proto::Empty>) -> Result<Response<proto::Empty>, Status> {
        self.sampler.resume().await.map_err(status)?;
        Ok(Response::new(proto::Empty {}))
    }

    async fn version(&self, _: Request<proto::Empty>) -> Result<Response<proto::Stamp>, Status> {
        let stamp = self.sampler.version().await.map_err(status)?;
        Ok(Response::new((&stamp).into()))
    }
}
