//! Identifiers: of a token in a vocabulary, of a rollout in a plan.

use serde::{Deserialize, Serialize};
use std::fmt;

/// An id in the model's vocabulary. Never rebuilt from text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenId(pub u32);

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The name of a rollout, fixed when its plan is opened: plan number and position in dispatch order.
///
/// Written `p12.r3`; a resumed rollout keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RolloutId {
    /// Number of the plan.
    pub plan: u64,
    /// Position in the plan's dispatch order.
    pub index: u32,
}

impl fmt::Display for RolloutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}.r{}", self.plan, self.index)
    }
}
