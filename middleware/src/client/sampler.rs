//! A sampler in another process.

use super::{endpoint, port_error, unreachable, unreadable};
use crate::wire::{
    MAX_MESSAGE,
    batch::write_requests,
    proto::{self, sampler_client},
    required, words,
};
use async_trait::async_trait;
use futures_util::StreamExt;
use lockstep_core::{
    RolloutId, SamplerProfile, Stamp,
    ports::{
        Control, ControlCapabilities, DeltaStream, PortError, PortResult, PublishedWeights, SampleRequest, Sampler,
        SamplerCapabilities,
    },
};
use std::{sync::Arc, time::Duration};
use tonic::transport::{Channel, Endpoint};

const WHO: &str = "sampler";

/// A sampler that answers pings within this time, and is asked for one when it said nothing for as long, is there. Without pings a
/// connection that was cut without a word (a host that lost its power, a router that forgot it) takes calls for ever.
const SILENCE: Duration = Duration::from_secs(20);

/// With pings while a call is open. A sampler streams while it draws, which is what servers that count pings want to see.
pub(crate) fn pinged(endpoint: Endpoint) -> Endpoint {
    endpoint.http2_keep_alive_interval(SILENCE).keep_alive_timeout(SILENCE)
}

/// Speaks to the sampler at an address.
#[derive(Debug, Clone)]
pub struct SamplerClient {
    client: sampler_client::SamplerClient<Channel>,
    capabilities: SamplerCapabilities,
    digest: bool,
}

impl SamplerClient {
    /// Connects and asks what is there.
    ///
    /// # Errors
    /// Nobody at the address, or somebody who does not describe themselves.
    pub async fn connect(address: &str) -> PortResult<Self> {
        let channel = async { pinged(endpoint(address)?).connect().await }.await.map_err(unreachable(WHO, address))?;
        Self::over(channel).await
    }

    /// Asks what is behind a connection.
    ///
    /// # Errors
    /// Somebody who does not describe themselves.
    pub(crate) async fn over(channel: Channel) -> PortResult<Self> {
        let client = sampler_client::SamplerClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        let description = client.clone().describe(proto::Empty {}).await.map_err(port_error(WHO))?.into_inner();
        let profile = required(description.profile, "sampler description", "profile").map_err(unreadable(WHO))?;
        let profile = SamplerProfile::try_from(profile).map_err(unreadable(WHO))?;
        let capabilities = SamplerCapabilities {
            profile: Arc::new(profile),
            vocabulary: description.vocabulary,
            resumes: description.resumes,
        };
        Ok(Self { client, capabilities, digest: description.digest })
    }
}

#[async_trait]
impl Sampler for SamplerClient {
    fn capabilities(&self) -> SamplerCapabilities {
        self.capabilities.clone()
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        let messages = write_requests(requests.iter().map(Into::into));
        let answer = self.client.clone().generate(tokio_stream::iter(messages)).await;
        let profiles = [self.capabilities.profile.clone()];
        let deltas = answer.map_err(port_error(WHO))?.into_inner().flat_map(move |message| {
            let read = |delta| words::read_delta(delta, &profiles).map_err(unreadable(WHO));
            let deltas: Vec<PortResult<_>> = match message {
                Ok(message) => message.deltas.into_iter().map(read).collect(),
                Err(status) => vec![Err(port_error(WHO)(status))],
            };
            tokio_stream::iter(deltas)
        });
        Ok(Box::pin(deltas))
    }

    async fn cancel(&self, rollouts: &[RolloutId]) -> PortResult<()> {
        let ids = rollouts.iter().map(|&id| id.into()).collect();
        self.client.clone().cancel(proto::RolloutIds { ids }).await.map_err(port_error(WHO))?;
        Ok(())
    }
}

fn stamp(answer: Result<tonic::Response<proto::Stamp>, tonic::Status>) -> PortResult<Stamp> {
    let stamp = answer.map_err(port_error(WHO))?.into_inner();
    stamp.try_into().map_err(unreadable(WHO))
}

#[async_trait]
impl Control for SamplerClient {
    fn capabilities(&self) -> ControlCapabilities {
        ControlCapabilities { digest: self.digest }
    }

    async fn pause(&self) -> PortResult<()> {
        self.client.clone().pause(proto::Empty {}).await.map_err(port_error(WHO))?;
        Ok(())
    }

    async fn load_weights(&self, weights: &PublishedWeights) -> PortResult<Stamp> {
        let loaded = stamp(self.client.clone().load_weights(proto::PublishedWeights::from(weights)).await)?;
        match loaded.version() {
            Some(version) if version == weights.version => Ok(loaded),
            other => {
                let held = other.map_or_else(|| "none".to_owned(), |version| version.to_string());
                let asked = weights.version;
                Err(PortError::Failed(format!("sampler was given weights {asked}, but declares {held}")))
            }
        }
    }

    async fn resume(&self) -> PortResult<()> {
        self.client.clone().resume(proto::Empty {}).await.map_err(port_error(WHO))?;
        Ok(())
    }

    async fn version(&self) -> PortResult<Stamp> {
        stamp(self.client.clone().version(proto::Empty {}).await)
    }
}
