//! The exact split of `log p_theta - log q` into lag and numeric discrepancy.

use crate::support::Sampled;

/// `log p_theta - log p_s` of a drawn token, in nats. Made by [`decompose`] alone, so it is never taken against q.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct LagRatio(f64);

impl LagRatio {
    /// The log ratio, in nats.
    pub fn log(self) -> f64 {
        self.0
    }
}

/// `log p_s - log q` of a drawn token, in nats. Made by [`decompose`] alone.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Discrepancy(f64);

impl Discrepancy {
    /// The log ratio, in nats.
    pub fn log(self) -> f64 {
        self.0
    }
}

/// The three log-probs of a drawn token, in nats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogProbs {
    /// Under the trainer's weights now.
    pub log_theta: f64,
    /// Under the trainer at the sampler's weights.
    pub log_s: f64,
    /// Under the sampler.
    pub sampled: Sampled,
}

/// A ratio that is no number.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("token {}: log p_theta {}, log p_s {}, log q {}: a ratio of them is not finite", .0.sampled.token, .0.log_theta, .0.log_s, .0.sampled.log_q)]
pub struct RatioNotFinite(pub TokenLogProbs);

/// ```text
/// log p_theta - log q = (log p_theta - log p_s) + (log p_s - log q)
/// ```
///
/// # Errors
/// A difference that is NaN or infinite.
pub fn decompose(token: TokenLogProbs) -> Result<(LagRatio, Discrepancy), RatioNotFinite> {
    let (lag, numeric) = (token.log_theta - token.log_s, token.log_s - token.sampled.log_q);
    if !(lag.is_finite() && numeric.is_finite()) {
        return Err(RatioNotFinite(token));
    }
    Ok((LagRatio(lag), Discrepancy(numeric)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::TokenId;

    fn token(log_theta: f64, log_s: f64, log_q: f64) -> TokenLogProbs {
        TokenLogProbs { log_theta, log_s, sampled: Sampled { token: TokenId(1), log_q } }
    }

    #[test]
    fn the_two_terms_add_up() {
        let (lag, numeric) = decompose(token(-1.0, -1.5, -1.25)).unwrap();
        assert_eq!((lag.log(), numeric.log()), (0.5, -0.25));
    }

    #[test]
    fn a_ratio_that_is_no_number_is_an_error_with_its_parts() {
        for (log_theta, log_s) in [(f64::NAN, -1.0), (-1.0, f64::NEG_INFINITY), (f64::NEG_INFINITY, f64::NEG_INFINITY)]
        {
            assert!(decompose(token(log_theta, log_s, -1.0)).is_err());
        }
        let error = decompose(token(f64::NAN, -1.0, -1.0)).unwrap_err().to_string();
        assert_eq!(error, "token 1: log p_theta NaN, log p_s -1, log q -1: a ratio of them is not finite");
    }
}
