//! Targets of the conformance suite: the built-in pair, candle's own models, and whatever stands at an address.

#[cfg(feature = "engine")]
pub mod built_in;
#[cfg(feature = "candle")]
pub mod candle;
#[cfg(feature = "engine")]
pub mod course;
pub mod outside;
pub mod patience;
pub mod recorded;
pub mod template;
pub mod unreachable;

#[cfg(feature = "engine")]
pub use built_in::{TargetError, built_in_target, configuration, with_ties};
pub use template::template;
