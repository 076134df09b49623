//! Score centring (Marek & Ryabinin, arXiv 2609.20807) with a weight f of the full ratio `r = p / q`, in the forms in
//! circulation:
//!
//! ```text
//! w = f(p_a / q_a)        c_v = q_v f(p_v / q_v)
//! ```

use super::bounds::{Band, Cap};
use crate::{
    dlc::{
        Centring, LagBound, NumericWeight, PpoClip, TailModel, TokenCorrection, Variant, VariantError,
        VariantWeighError,
        weigh::{Position, TAIL_FLOOR},
    },
    score::RowLogProbs,
    support::{MASS_TOLERANCE, Support},
    token::TokenId,
};

/// The same weight for the drawn token and for each entry of the centring.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TokenWeight {
    /// `f = 1`: score centring as published.
    One,
    /// `f = min(r, C)`; C = 2 by default (the author, verl, Miles).
    Truncated(Cap),
    /// `f = r 1[low <= r <= high]`; 0.5 to 5 by default (the author, vime).
    Masked(Band),
    /// `f = min(r, C) 1[|p - q| <= eps]` (prime-rl's IPO; eps 0.3, C 1e4). Exact supports alone.
    Ipo {
        /// Largest difference of probabilities, inclusive.
        eps: f64,
        /// C.
        cap: Cap,
    },
}

/// A position that cannot be centred.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum CentreError {
    /// A log-prob or ratio that is no number.
    #[error("token {token}: log p {log_p}, log q {log_q}: their ratio is not a finite number")]
    Ratio {
        /// The token.
        token: TokenId,
        /// Its log p.
        log_p: f64,
        /// Its log q.
        log_q: f64,
    },
    /// Scores that do not cover the support.
    #[error("{known} entries of the support are known, but {log_p} have log p")]
    Entries {
        /// Known entries.
        known: usize,
        /// Entries with log p.
        log_p: usize,
    },
    /// q has a rest, p has none.
    #[error("q has unknown entries of log mass {0}, but p has no mass for them")]
    NoRest(f64),
    /// IPO over a head.
    #[error("ipo is not defined with a modelled tail (log mass {0}): its mask needs the probability of each entry")]
    IpoTail(f64),
    /// Too much mass on a head.
    #[error("the trainer's head mass {0} exceeds 1 by more than 1e-4")]
    HeadMass(f64),
}

impl TokenWeight {
    /// f of one entry.
    pub fn of(&self, log_p: f64, log_q: f64) -> f64 {
        let ratio = (log_p - log_q).exp();
        match *self {
            Self::One => 1.0,
            Self::Truncated(cap) => cap.truncate(ratio),
            Self::Masked(band) => band.mask(ratio),
            Self::Ipo { eps, cap } if (log_p.exp() - log_q.exp()).abs() <= eps => cap.truncate(ratio),
            Self::Ipo { .. } => 0.0,
        }
    }

    /// `q f(p / q)` without dividing by q: `q`, `min(p, C q)`, `p` within the band.
    fn centred(&self, log_p: f64, log_q: f64) -> f64 {
        let (p, q) = (log_p.exp(), log_q.exp());
        match *self {
            Self::One => q,
            Self::Truncated(cap) => p.min(cap.value() * q),
            Self::Masked(band) if band.contains((log_p - log_q).exp()) => p,
            Self::Ipo { eps, cap } if (p - q).abs() <= eps => p.min(cap.value() * q),
            Self::Masked(_) | Self::Ipo { .. } => 0.0,
        }
    }

    /// `alpha = rho f(1 / rho)`: the tail's, `rho`, `min(1, C rho)`, `1[1 / high <= rho <= 1 / low]`.
    fn of_tail(&self, log_q: f64, log_p: f64) -> Result<f64, CentreError> {
        let (q, p) = (log_q.exp().max(TAIL_FLOOR), log_p.exp().max(TAIL_FLOOR));
        match self {
            Self::Ipo { .. } => Err(CentreError::IpoTail(log_q)),
            _ => Ok(self.centred(p.ln(), q.ln()) / p),
        }
    }
}

