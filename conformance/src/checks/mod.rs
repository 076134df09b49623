//! The checks: one for each fix, one for each term, one for the gradient of the correction.

pub mod batch;
pub mod correction;
pub mod distribution;
mod kept;
pub mod lag;
pub mod numeric;
pub mod tokens;
pub mod version;
