//! Effective sample size and statistics of raw lag ratios: `l_t = log p_theta - log p_s` of every drawn token, answers one
//! behind the other. f64 in pieces of a fixed size, so the number of threads changes no bit.
//!
//! ```text
//! ess(l) = (sum exp l)^2 / (N sum exp 2l)      k1 = -l      k3 = exp l - 1 - l
//! ```

use crate::{Error, Result};
use rayon::prelude::*;

/// Answers of one parallel piece.
const ANSWERS: usize = 256;

/// What the ratios of one batch show; sees them before any clip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RatioStatistics {
    /// ESS with a token as a sample, in `[1/N, 1]`.
    pub ess_token: f64,
    /// ESS with an answer as a sample: the weight of one is the product of its ratios. Answers without tokens are none.
    pub ess_sequence: f64,
    /// Largest `|l|`.
    pub max_abs: f64,
    /// Share of tokens whose ratio a clip to the given bounds would change.
    pub clipped: f64,
    /// Mean of `-l`.
    pub k1: f64,
    /// Mean of `exp l - 1 - l`.
    pub k3: f64,
}

/// `sum exp(l)` and `sum exp(2 l)` with the largest l taken out.
#[derive(Debug, Clone, Copy)]
struct Weights {
    max: f64,
    sum: f64,
    squares: f64,
    n: usize,
}

impl Weights {
    const NONE: Self = Self { max: f64::NEG_INFINITY, sum: 0.0, squares: 0.0, n: 0 };

    fn of(log_weights: &[f64]) -> Self {
        let max = log_weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights = log_weights.iter().map(|l| (l - max).exp());
        let (sum, squares) = weights.fold((0.0, 0.0), |(sum, squares), w| (sum + w, squares + w * w));
        Self { max, sum, squares, n: log_weights.len() }
    }

    fn join(self, other: Self) -> Self {
        let max = self.max.max(other.max);
        if max == f64::NEG_INFINITY {
            return self;
        }
        let (a, b) = ((self.max - max).exp(), (other.max - max).exp());
        let sum = a * self.sum + b * other.sum;
        Self { max, sum, squares: a * a * self.squares + b * b * other.squares, n: self.n + other.n }
    }

    fn ess(self) -> f64 {
        self.sum * self.sum / (self.n as f64 * self.squares)
    }
}

#[derive(Debug, Clone, Copy)]
struct Sums {
    token: Weights,
    sequence: Weights,
    max_abs: f64,
    clipped: usize,
    k1: f64,
    k3: f64,
}

/// `exp(x) - 1 - x`, by its series where the difference would cancel.
fn k3(x: f64) -> f64 {
    if x.abs() < 1e-3 { x * x / 2.0 * (1.0 + x / 3.0 * (1.0 + x / 4.0 * (1.0 + x / 5.0))) } else { x.exp_m1() - x }
}

impl Sums {
    fn of(lags: &[f64], answers: &[u32], bounds: (f64, f64)) -> Self {
        let of_answer = |ends: &[u32]| lags[ends[0] as usize..ends[1] as usize].iter().sum::<f64>();
        let with_tokens = answers.windows(2).filter(|ends| ends[0] < ends[1]);
        let sequences: Vec<f64> = with_tokens.map(of_answer).collect();
        let tokens = answers.first().map_or(0, |first| *first as usize)..answers.last().map_or(0, |end| *end as usize);
        let lags = &lags[tokens];
        Self {
            token: Weights::of(lags),
            sequence: Weights::of(&sequences),
            max_abs: lags.iter().fold(0.0, |max, l| max.max(l.abs())),
            clipped: lags.iter().filter(|l| **l < bounds.0 || **l > bounds.1).count(),
            k1: -lags.iter().sum::<f64>(),
            k3: lags.iter().map(|l| k3(*l)).sum(),
        }
    }

    fn join(self, other: Self) -> Self {
        Self {
            token: self.token.join(other.token),
            sequence: self.sequence.join(other.sequence),
            max_abs: self.max_abs.max(other.max_abs),
            clipped: self.clipped + other.clipped,
            k1: self.k1 + other.k1,
            k3: self.k3 + other.k3,
        }
    }
}

