//! What was asked of the sampler: every field explicit, no engine default.

use crate::token::TokenId;
use serde::{Deserialize, Serialize};

/// A sampling parameter outside its range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// A greedy draw is a point mass; its ratios are undefined.
    #[error("temperature {0} is not above 0; a greedy draw is a point mass and has no ratio")]
    Temperature(f64),
    /// `top_p` outside (0, 1].
    #[error("top_p {0} is not in (0, 1]")]
    TopP(f64),
    /// `min_p` outside [0, 1).
    #[error("min_p {0} is not in [0, 1)")]
    MinP(f64),
    /// Nothing may be generated.
    #[error("max_new_tokens is 0; an answer needs at least 1")]
    NoTokens,
}

/// The truncation filters; "off" is `top_k` 0, `top_p` 1, `min_p` 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Truncation {
    /// Keeps the k most probable tokens; 0 is off.
    pub top_k: u32,
    /// Keeps the smallest most probable set of at least this mass; 1 is off.
    pub top_p: f64,
    /// Keeps tokens of at least this share of the largest probability; 0 is off.
    pub min_p: f64,
}

impl Truncation {
    /// Nothing is cut.
    pub const NONE: Self = Self { top_k: 0, top_p: 1.0, min_p: 0.0 };

    /// True when every filter is off, so that q lives on the whole vocabulary.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

/// Where an answer ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Sampling one of these ends the answer; it stays in the answer as its last token.
    pub stop: Vec<TokenId>,
    /// At most this many sampled tokens.
    pub max_new_tokens: u32,
}

/// What was asked for one answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    temperature: f64,
    truncation: Truncation,
    limits: Limits,
    seed: u64,
}

impl SamplingParams {
    /// # Errors
    /// A field outside its range, with its value.
    pub fn new(temperature: f64, truncation: Truncation, limits: Limits, seed: u64) -> Result<Self, SamplingError> {
        if !(temperature > 0.0 && temperature.is_finite()) {
            return Err(SamplingError::Temperature(temperature));
        }
        if !(truncation.top_p > 0.0 && truncation.top_p <= 1.0) {
            return Err(SamplingError::TopP(truncation.top_p));
        }
        if !(0.0..1.0).contains(&truncation.min_p) {
            return Err(SamplingError::MinP(truncation.min_p));
        }
        if limits.max_new_tokens == 0 {
            return Err(SamplingError::NoTokens);
        }
        Ok(Self { temperature, truncation, limits, seed })
    }

    /// Divisor of the logits, above 0. The trainer divides by the same one before its softmax.
    pub fn temperature(&self) -> f64 {
        self.temperature
    }

    /// The truncation filters.
    pub fn truncation(&self) -> &Truncation {
        &self.truncation
    }

    /// Where the answer ends.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Seed of the draws.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The same for another attempt at an answer whose tokens are lost: attempt 1 keeps the seed, each later one gets a seed
    /// of its own (the finaliser of SplitMix64, Steele et al. 2014), so that what is drawn anew is not what was lost.
    pub fn for_attempt(&self, attempt: u32) -> Self {
        let mut seed = self.seed;
        if attempt > 1 {
            seed = seed.wrapping_add(u64::from(attempt).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            seed = (seed ^ (seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            seed = (seed ^ (seed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            seed ^= seed >> 31;
        }
        Self { seed, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(temperature: f64, top_p: f64, min_p: f64) -> Result<SamplingParams, SamplingError> {
        let limits = Limits { stop: vec![], max_new_tokens: 4 };
        SamplingParams::new(temperature, Truncation { top_k: 0, top_p, min_p }, limits, 1)
    }

    #[test]
    fn values_outside_their_range_are_named_with_their_number() {
        assert_eq!(params(0.0, 1.0, 0.0), Err(SamplingError::Temperature(0.0)));
        assert!(matches!(params(f64::NAN, 1.0, 0.0), Err(SamplingError::Temperature(_))));
        assert_eq!(params(1.0, 1.2, 0.0), Err(SamplingError::TopP(1.2)));
        assert_eq!(params(1.0, 0.9, 1.0), Err(SamplingError::MinP(1.0)));
        assert!(params(0.8, 0.95, 0.0).is_ok());
    }

    #[test]
    fn every_attempt_has_a_seed_of_its_own() {
        let first = params(0.8, 0.95, 0.0).unwrap();
        assert_eq!(first.for_attempt(1), first);
        let mut seeds: Vec<u64> = (1..9).map(|attempt| first.for_attempt(attempt).seed()).collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 8);
    }
}
