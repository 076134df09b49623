//! Keep-sampling-mask (DeepSeek-V3.2, arXiv 2512.02556): p taken over the ids the sampler kept.
//!
//! Without it `E_q[s] = (q - p) / T` is not 0 even where q is p on its support: a drift towards the support.

use crate::token::TokenId;

/// A row that cannot be replayed. prime-rl falls back to the vocabulary here; this does not.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ReplayError {
    /// The drawn token was not kept.
    #[error("token {token} is outside its support ({kept} ids)")]
    SampledOutside {
        /// The drawn token.
        token: TokenId,
        /// Ids kept.
        kept: usize,
    },
    /// An id the row does not have.
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    OutsideVocabulary {
        /// The id.
        token: TokenId,
        /// Entries of the row.
        vocabulary: usize,
    },
    /// A kept id without a probability.
    #[error("log p {log_p} of kept token {token} is not a finite number <= 0")]
    NotALogProb {
        /// The id.
        token: TokenId,
        /// Its log p.
        log_p: f64,
    },
}

/// p over a support.
#[derive(Debug, Clone, PartialEq)]
pub struct Replayed {
    /// `log p^S_v` of the kept ids, in their order, nats.
    pub log_p: Vec<f64>,
    /// The same of the drawn token.
    pub log_p_sampled: f64,
    /// `log P(S)`: the mass of p on the support.
    pub log_mass: f64,
}

/// `log p^S_v = log p_v - log P(S)`, `P(S) = sum_{u in S} p_u`.
///
/// # Errors
/// A drawn token that was not kept, a kept id without a probability.
pub fn keep_sampling_mask(log_p: &[f64], kept: &[TokenId], sampled: TokenId) -> Result<Replayed, ReplayError> {
    let entry = |&token: &TokenId| match log_p.get(token.0 as usize) {
        None => Err(ReplayError::OutsideVocabulary { token, vocabulary: log_p.len() }),
        Some(&log_p) if !(log_p.is_finite() && log_p <= 0.0) => Err(ReplayError::NotALogProb { token, log_p }),
        Some(&log_p) => Ok(log_p),
    };
    let entries = kept.iter().map(entry).collect::<Result<Vec<f64>, _>>()?;
    let outside = ReplayError::SampledOutside { token: sampled, kept: kept.len() };
    let at = kept.iter().position(|&id| id == sampled).ok_or(outside)?;
    let max = entries.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_mass = max + entries.iter().map(|log_p| (log_p - max).exp()).sum::<f64>().ln();
    let log_p: Vec<f64> = entries.iter().map(|log_p| log_p - log_mass).collect();
    Ok(Replayed { log_p_sampled: log_p[at], log_p, log_mass })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_outside_the_mask_is_an_error_and_no_fallback() {
        let log_p = [0.5f64.ln(), 0.25f64.ln(), 0.25f64.ln()];
        let ids = [TokenId(1), TokenId(2)];
        let replayed = keep_sampling_mask(&log_p, &ids, TokenId(2)).unwrap();
        assert!((replayed.log_p_sampled - 0.5f64.ln()).abs() < 1e-15);
        assert!((replayed.log_mass - 0.5f64.ln()).abs() < 1e-15);
        let error = keep_sampling_mask(&log_p, &ids, TokenId(0)).unwrap_err().to_string();
        assert_eq!(error, "token 0 is outside its support (2 ids)");
        assert!(keep_sampling_mask(&log_p, &[TokenId(7)], TokenId(7)).is_err());
        assert!(keep_sampling_mask(&[f64::NAN], &[TokenId(0)], TokenId(0)).is_err());
    }
}
