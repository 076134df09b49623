//! What the trainer does with both terms.

pub mod drift;
pub mod ess;
pub mod gradient;
pub mod weights;
