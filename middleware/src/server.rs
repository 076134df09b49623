//! Serves a sampler or a trainer over the wire. Knows the ports, not what is behind them.

mod sampler;
mod trainer;

pub use sampler::SamplerService;
pub use trainer::TrainerService;

use crate::wire::{
    MAX_MESSAGE, WireError,
    proto::{sampler_server::SamplerServer, trainer_server::TrainerServer},
};
use lockstep_core::ports::{Control, PortError, Probe, Sampler, Scorer, Trainer};
use std::{future::Future, sync::Arc};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Status, transport};

fn status(error: PortError) -> Status {
    match error {
        PortError::Refused(what) => Status::failed_precondition(what),
        PortError::Unavailable(what) => Status::unavailable(what),
        PortError::Failed(what) => Status::internal(what),
    }
}

/// Serves a sampler until `stop` is done.
///
/// # Errors
/// A listener that breaks.
pub async fn serve_sampler<S>(
    sampler: Arc<S>,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
) -> Result<(), transport::Error>
where
    S: Sampler + Control + 'static,
{
    let service = SamplerServer::new(SamplerService::new(sampler)).max_decoding_message_size(MAX_MESSAGE);
    let incoming = TcpListenerStream::new(listener);
    transport::Server::builder().add_service(service).serve_with_incoming_shutdown(incoming, stop).await
}

/// Serves a trainer until `stop` is done.
///
/// # Errors
/// A listener that breaks.
pub async fn serve_trainer<T>(
    trainer: Arc<T>,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
) -> Result<(), transport::Error>
where
    T: Scorer + Trainer + Probe + 'static,
{
    let service = TrainerServer::new(TrainerService::new(trainer)).max_decoding_message_size(MAX_MESSAGE);
    let incoming = TcpListenerStream::new(listener);
    transport::Server::builder().add_service(service).serve_with_incoming_shutdown(incoming, stop).await
}

fn missing(message: &'static str, field: &'static str) -> Status {
    WireError::Missing { message, field }.into()
}
