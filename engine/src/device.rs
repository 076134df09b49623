//! Where a pair computes: the CPU, or an NVIDIA card in a build with feature `cuda`.

use crate::{Error, Result};
use candle_core::Device;
use std::fmt;
use std::str::FromStr;

/// A device by name: `cpu`, `cuda`, `cuda:1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compute {
    /// The CPU, in f32.
    #[default]
    Cpu,
    /// A card, counted from 0: bf16 with f32 sums, master weights and head.
    Cuda(usize),
}

/// No such device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no device {0:?}; there are cpu, cuda and cuda:N")]
pub struct UnknownDevice(pub String);

impl FromStr for Compute {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> std::result::Result<Self, UnknownDevice> {
        match text.strip_prefix("cuda").map(|rest| (rest, rest.strip_prefix(':').map(str::parse))) {
            None if text == "cpu" => Ok(Self::Cpu),
            Some(("", _)) => Ok(Self::Cuda(0)),
            Some((_, Some(Ok(ordinal)))) => Ok(Self::Cuda(ordinal)),
            _ => Err(UnknownDevice(text.into())),
        }
    }
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl Compute {
    /// Opens it.
    ///
    /// # Errors
    /// A card in a build without CUDA, or on a machine without its driver; a card that is not there.
    pub fn open(self) -> Result<Device> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Cuda(ordinal) => cuda(ordinal),
        }
    }
}

#[cfg(not(feature = "cuda"))]
fn cuda(_: usize) -> Result<Device> {
    Err(Error::Device("this build has no CUDA in it; `make build-cuda` makes the one that has".into()))
}

#[cfg(feature = "cuda")]
fn cuda(ordinal: usize) -> Result<Device> {
    lockstep_kernels::cuda::driver_present().map_err(|error| Error::Device(error.to_string()))?;
    Device::new_cuda(ordinal).map_err(|error| Error::Device(format!("cuda:{ordinal}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_others_are_refused() {
        for device in [Compute::Cpu, Compute::Cuda(0), Compute::Cuda(3)] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        assert_eq!("cuda".parse(), Ok(Compute::Cuda(0)));
        for text in ["", "gpu", "cuda:", "cuda:x", "cuda1", "cpu:0"] {
            assert_eq!(text.parse::<Compute>(), Err(UnknownDevice(text.into())));
        }
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_build_without_cuda_names_the_one_that_has_it() {
        let refused = Compute::Cuda(0).open().unwrap_err().to_string();
        assert!(refused.contains("make build-cuda"), "{refused}");
    }
}
