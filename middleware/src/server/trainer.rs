//! A trainer behind the wire.

use super::{missing, status};
use crate::wire::{
    batch::{BatchReader, write_scored},
    proto,
};
use lockstep_core::ports::{Probe, ProbeLoss, Scorer, Trainer};
use std::{pin::Pin, sync::Arc};
use tonic::{Request, Response, Status, Streaming};

/// Translates calls of the wire into calls of the ports.
#[derive(Debug)]
pub struct TrainerService<T> {
    trainer: Arc<T>,
}

impl<T> TrainerService<T> {
    /// Serves this trainer.
    pub fn new(trainer: Arc<T>) -> Self {
        Self { trainer }
    }
}

async fn read_batch(mut chunks: Streaming<proto::BatchChunk>) -> Result<BatchReader, Status> {
    let mut reader = None;
    while let Some(chunk) = chunks.message().await? {
        for piece in chunk.pieces {
            match &mut reader {
                None => reader = Some(BatchReader::begin(piece)?),
                Some(reader) => reader.push(piece)?,
            }
        }
    }
    reader.ok_or_else(|| missing("batch", "pieces"))
}

type Scores = Pin<Box<dyn futures_core::Stream<Item = Result<proto::ScoreChunk, Status>> + Send>>;

#[tonic::async_trait]
impl<T: Scorer + Trainer + Probe + 'static> proto::trainer_server::Trainer for TrainerService<T> {
    type ScoreStream = Scores;

    async fn describe(&self, _: Request<proto::Empty>) -> Result<Response<proto::TrainerDescription>, Status> {
        let live = Scorer::capabilities(&*self.trainer).await.map_err(status)?.live;
        Ok(Response::new(proto::TrainerDescription {
            version: Some(self.trainer.version().await.map_err(status)?.into()),
            live: live.into_iter().map(Into::into).collect(),
            snapshots: Trainer::capabilities(&*self.trainer).snapshots,
        }))
    }

    async fn score(
        &self,
        chunks: Request<Streaming<proto::BatchChunk>>,
    ) -> Result<Response<Self::ScoreStream>, Status> {
        let reader = read_batch(chunks.into_inner()).await?;
        let version = reader.header.version.ok_or_else(|| missing("batch to score", "version"))?;
        let batch = reader.into_batch()?;
        let scored = self.trainer.score(&batch, version.into()).await.map_err(status)?;
        let chunks = write_scored(&scored).into_iter().map(Ok);
        Ok(Response::new(Box::pin(tokio_stream::iter(chunks))))
    }

    async fn step(&self, chunks: Request<Streaming<proto::BatchChunk>>) -> Result<Response<proto::StepReport>, Status> {
        let mut reader = read_batch(chunks.into_inner()).await?;
        let options =
            reader.header.options.take().ok_or_else(|| missing("batch to train on", "options"))?.try_into()?;
        let (batch, log_s) = reader.into_scored()?;
        let report = self.trainer.step(&batch, &log_s, &options).await.map_err(status)?;
        Ok(Response::new((&report).into()))
    }

    async fn publish(
        &self,
        version: Request<proto::WeightVersion>,
    ) -> Result<Response<proto::PublishedWeights>, Status> {
        let weights = self.trainer.publish(version.into_inner().into()).await.map_err(status)?;
        Ok(Response::new((&weights).into()))
    }

    async fn retain(&self, live: Request<proto::WeightVersions>) -> Result<Response<proto::Empty>, Status> {
        let live: Vec<_> = live.into_inner().versions.into_iter().map(Into::into).collect();
        self.trainer.retain(&live).await.map_err(status)?;
        Ok(Response::new(proto::Empty {}))
    }

    async fn gradient(&self, loss: Request<proto::ProbeLoss>) -> Result<Response<proto::ProbeGradient>, Status> {
        let loss = ProbeLoss::try_from(loss.into_inner())?;
        let gradient = self.trainer.gradient(&loss).await.map_err(status)?;
        Ok(Response::new(proto::ProbeGradient { gradient }))
    }
}
