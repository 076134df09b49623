//! A sampler or a trainer in another process, as the ports it serves.

pub(crate) mod sampler;
mod trainer;

pub use sampler::SamplerClient;
pub use trainer::TrainerClient;

use crate::wire::WireError;
use lockstep_core::ports::PortError;
use std::{error::Error, time::Duration};
use tonic::{Code, Status, transport::Endpoint};

/// How long a connection may take to be made.
const CONNECT_WITHIN: Duration = Duration::from_secs(20);

fn endpoint(address: &str) -> Result<Endpoint, tonic::transport::Error> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?.connect_timeout(CONNECT_WITHIN))
}

fn port_error(who: &'static str) -> impl Fn(Status) -> PortError {
    move |status| {
        let what = format!("{who}: {}", status.message());
        match status.code() {
            Code::FailedPrecondition | Code::InvalidArgument => PortError::Refused(what),
            Code::Unavailable | Code::Cancelled => PortError::Unavailable(what),
            // What the other side sent has no source: this was made here, of a connection that broke.
            _ if status.source().is_some() => PortError::Unavailable(what),
            _ => PortError::Failed(what),
        }
    }
}

fn unreadable(who: &'static str) -> impl Fn(WireError) -> PortError {
    move |error| PortError::Failed(format!("{who} answered what cannot be read: {error}"))
}

fn unreachable(who: &'static str, address: &str) -> impl Fn(tonic::transport::Error) -> PortError {
    let address = address.to_owned();
    move |error| {
        let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        PortError::Unavailable(format!("no {who} at {address}: {cause}"))
    }
}
