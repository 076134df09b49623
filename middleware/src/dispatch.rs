//! Fills plans: sends their requests, writes what comes back to the ledger, and seals each when everybody is there.
//!
//! Looks at neither length nor reward; waits for the slowest.

mod fill;
#[cfg(test)]
pub(crate) mod fixture;
pub mod plans;

pub use fill::{DispatchError, fill};
pub use plans::{Consumer, Plans, PlansError, Trained};
