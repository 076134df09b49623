//! The client against a server that answers, lies, stalls, dies, and never ends.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

mod control;
mod faults;
mod probes;
mod server;
