//! A sampler or a trainer in another process, as the ports it serves.

mod sampler;
mod trainer;

pub use sampler::SamplerClient;
pub use trainer::TrainerClient;

use crate::wire::WireError;
use lockstep_core::ports::PortError;
use tonic::{Code, Status};

fn port_error(who: &'static str) -> impl Fn(Status) -> PortError {
    move |status| {
        let what = format!("{who}: {}", status.message());
        match status.code() {
            Code::FailedPrecondition | Code::InvalidArgument => PortError::Refused(what),
            Code::Unavailable | Code::Cancelled => PortError::Unavailable(what),
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
        let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        PortError::Unavailable(format!("no {who} at {address}: {cause}"))
    }
}
