//! Fills plans: sends their requests, writes what comes back to the ledger, and seals each when everybody is there.
//!
//! [`Driver`] runs the state machine of [`lockstep_core::dispatch`] against real samplers; [`Plans`] holds the plans of a server
//! whose trainers send their own requests. Both look at neither length nor reward, and wait for the slowest.

mod calls;
mod driver;
mod error;
#[cfg(test)]
pub(crate) mod fixture;
mod history;
pub mod plans;
#[cfg(test)]
mod tests;

pub(crate) use driver::milliseconds_since_1970;
pub use driver::{Driver, Judge, Settings, Station};
pub use error::DispatchError;
pub use history::{FIRST_LOOSE, History, HistoryError};
pub use plans::{Consumer, Opened, Plans, PlansError, Progress, Reported, Sealed, Taken};
