//! How far the sampler's numbers may lie from the trainer's at equal weights, by number format.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Bounds of a difference of log-probs, in nats, inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Tolerance {
    /// Bound of the mean absolute difference.
    pub mean_abs: f64,
    /// Bound of the largest absolute difference.
    pub max_abs: f64,
}

/// The number format a pair claims, as the size of its numeric term.
///
/// | class | mean abs | max abs | where the numbers come from |
/// |---|---|---|---|
/// | `f32` | 2e-4 | 2e-3 | vLLM on a CPU in f32 is within 1e-5 of an f64 reference |
/// | `bf16` | 0.04 | 0.5 | rounding logits of size 16 to 32 to bf16 alone gives 0.017 and 0.09 |
/// | `fp8-int8` | 0.12 | 1.5 | three times bf16 |
/// | `int4` | 0.4 | 4 | three times again; per-channel int4 weights were seen at 0.03 on average |
///
/// The first row and the sizes named are measurements; the bounds are choices that leave room above them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NumericClass {
    /// Single precision throughout, other kernels.
    #[default]
    F32,
    /// Half-width weights, activations or logits.
    Bf16,
    /// Weights of one byte.
    Fp8Int8,
    /// Weights of half a byte.
    Int4,
}

impl NumericClass {
    /// All classes, finest first.
    pub const ALL: [Self; 4] = [Self::F32, Self::Bf16, Self::Fp8Int8, Self::Int4];

    /// The bounds of the class.
    pub fn tolerance(self) -> Tolerance {
        let (mean_abs, max_abs) = match self {
            Self::F32 => (2e-4, 2e-3),
            Self::Bf16 => (0.04, 0.5),
            Self::Fp8Int8 => (0.12, 1.5),
            Self::Int4 => (0.4, 4.0),
        };
        Tolerance { mean_abs, max_abs }
    }

    /// The finest class that holds a numeric term of this size; `None` beyond the coarsest.
    pub fn of(mean_abs: f64, max_abs: f64) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.tolerance().holds(mean_abs, max_abs))
    }

    /// How far the mass of a kept set may lie from the one asked for: rounding moves the edge of a nucleus.
    pub fn mass(self) -> f64 {
        match self {
            Self::F32 => 1e-3,
            Self::Bf16 => 0.03,
            Self::Fp8Int8 => 0.08,
            Self::Int4 => 0.2,
        }
    }
}

impl fmt::Display for NumericClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Fp8Int8 => "fp8-int8",
            Self::Int4 => "int4",
        })
    }
}

impl Tolerance {
    /// True when both sizes are within their bounds; a NaN is not.
    pub fn holds(&self, mean_abs: f64, max_abs: f64) -> bool {
        mean_abs <= self.mean_abs && max_abs <= self.max_abs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_belongs_to_the_finest_class_that_holds_it() {
        assert_eq!(NumericClass::of(1e-6, 1e-5), Some(NumericClass::F32));
        assert_eq!(NumericClass::of(0.017, 0.09), Some(NumericClass::Bf16));
        assert_eq!(NumericClass::of(0.017, 0.9), Some(NumericClass::Fp8Int8));
        assert_eq!(NumericClass::of(0.3, 1.0), Some(NumericClass::Int4));
        assert_eq!(NumericClass::of(0.5, 1.0), None);
        assert_eq!(NumericClass::of(f64::NAN, 0.0), None);
    }
}
