//! Targets of the conformance suite: the built-in pair, and whatever stands at an address.

#[cfg(feature = "engine")]
pub mod built_in;
pub mod outside;
pub mod patience;
pub mod unreachable;

#[cfg(feature = "engine")]
pub use built_in::{TargetError, built_in_target, configuration};
