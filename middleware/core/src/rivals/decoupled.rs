//! Decoupled PPO (Hilton et al. 2022; AReaL): the ratio to a proximal policy is clipped, the behaviour weight is not.
//!
//! With p_s for the proximal policy the ratio is the lag and the weight the numeric term.

use super::{
    batch::{Batch, PerToken, Ratio, Token},
    bounds::Cap,
    importance::clamped_exp,
    ppo::{Ppo, Surrogate},
};

/// Where log p of the proximal policy comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proximal {
    /// From a forward pass at its weights.
    Recomputed,
    /// `log q + alpha (log p_theta - log q)`.
    LogLinear,
    /// `log((1 - alpha) q + alpha p_theta + 1e-10)`.
    Linear,
    /// `log q`.
    Rollout,
}

/// Weight versions of a token and of the trainer; a negative one means none is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// Of the weights that sampled the token.
    pub sampled: i64,
    /// Of theta.
    pub theta: i64,
}

impl Versions {
    /// Where the proximal policy, one update before theta, lies between the two:
    ///
    /// ```text
    /// alpha = clamp((v_theta - 1 - v_q) / (v_theta - v_q), 0, 1); 0 where v_q >= v_theta or v_q < 0
    /// ```
    pub fn alpha(self) -> f64 {
        if self.sampled < 0 || self.sampled >= self.theta {
            return 0.0;
        }
        let (to_proximal, to_theta) = (self.theta - 1 - self.sampled, self.theta - self.sampled);
        (to_proximal as f64 / to_theta as f64).clamp(0.0, 1.0)
    }
}

impl Proximal {
    /// log p of the proximal policy, detached (AReaL `prox_logp_method`).
    pub fn log_p(self, token: &Token, alpha: f64) -> f64 {
        match self {
            Self::Recomputed => token.log_s,
            Self::LogLinear => token.log_q + alpha * (token.log_theta - token.log_q),
            Self::Linear => ((1.0 - alpha) * token.log_q.exp() + alpha * token.log_theta.exp() + 1e-10).ln(),
            Self::Rollout => token.log_q,
        }
    }

    /// The proximal log-probs of a batch, `[sequence][token]`, for [`Batch::with_log_s`]; `versions` has the batch's shape.
    pub fn of(self, batch: &Batch, versions: &PerToken<Versions>) -> PerToken<f64> {
        let row = |(tokens, versions): (&Vec<Option<Token>>, &Vec<Versions>)| {
            let pairs = tokens.iter().zip(versions);
            pairs.map(|(token, v)| token.as_ref().map_or(0.0, |token| self.log_p(token, v.alpha()))).collect()
        };
        batch.sequences().iter().zip(versions).map(row).collect()
    }
}

/// `min(exp(log p_s - log q), C)`, detached.
pub fn behaviour_weight(batch: &Batch, cap: Cap) -> PerToken<f64> {
    batch.map(|token| cap.truncate(clamped_exp(Ratio::Numeric.log(token))))
}

/// `loss = min(p_s / q, C) ppo(p_theta / p_s)`, with the batch's log p_s for the proximal policy.
pub fn decoupled(batch: &Batch, ppo: &Ppo, cap: Cap) -> Surrogate {
    ppo.surrogate(batch, Ratio::Lag).times(&behaviour_weight(batch, cap))
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::batch, *};

    fn alpha(sampled: i64, theta: i64) -> f64 {
        Versions { sampled, theta }.alpha()
    }

    #[test]
    fn alpha_is_0_for_the_newest_and_for_unknown_versions() {
        assert_eq!([alpha(5, 5), alpha(6, 5), alpha(-1, 5), alpha(4, 5)], [0.0; 4]);
        assert_eq!([alpha(3, 5), alpha(1, 5)], [0.5, 0.75]);
    }

    #[test]
    fn an_approximation_lies_between_its_ends() {
        let token = Token { log_theta: -1.0, log_s: -9.0, log_q: -2.0, advantage: 1.0 };
        assert_eq!(Proximal::LogLinear.log_p(&token, 0.5), -1.5);
        assert!((Proximal::Linear.log_p(&token, 1.0) + 1.0).abs() < 1e-9);
        assert_eq!([Proximal::Rollout, Proximal::Recomputed].map(|p| p.log_p(&token, 0.5)), [-2.0, -9.0]);
    }

    #[test]
    fn a_proximal_policy_that_is_no_number_is_an_error() {
        let one = batch(&[(&[0.0], 1.0)]);
        let error = one.with_log_s(&[vec![f64::NAN]]).unwrap_err().to_string();
        assert_eq!(error, "sequence 0, token 0: log p_s is NaN");
        assert!(one.with_log_s(&[]).is_err());
    }
}