/// The `(w, c)` of one position: exact over a kept support, with a collapsed tail over a head.
///
/// ```text
/// c_v = q_v f(p_v / q_v) - alpha p_v on the head        alpha = rho f(1 / rho), rho = q_t / p_t, both at least 1e-6
/// ```
///
/// A drawn token outside the head has its own log-probs, and its own weight. A token whose weight is 0 is centred all the
/// same.
///
/// # Errors
/// A ratio that is not finite, scores that do not cover the support, IPO over a head.
pub fn centre(support: &Support, log_p: &RowLogProbs, weight: &TokenWeight) -> Result<TokenCorrection, CentreError> {
    let (known, scored) = (support.known(), log_p.log_p.len());
    if known != scored {
        return Err(CentreError::Entries { known, log_p: scored });
    }
    let own = support.sampled();
    let entries = support.ids().iter().zip(log_p.log_p.iter().zip(support.log_q()));
    let drawn = (&own.token, (&log_p.log_p_sampled, &own.log_q));
    for (&token, (&log_p, &log_q)) in entries.clone().chain([drawn]) {
        if !((log_p - log_q).is_finite() && (log_p - log_q).exp().is_finite()) {
            return Err(CentreError::Ratio { token, log_p, log_q });
        }
    }
    let mut c: Vec<f64> = entries.map(|(_, (log_p, log_q))| weight.centred(*log_p, *log_q)).collect();
    if let Some(rest) = support.log_rest() {
        let alpha = weight.of_tail(rest, log_p.log_rest.ok_or(CentreError::NoRest(rest))?)?;
        c.iter_mut().zip(&log_p.log_p).for_each(|(c, log_p)| *c -= alpha * log_p.exp());
    }
    Ok(TokenCorrection { w: weight.of(log_p.log_p_sampled, own.log_q), c, tail: None })
}

/// PPO's clip, a truncated behaviour weight, and the centring of both (SkyRL, marin). With the position's p_s for the old
/// policy o:
///
/// ```text
/// b_v = min(o_v / q_v, C)        c_v = q_v b_v r_v 1[active_v(sign A)], r = p / o
/// tail: (q_t / p_t) min(o_t / q_t, C) (p_t / o_t) 1[active], collapsed
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CentredPpo {
    clip: PpoClip,
    variant: Variant,
}

/// A position the rule cannot correct.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum CentredPpoError {
    /// The head.
    #[error(transparent)]
    Centre(#[from] CentreError),
    /// The weights.
    #[error(transparent)]
    Variant(#[from] VariantWeighError),
}

impl CentredPpo {
    /// # Errors
    /// A cap that is not a finite number >= 1.
    pub fn new(clip: PpoClip, cap: f64) -> Result<Self, VariantError> {
        let numeric = NumericWeight::Truncated(cap);
        let variant = Variant::new(Centring::LagWeighted, LagBound::Ppo(clip), numeric, TailModel::Collapsed)?;
        Ok(Self { clip, variant })
    }

    /// The clip.
    pub fn clip(&self) -> PpoClip {
        self.clip
    }

    /// The `(w, c)` of one position; of the advantage only the sign is used. The loss's value is PPO's, weighted, plus the
    /// centring's.
    ///
    /// # Errors
    /// A head on which p or o has more mass than 1 + 1e-4, a ratio that is not finite.
    pub fn weigh(&self, position: &Position<'_>, advantage: f64) -> Result<TokenCorrection, CentredPpoError> {
        for row in [position.log_theta, position.log_s] {
            let mass: f64 = row.log_p.iter().map(|log_p| log_p.exp()).sum();
            if mass > 1.0 + MASS_TOLERANCE {
                return Err(CentreError::HeadMass(mass).into());
            }
        }
        Ok(self.variant.weigh(position, advantage)?)
    }
}

#[cfg(test)]
mod tests;
