//! How coarsely a sampler computes: real losses of precision, so that the numeric term of a pair can be chosen and not
//! awaited. The trainer knows nothing of them.
//!
//! ```text
//! intN       w_rc = s_r round(w_rc / s_r), s_r = max_c |w_rc| / (2^(N-1) - 1)       each row of a matrix, embedding too
//! q8_0       w    = d round(w / d), d = max |w| / 127 in f16                           blocks of 32, as GGUF stores them
//! noise      w    = w + sigma std(w) z, z ~ N(0, 1) fixed by the seed               each matrix
//! bf16-head  the head's input and the logits are rounded to bf16
//! ```

use crate::{Error, Result, Weights};
use candle_core::{DType, Tensor};
use lockstep_core::profile::Dtypes;
use lockstep_kernels::philox::normal;
use std::fmt;
use std::str::FromStr;

/// A sampler's precision. Vectors (the weights of norms) are never touched.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Numerics {
    /// f32 throughout.
    #[default]
    Exact,
    /// The head rounds to bf16.
    Bf16Head,
    /// Matrices of this many bits, a scale a row, rounded to nearest: 3, 4 or 8.
    Int(u32),
    /// Matrices in GGUF's Q8_0: blocks of 32 signed bytes with an f16 scale; columns are a multiple of 32.
    Q8,
    /// Matrices with a fixed noise on them.
    Noise {
        /// Its size in standard deviations of the matrix.
        sigma: f64,
        /// What fixes it.
        seed: u64,
    },
}

/// No such precision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there are no numerics {0:?}; there are exact, bf16-head, int8, int4, int3, q8_0, and noise(sigma,seed) with sigma > 0"
)]
pub struct UnknownNumerics(pub String);

impl Numerics {
    /// Rewrites the weights of a sampler, in place; those in Q8_0 are kept as such, and not rewritten.
    pub(crate) fn apply(self, weights: &Weights) -> Result<()> {
        for ((_, var), stream) in weights.iter().zip(0u64..) {
            let [rows, columns] = var.dims() else { continue };
            let mut values: Vec<f32> = var.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?;
            match self {
                Self::Exact | Self::Bf16Head | Self::Q8 => return Ok(()),
                Self::Int(bits) => values.chunks_exact_mut(*columns).for_each(|row| round_row(row, bits)),
                Self::Noise { sigma, seed } => add_noise(&mut values, sigma, |i| normal(seed, stream, i)),
            }
            var.set(&Tensor::from_vec(values, (*rows, *columns), var.device())?.to_dtype(var.dtype())?)
                .map_err(Error::from)?;
        }
        Ok(())
    }

    /// What a profile says of it.
    pub fn dtypes(self) -> Dtypes {
        let f32 = || "f32".to_owned();
        let weights = match self {
            Self::Exact | Self::Bf16Head => f32(),
            Self::Q8 => "q8_0 (blocks of 32, f16 scales; norms f32)".to_owned(),
            Self::Int(_) => format!("{self} (per row, to nearest; norms f32)"),
            Self::Noise { .. } => format!("f32 + {self}"),
        };
        let head = if self == Self::Bf16Head { "bf16".to_owned() } else { f32() };
        Dtypes { weights, activations: f32(), kv_cache: f32(), head }
    }
}

fn round_row(row: &mut [f32], bits: u32) {
    let levels = ((1u32 << (bits - 1)) - 1) as f32;
    let largest = row.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    if largest > 0.0 {
        let scale = largest / levels;
        row.iter_mut().for_each(|x| *x = (*x / scale).round_ties_even() * scale);
    }
}

