//! Fix 1: the reported distribution is the one tokens are drawn from.

pub mod agreement;
pub mod defaults;
pub mod drawn;
pub mod filters;
pub mod greedy;
mod kept;
pub(in crate::checks) use kept::retold;
pub mod seed;
pub mod support;
pub mod temperature;
pub mod ties;
