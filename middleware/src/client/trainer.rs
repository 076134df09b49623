//! A trainer in another process.

use super::{endpoint, port_error, unreachable, unreadable};
use crate::wire::{
    MAX_MESSAGE,
    batch::{Purpose, ScoreReader, write_batch},
    proto::{self, trainer_client},
    required,
};
use async_trait::async_trait;
use lockstep_core::{
    Batch, ScoredBatch, WeightVersion,
    ports::{
        PortResult, Probe, ProbeLoss, PublishedWeights, Scorer, ScorerCapabilities, StepOptions, StepReport, Trainer,
        TrainerCapabilities,
    },
    score::{RolloutLogProbs, ScoredAt},
};
use tonic::transport::Channel;

const WHO: &str = "trainer";

/// Speaks to the trainer at an address.
#[derive(Debug, Clone)]
pub struct TrainerClient {
    client: trainer_client::TrainerClient<Channel>,
    snapshots: bool,
}

impl TrainerClient {
    /// Connects and asks what is there.
    ///
    /// # Errors
    /// Nobody at the address, or somebody who does not describe themselves.
    pub async fn connect(address: &str) -> PortResult<Self> {
        let channel = async { endpoint(address)?.connect().await }.await.map_err(unreachable(WHO, address))?;
        let client = trainer_client::TrainerClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        let mut trainer = Self { client, snapshots: false };
        trainer.snapshots = trainer.describe().await?.snapshots;
        Ok(trainer)
    }

    async fn describe(&self) -> PortResult<proto::TrainerDescription> {
        let answer = self.client.clone().describe(proto::Empty {}).await;
        answer.map(tonic::Response::into_inner).map_err(port_error(WHO))
    }
}

#[async_trait]
impl Scorer for TrainerClient {
    async fn capabilities(&self) -> PortResult<ScorerCapabilities> {
        let live = self.describe().await?.live.into_iter().map(Into::into);
        Ok(ScorerCapabilities { live: live.collect() })
    }

    async fn score(&self, batch: &Batch, version: WeightVersion) -> PortResult<ScoredAt> {
        let messages = write_batch(batch, Purpose::Score(version));
        let answer = self.client.clone().score(tokio_stream::iter(messages)).await;
        let mut chunks = answer.map_err(port_error(WHO))?.into_inner();
        let mut reader = ScoreReader::new(batch.rollouts().len());
        while let Some(chunk) = chunks.message().await.map_err(port_error(WHO))? {
            for scores in &chunk.scores {
                reader.push(scores).map_err(unreadable(WHO))?;
            }
        }
        Ok(ScoredAt { version, rollouts: reader.finish(batch).map_err(unreadable(WHO))? })
    }
}

#[async_trait]
impl Trainer for TrainerClient {
    fn capabilities(&self) -> TrainerCapabilities {
        TrainerCapabilities { snapshots: self.snapshots }
    }

    async fn step(
        &self,
        batch: &ScoredBatch,
        log_s: &[RolloutLogProbs],
        options: &StepOptions,
    ) -> PortResult<StepReport> {
        let purpose = Purpose::Step { options, rewards: batch.rewards(), log_s };
        let messages = write_batch(batch.batch(), purpose);
        let answer = self.client.clone().step(tokio_stream::iter(messages)).await;
        answer.map_err(port_error(WHO))?.into_inner().try_into().map_err(unreadable(WHO))
    }

    async fn version(&self) -> PortResult<WeightVersion> {
        let version = required(self.describe().await?.version, "trainer description", "version");
        version.map(Into::into).map_err(unreadable(WHO))
    }

    async fn publish(&self, version: WeightVersion) -> PortResult<PublishedWeights> {
        let answer = self.client.clone().publish(proto::WeightVersion::from(version)).await;
        answer.map_err(port_error(WHO))?.into_inner().try_into().map_err(unreadable(WHO))
    }

    async fn retain(&self, live: &[WeightVersion]) -> PortResult<()> {
        let versions = live.iter().map(|&version| version.into()).collect();
        self.client.clone().retain(proto::WeightVersions { versions }).await.map_err(port_error(WHO))?;
        Ok(())
    }
}

#[async_trait]
impl Probe for TrainerClient {
    async fn gradient(&self, loss: &ProbeLoss) -> PortResult<Vec<f64>> {
        let answer = self.client.clone().gradient(proto::ProbeLoss::from(loss)).await;
        Ok(answer.map_err(port_error(WHO))?.into_inner().gradient)
    }
}
