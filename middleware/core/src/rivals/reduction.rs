//! From per-token losses to one: what each token counts for.
//!
//! The counts are taken of the loss mask *before* anything is dropped: a denominator that shrinks with a rejection
//! inflates every gradient that is left.

use super::batch::PerToken;
use std::{fmt, iter::Sum, ops::Add};

/// What a denominator may count; those of micro-batches add up to those of the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Tokens that count.
    pub tokens: usize,
    /// Sequences with a token that counts.
    pub sequences: usize,
    /// Sequences, those without such a token too.
    pub rows: usize,
}

impl Counts {
    /// Counts of a loss mask.
    pub fn of(mask: &[Vec<bool>]) -> Self {
        let tokens = |row: &Vec<bool>| row.iter().filter(|&&counts| counts).count();
        let sequences = mask.iter().filter(|row| tokens(row) > 0).count();
        Self { tokens: mask.iter().map(tokens).sum(), sequences, rows: mask.len() }
    }
}

impl Add for Counts {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            sequences: self.sequences + other.sequences,
            rows: self.rows + other.rows,
        }
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), Add::add)
    }
}

/// How per-token losses become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// `sum / tokens` (DAPO; verl's default).
    TokenMean,
    /// `mean over sequences of the mean over tokens` (GRPO; GSPO in verl). A fully masked sequence is no sequence.
    SeqMeanTokenMean,
    /// `mean over sequences of the sum over tokens`. A fully masked sequence is no sequence.
    SeqMeanTokenSum,
    /// `sum / length` (verl). Where verl is given no length it takes the padded width, which changes with the batch.
    SeqMeanTokenSumNorm {
        /// verl's `loss_scale_factor`, in tokens.
        length: usize,
    },
    /// `sum / (rows * max_length)` (TRL `dr_grpo`). Every row counts.
    DrGrpo {
        /// Longest completion allowed, in tokens.
        max_length: usize,
    },
}

impl Reduction {
    /// What a token counts for, in a sequence of `length` tokens that count; 0 where nothing counts.
    pub fn coefficient(self, counts: Counts, length: usize) -> f64 {
        let divisor = match self {
            Self::TokenMean => counts.tokens,
            Self::SeqMeanTokenMean => counts.sequences * length,
            Self::SeqMeanTokenSum => counts.sequences,
            Self::SeqMeanTokenSumNorm { length } => length,
            Self::DrGrpo { max_length } => counts.rows * max_length,
        };
        if divisor == 0 { 0.0 } else { (divisor as f64).recip() }
    }

    /// What each token of a batch counts for, `[sequence][token]`.
    pub fn coefficients(self, mask: &[Vec<bool>], counts: Counts) -> PerToken<f64> {
        let row = |row: &Vec<bool>| {
            let coefficient = self.coefficient(counts, row.iter().filter(|&&counted| counted).count());
            row.iter().map(|&counted| if counted { coefficient } else { 0.0 }).collect()
        };
        mask.iter().map(row).collect()
    }

    /// The loss of a whole batch, its own counts as denominators. A dropped token has loss 0 and stays in `mask`.
    pub fn reduce(self, loss: &[Vec<f64>], mask: &[Vec<bool>]) -> f64 {
        let coefficients = self.coefficients(mask, Counts::of(mask));
        let pairs = coefficients.iter().flatten().zip(loss.iter().flatten());
        pairs.filter(|(coefficient, _)| **coefficient != 0.0).map(|(coefficient, loss)| coefficient * loss).sum()
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TokenMean => f.write_str("token-mean"),
            Self::SeqMeanTokenMean => f.write_str("seq-mean-token-mean"),
            Self::SeqMeanTokenSum => f.write_str("seq-mean-token-sum"),
            Self::SeqMeanTokenSumNorm { length } => write!(f, "seq-mean-token-sum-norm ({length})"),
            Self::DrGrpo { max_length } => write!(f, "dr_grpo ({max_length})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_masked_sequence_is_no_sequence_but_a_row() {
        let (loss, mask) = (vec![vec![1.0, 3.0], vec![9.0]], vec![vec![true, true], vec![false]]);
        assert_eq!(Reduction::SeqMeanTokenMean.reduce(&loss, &mask), 2.0);
        assert_eq!(Reduction::DrGrpo { max_length: 2 }.reduce(&loss, &mask), 1.0);
    }

    #[test]
    fn a_denominator_does_not_shrink_with_a_rejection() {
        let mask = vec![vec![true; 4]];
        assert_eq!(Reduction::TokenMean.reduce(&[vec![2.0, 2.0, 0.0, 0.0]], &mask), 1.0);
    }

    #[test]
    fn micro_batches_add_up() {
        let masks = [vec![vec![true, true, false]], vec![vec![true], vec![false]]];
        let counts: Counts = masks.iter().map(|mask| Counts::of(mask)).sum();
        assert_eq!(counts, Counts { tokens: 3, sequences: 2, rows: 3 });
        let whole = Counts::of(&masks.concat());
        for reduction in [Reduction::TokenMean, Reduction::SeqMeanTokenMean, Reduction::DrGrpo { max_length: 8 }] {
            let parts: Vec<_> = masks.iter().flat_map(|mask| reduction.coefficients(mask, counts)).collect();
            assert_eq!(parts, reduction.coefficients(&masks.concat(), whole));
        }
    }

    #[test]
    fn nothing_to_count_is_no_division() {
        assert_eq!(Reduction::TokenMean.reduce(&[vec![f64::NAN]], &[vec![false]]), 0.0);
    }
}
