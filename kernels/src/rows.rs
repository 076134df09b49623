//! Log-probabilities of one row of logits: f32 in, f64 sums. A sequential f32 sum over a vocabulary of 151,936 is off by
//! more than a millionth; the ratios built on these numbers are not.

use crate::softmax::{Part, largest};
use crate::{Error, Result};

/// Over which set a log-probability is normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// The whole row: for tokens drawn from an untruncated distribution.
    Vocabulary,
    /// The listed ids only: for tokens drawn from a kept support.
    Listed,
}

/// `ln sum_v exp(x_v / T)`, with `inv_temperature = 1 / T`.
pub fn log_sum_exp(row: &[f32], inv_temperature: f64) -> Result<f64> {
    largest(row)?;
    Ok(Part::of(row, inv_temperature).log_sum)
}

/// `-sum_v p_v ln p_v` in nats, with `p_v = exp(x_v / T) / sum_u exp(x_u / T)`.
pub fn entropy(row: &[f32], inv_temperature: f64) -> Result<f64> {
    largest(row)?;
    Ok(Part::of(row, inv_temperature).entropy())
}

/// `x_a / T - ln sum_v exp(x_v / T)` for every listed `a`; the sum runs over `over`. The ids are distinct.
pub fn log_probs(row: &[f32], ids: &[u32], inv_temperature: f64, over: Over) -> Result<Vec<f64>> {
    if let Some(place) = ids.iter().position(|id| *id as usize >= row.len()) {
        return Err(Error::OutsideRow { id: ids[place], place, len: row.len() });
    }
    let listed: Vec<f32> = ids.iter().map(|id| row[*id as usize]).collect();
    let total = log_sum_exp(if over == Over::Vocabulary { row } else { &listed }, inv_temperature)?;
    Ok(listed.into_iter().map(|x| f64::from(x) * inv_temperature - total).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_definition() {
        let row = [1.5f32, -0.25, 0.0, 3.0, f32::NEG_INFINITY];
        let p = |x: f32| (f64::from(x) / 0.7).exp();
        let all: f64 = row.iter().map(|x| p(*x)).sum();
        let got = log_probs(&row, &[3, 0], 1.0 / 0.7, Over::Vocabulary).unwrap();
        assert!((got[0] - (p(3.0) / all).ln()).abs() < 1e-14 && (got[1] - (p(1.5) / all).ln()).abs() < 1e-14);
        let got = log_probs(&row, &[3, 0], 1.0 / 0.7, Over::Listed).unwrap();
        assert!((got.iter().map(|x| x.exp()).sum::<f64>() - 1.0).abs() < 1e-14);
        assert!((got[0] - got[1] - 1.5 / 0.7).abs() < 1e-14);
    }

    #[test]
    fn entropy_of_known_distributions() {
        assert!((entropy(&[2.0; 8], 0.3).unwrap() - 8f64.ln()).abs() < 1e-14);
        assert_eq!(entropy(&[1.0, f32::NEG_INFINITY], 1.0), Ok(0.0));
        let half = [0.0f32, 0.0, f32::NEG_INFINITY];
        assert!((entropy(&half, 2.0).unwrap() - 2f64.ln()).abs() < 1e-14);
    }

    #[test]
    fn long_rows_keep_their_digits() {
        let row = vec![0.1f32; 151_936];
        let want = f64::from(0.1f32) + 151_936f64.ln();
        assert!((log_sum_exp(&row, 1.0).unwrap() - want).abs() < 1e-10);
    }

    #[test]
    fn refuses_what_it_cannot_normalise() {
        assert_eq!(log_sum_exp(&[], 1.0), Err(Error::EmptyRow));
        assert_eq!(log_sum_exp(&[f32::NEG_INFINITY; 3], 1.0), Err(Error::NoFiniteLogit { len: 3 }));
        let nan = log_sum_exp(&[0.0, f32::NAN], 1.0).unwrap_err();
        assert_eq!(nan.to_string(), "logit of id 1 is NaN");
        let outside = log_probs(&[0.0; 4], &[1, 9], 1.0, Over::Listed).unwrap_err();
        assert_eq!(outside.to_string(), "id 9 at place 1 is outside a row of 4");
    }
}