/// Statistics of the log ratios `lags [N]`; answer `i` has those from `offsets[i]` to `offsets[i + 1]`. A ratio is clipped
/// outside `clip`, bounds of the ratio itself, inclusive.
///
/// # Errors
/// No token, a ratio that is not finite, offsets that do not ascend from 0 to N.
pub fn ratio_statistics(lags: &[f64], offsets: &[u32], clip: (f64, f64)) -> Result<RatioStatistics> {
    if lags.is_empty() {
        return Err(Error::EmptyRow);
    }
    if let Some(at) = lags.iter().position(|l| !l.is_finite()) {
        return Err(Error::Ratio { at, value: lags[at] });
    }
    let end = offsets.last().map_or(0, |end| *end as usize);
    if offsets.first() != Some(&0) || end != lags.len() || !offsets.is_sorted() {
        return Err(Error::Size { name: "end of the offsets", got: end, want: lags.len() });
    }
    let bounds = (clip.0.ln(), clip.1.ln());
    let answers = offsets.len() - 1;
    let pieces = (0..answers.div_ceil(ANSWERS)).into_par_iter();
    let of_piece = |at: usize| Sums::of(lags, &offsets[at * ANSWERS..=((at + 1) * ANSWERS).min(answers)], bounds);
    let pieces: Vec<Sums> = pieces.map(of_piece).collect();
    let nothing = Sums { token: Weights::NONE, sequence: Weights::NONE, max_abs: 0.0, clipped: 0, k1: 0.0, k3: 0.0 };
    let all = pieces.into_iter().fold(nothing, Sums::join);
    let n = lags.len() as f64;
    Ok(RatioStatistics {
        ess_token: all.token.ess(),
        ess_sequence: all.sequence.ess(),
        max_abs: all.max_abs,
        clipped: all.clipped as f64 / n,
        k1: all.k1 / n,
        k3: all.k3 / n,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::philox::normal;

    const CLIP: (f64, f64) = (0.0, 2.0);

    #[test]
    fn known_values() {
        let lags: Vec<f64> = [2.0f64, 1.0, 1.0, 1.0].iter().map(|w| w.ln()).collect();
        let found = ratio_statistics(&lags, &[0, 2, 2, 4], CLIP).unwrap();
        assert!((found.ess_token - 25.0 / 28.0).abs() < 1e-15);
        assert!((found.ess_sequence - 9.0 / 10.0).abs() < 1e-15);
        assert_eq!((found.max_abs, found.clipped), (2f64.ln(), 0.0));
        assert!((found.k1 + 2f64.ln() / 4.0).abs() < 1e-15);
        assert!((found.k3 - (1.0 - 2f64.ln()) / 4.0).abs() < 1e-15);
        assert_eq!(ratio_statistics(&lags, &[0, 4], (0.5, 1.5)).unwrap().clipped, 0.25);
    }

    /// Large log weights, in pieces, against one sum over all.
    #[test]
    fn pieces_are_the_whole() {
        let (answers, length) = (1000usize, 7usize);
        let lags: Vec<f64> = (0..answers * length).map(|i| 90.0 * normal(1, 0, i as u64)).collect();
        let offsets: Vec<u32> = (0..=answers).map(|i| (i * length) as u32).collect();
        let found = ratio_statistics(&lags, &offsets, CLIP).unwrap();
        let ess = |l: &[f64]| Weights::of(l).ess();
        assert!((found.ess_token / ess(&lags) - 1.0).abs() < 1e-12);
        let sequences: Vec<f64> = lags.chunks(length).map(|l| l.iter().sum()).collect();
        assert!((found.ess_sequence / ess(&sequences) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn refusals_carry_the_numbers() {
        assert_eq!(ratio_statistics(&[], &[0], CLIP), Err(Error::EmptyRow));
        let nan = ratio_statistics(&[0.0, f64::NAN], &[0, 2], CLIP).unwrap_err();
        assert_eq!(nan.to_string(), "log ratio 1 is NaN");
        for offsets in [&[][..], &[1, 2], &[0, 1], &[0, 2, 1, 2]] {
            assert!(ratio_statistics(&[0.0, 0.0], offsets, CLIP).is_err(), "{offsets:?}");
        }
    }
}
