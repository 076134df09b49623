//! Fix 3: what was dispatched together is trained on together.

pub mod denominator;
pub mod membership;
pub mod outcomes;