fn add_noise(values: &mut [f32], sigma: f64, draw: impl Fn(u64) -> f64) {
    let n = values.len() as f64;
    let mean = values.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let deviation = (values.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n).sqrt();
    for (x, i) in values.iter_mut().zip(0..) {
        *x = (f64::from(*x) + sigma * deviation * draw(i)) as f32;
    }
}

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => f.write_str("exact"),
            Self::Bf16Head => f.write_str("bf16-head"),
            Self::Int(bits) => write!(f, "int{bits}"),
            Self::Q8 => f.write_str("q8_0"),
            Self::Noise { sigma, seed } => write!(f, "noise({sigma},{seed})"),
        }
    }
}

impl FromStr for Numerics {
    type Err = UnknownNumerics;

    fn from_str(text: &str) -> std::result::Result<Self, UnknownNumerics> {
        let unknown = || UnknownNumerics(text.into());
        match text {
            "exact" => Ok(Self::Exact),
            "bf16-head" => Ok(Self::Bf16Head),
            "int8" => Ok(Self::Int(8)),
            "int4" => Ok(Self::Int(4)),
            "int3" => Ok(Self::Int(3)),
            "q8_0" => Ok(Self::Q8),
            _ => {
                let inside = text.strip_prefix("noise(").and_then(|rest| rest.strip_suffix(')')).ok_or_else(unknown)?;
                let (sigma, seed) = inside.split_once(',').ok_or_else(unknown)?;
                let sigma: f64 = sigma.trim().parse().map_err(|_| unknown())?;
                let seed = seed.trim().parse().map_err(|_| unknown())?;
                if sigma > 0.0 && sigma.is_finite() { Ok(Self::Noise { sigma, seed }) } else { Err(unknown()) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_others_are_refused() {
        let noise = Numerics::Noise { sigma: 0.05, seed: 7 };
        for numerics in [Numerics::Exact, Numerics::Bf16Head, Numerics::Int(8), Numerics::Int(3), Numerics::Q8, noise] {
            assert_eq!(numerics.to_string().parse(), Ok(numerics));
        }
        for text in ["int5", "noise(0,1)", "noise(0.1)", "noise(nan,1)", "fp8", ""] {
            assert!(text.parse::<Numerics>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_row_is_rounded_to_the_nearest_of_its_levels() {
        let mut row = [3.5, 1.2, -0.2, 0.3];
        round_row(&mut row, 4);
        assert_eq!(row, [3.5, 1.0, 0.0, 0.5]);
        let mut zeros = [0.0; 2];
        round_row(&mut zeros, 4);
        assert_eq!(zeros, [0.0; 2]);
    }

    #[test]
    fn fewer_bits_lose_more_and_vectors_lose_nothing() {
        let config = crate::Config {
            vocab: 16,
            hidden: 8,
            inter: 8,
            layers: 1,
            heads: 2,
            kv_heads: 1,
            head_dim: 4,
            max_positions: 8,
            rope_theta: 1e4,
            rms_eps: 1e-6,
            tied: true,
            eos: vec![],
        };
        let weights = Weights::random(&config, 3, 0.1).unwrap();
        let values = |weights: &Weights, rank: usize| -> Vec<f32> {
            let vars = weights.iter().filter(|(_, var)| var.rank() == rank);
            vars.flat_map(|(_, var)| var.flatten_all().unwrap().to_vec1::<f32>().unwrap()).collect()
        };
        let error = |numerics: Numerics| {
            let copy = weights.snapshot().unwrap();
            numerics.apply(&copy).unwrap();
            assert_eq!(values(&copy, 1), values(&weights, 1), "{numerics}");
            let pairs = values(&copy, 2).into_iter().zip(values(&weights, 2));
            pairs.map(|(a, b)| f64::from((a - b).abs())).sum::<f64>()
        };
        let errors = [Numerics::Exact, Numerics::Int(8), Numerics::Int(4), Numerics::Int(3)].map(error);
        assert_eq!(errors[0], 0.0);
        assert!(errors.is_sorted() && errors[1] > 0.0, "{errors:?}");
        let noise = Numerics::Noise { sigma: 0.1, seed: 1 };
        assert_eq!(error(noise), error(noise));
    }
}
