//! A real engine behind the gateway: what comes through follows its report, and a lie would be seen.
//!
//! `make real` starts both and names the gateway in `LOCKSTEP_GATEWAY`; without it the test says so and does nothing.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails by panicking")]

#[path = "../../adapters/tests/real/draws.rs"]
mod draws;

use draws::{address, follow_the_report};
use lockstep::client::SamplerClient;

#[tokio::test]
async fn draws_through_the_gateway_follow_the_report() {
    let Some(address) = address("LOCKSTEP_GATEWAY", "make real") else { return };
    follow_the_report(&SamplerClient::connect(&address).await.unwrap()).await;
}
