//! The hot numeric loops of Lockstep, as pure functions on slices: what a truncated distribution *is*, how a token is
//! drawn from it, the log-probabilities of a row, and one pass of the optimiser. Knows nothing of models, tensors, tokens'
//! text or rewards. A CUDA kernel that does the same job is correct when it agrees with the function here.

#[macro_use]
mod simd;

pub mod adamw;
pub mod chain;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
pub mod ess;
mod gemm;
pub mod head;
pub mod mass;
pub mod philox;
pub mod q8;
pub mod rows;
pub mod sample_report;
mod softmax;
pub mod truncate;
pub mod vector;

pub use chain::{Chain, Filter};
pub use error::Error;
pub use sample_report::{Draw, SampleReport, sample_report};
pub use truncate::{Head, Kept, Logit, head, truncate};

/// What every fallible function of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;
