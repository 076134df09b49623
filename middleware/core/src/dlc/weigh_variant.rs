//! From the log-probs of one position to its `(w, c)` under any form of DLC.

use super::{
    decompose::RatioNotFinite,
    rule::TailModel,
    variant::{AdvantageSign, Centring, LagBound, NumericWeight, Variant, VariantError},
    weigh::{Position, TailTerm, Tails, TokenCorrection, WeighError},
};

/// A position that a form cannot correct.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum VariantWeighError {
    /// As under [`super::Rule`].
    #[error(transparent)]
    Weigh(#[from] WeighError),
    /// The form or the advantage.
    #[error(transparent)]
    Variant(#[from] VariantError),
    /// A ratio beyond the largest number.
    #[error("weight {0} of the drawn token is not finite")]
    Weight(f64),
    /// A coefficient beyond the largest number.
    #[error("centring coefficient {c} of known entry {entry} is not finite")]
    Coefficient {
        /// Its index among the known entries.
        entry: usize,
        /// Its value.
        c: f64,
    },
}

impl From<RatioNotFinite> for VariantWeighError {
    fn from(error: RatioNotFinite) -> Self {
        Self::Weigh(error.into())
    }
}

impl Variant {
    /// The `(w, c)` of one position, for an advantage of which only the sign is used, and that by PPO's clip alone.
    ///
    /// ```text
    /// w   = n_a w_a        n_v = min(p_s,v / q_v, C) or 1        w_v: the bounded p_theta,v / p_s,v
    /// c_v = q_v n_v w_v    or (q_v - p_s,v) w_v    or 0
    /// ```
    ///
    /// # Errors
    /// A ratio, weight or advantage that is not finite; scores that do not cover the support.
    pub fn weigh(&self, position: &Position<'_>, advantage: f64) -> Result<TokenCorrection, VariantWeighError> {
        let sign = AdvantageSign::of(advantage)?;
        let (lag, numeric) = position.decompose()?;
        position.check()?;
        let w = self.numeric_weight(numeric.log()) * self.lag().of_log(lag.log(), sign);
        let mut correction = TokenCorrection { w, c: self.known(position, sign), tail: None };
        if self.centring() != Centring::Off
            && let Some(tails) = position.tails()?
        {
            self.add_tail(&mut correction, position, (&tails, sign));
        }
        checked(correction)
    }

    fn numeric_weight(&self, log_ratio: f64) -> f64 {
        match self.numeric() {
            NumericWeight::None => 1.0,
            NumericWeight::Truncated(cap) => log_ratio.min(cap.ln()).exp().min(cap),
        }
    }

    /// `m_v` of `c_v = m_v w_v`: `q_v`, `min(p_s,v, C q_v)` or `q_v - p_s,v`; never divides by q.
    fn centred_mass(&self, q: f64, p_s: f64) -> f64 {
        match (self.centring(), self.numeric()) {
            (Centring::Off, _) => 0.0,
            (Centring::NumericOnly, _) => q - p_s,
            (Centring::LagWeighted, NumericWeight::None) => q,
            (Centring::LagWeighted, NumericWeight::Truncated(cap)) => p_s.min(cap * q),
        }
    }

    fn known(&self, position: &Position<'_>, sign: AdvantageSign) -> Vec<f64> {
        let (log_theta, log_s) = (&position.log_theta.log_p, &position.log_s.log_p);
        let entries = position.support.log_q().iter().zip(log_theta.iter().zip(log_s));
        let coefficient = |(log_q, (log_theta, log_s)): (&f64, (&f64, &f64))| {
            let mass = self.centred_mass(log_q.exp(), log_s.exp());
            if mass == 0.0 { 0.0 } else { mass * self.lag().of_log(log_theta - log_s, sign) }
        };
        entries.map(coefficient).collect()
    }

    /// Off the known entries:
    ///
    /// ```text
    /// on p_s:     q_v = (q_t / p_s,t) p_s,v, so c_v = m_t / p_s,t p_s,v clip(p_theta,v / p_s,v)
    /// collapsed:  q_v and p_s,v proportional to p_theta,v: c_v -= m_t w(p_theta,t / p_s,t) / p_theta,t p_theta,v, known v
    /// ```
    ///
    /// with `m_t` the centred mass of the tails, and `sum_v p_v s_v = 0` behind the second.
    fn add_tail(&self, correction: &mut TokenCorrection, position: &Position<'_>, tail: (&Tails, AdvantageSign)) {
        let (tails, sign) = tail;
        let mass = self.centred_mass(tails.q, tails.p_s);
        match (self.tail(), self.lag()) {
            (TailModel::SamplerWeights, LagBound::Clip(clip)) => {
                correction.tail = Some(TailTerm { scale: mass / tails.p_s, clip });
            }
            (_, bound) => {
                let alpha = mass / tails.p_theta * bound.of_log((tails.p_theta / tails.p_s).ln(), sign);
                let entries = correction.c.iter_mut().zip(&position.log_theta.log_p);
                entries.for_each(|(c, log_p)| *c -= alpha * log_p.exp());
            }
        }
    }
}

fn checked(correction: TokenCorrection) -> Result<TokenCorrection, VariantWeighError> {
    if !correction.w.is_finite() {
        return Err(VariantWeighError::Weight(correction.w));
    }
    match correction.c.iter().position(|c| !c.is_finite()) {
        Some(entry) => Err(VariantWeighError::Coefficient { entry, c: correction.c[entry] }),
        None => Ok(correction),
    }
}
