//! Holds what was trained on against what was dispatched: was membership a function of dispatch order alone?
//!
//! Works on an [`Account`], which a ledger tells ([`Account::of`]) and the simulator writes. Judges, and changes nothing.

mod account;
mod correlation;
mod distribution;
mod membership;
mod text;

#[cfg(test)]
mod tests;

pub use account::{Account, AccountError, BatchFacts, PlanFacts, RolloutFacts};
pub use correlation::{Correlation, Selector};
pub use distribution::{Comparison, Distribution};

use serde::Serialize;

/// What an audit found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Audit {
    /// Plans opened.
    pub plans: usize,
    /// Batches trained on.
    pub batches: usize,
    /// Rollouts dispatched.
    pub dispatched: usize,
    /// Rollouts trained on.
    pub trained: usize,
    /// Broken rules of membership, each named by what it was found at; empty when membership followed from dispatch alone.
    pub broken: Vec<String>,
    /// Lengths, in sampled tokens.
    pub length: Comparison,
    /// Rewards.
    pub reward: Comparison,
    /// Length and reward against everything that could have selected.
    pub correlations: Vec<Correlation>,
}

impl Audit {
    /// Judges an account.
    pub fn of(account: &Account) -> Self {
        let trained = account.trained();
        Self {
            plans: account.plans.len(),
            batches: account.batches.len(),
            dispatched: account.rollouts.len(),
            trained: trained.len(),
            broken: membership::broken(account),
            length: distribution::compare(account, |rollout| Some(f64::from(rollout.tokens))),
            reward: distribution::compare(account, |rollout| rollout.reward),
            correlations: correlation::all(account),
        }
    }

    /// Whether anything could have selected.
    pub fn is_red(&self) -> bool {
        !self.broken.is_empty() || !self.length.is_equal() || !self.reward.is_equal()
    }

    /// The audit as a table for people.
    pub fn table(&self) -> String {
        text::table(self)
    }
}
