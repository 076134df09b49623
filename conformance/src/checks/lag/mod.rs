//! The lag term: `log p_theta - log p_s`.

pub mod denominator;
pub mod support;
pub mod temperature;
pub mod zero;
