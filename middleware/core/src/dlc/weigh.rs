//! From the log-probs of one position to its `(w, c)`.

use super::{
    decompose::{Discrepancy, LagRatio, RatioNotFinite, TokenLogProbs, decompose},
    rule::{LagClip, Rule, TailModel},
};
use crate::{rivals::Method, score::RowLogProbs, support::Support, token::TokenId};

/// Smallest mass a tail is taken to have; below it a ratio of tails is rounding (score centring, reference code).
pub const TAIL_FLOOR: f64 = 1e-6;

/// What is known of one position: q, p_s and p_theta on the same entries.
#[derive(Debug, Clone, Copy)]
pub struct Position<'a> {
    /// q.
    pub support: &'a Support,
    /// log p_s on its entries.
    pub log_s: &'a RowLogProbs,
    /// log p_theta on its entries.
    pub log_theta: &'a RowLogProbs,
}

/// The coefficients of one position's loss `-A [ sg(w) log p_a - sum_v sg(c_v) log p_v ]`.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenCorrection {
    /// Weight of the drawn token.
    pub w: f64,
    /// Centring coefficients of the known entries, in the support's order.
    pub c: Vec<f64>,
    /// Coefficients of all other entries, where they have any.
    pub tail: Option<TailTerm>,
}

/// Centring coefficients off the known entries: `c_v = scale p_s,v clip(p_theta,v / p_s,v)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TailTerm {
    /// `q_t / p_s,t`, the ratio of the tails' masses.
    pub scale: f64,
    /// Bounds of the lag ratio.
    pub clip: LagClip,
}

/// A position that cannot be corrected.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum WeighError {
    /// The drawn token's own ratio.
    #[error(transparent)]
    Ratio(#[from] RatioNotFinite),
    /// The ratio of an entry of the support.
    #[error("entry {token} of the support: log p_theta {log_theta}, log p_s {log_s}: their ratio is not finite")]
    Entry {
        /// The entry.
        token: TokenId,
        /// Its log p_theta.
        log_theta: f64,
        /// Its log p_s.
        log_s: f64,
    },
    /// Scores that do not cover the support.
    #[error("{known} entries of the support are known, but {log_theta} have log p_theta and {log_s} log p_s")]
    Entries {
        /// Known entries.
        known: usize,
        /// Entries with log p_theta.
        log_theta: usize,
        /// Entries with log p_s.
        log_s: usize,
    },
    /// q has a rest, the scores have none.
    #[error("q has unknown entries of log mass {0}, but p_theta or p_s has no mass for them")]
    NoRest(f64),
    /// A rule that a position alone does not decide.
    #[error("{0} needs the advantage of the token, and of some the whole batch; see Method::weigh")]
    NeedsAdvantage(Method),
}

impl Position<'_> {
    /// The two terms of the drawn token.
    ///
    /// # Errors
    /// A term that is not finite.
    pub fn decompose(&self) -> Result<(LagRatio, Discrepancy), RatioNotFinite> {
        let (log_theta, log_s) = (self.log_theta.log_p_sampled, self.log_s.log_p_sampled);
        decompose(TokenLogProbs { log_theta, log_s, sampled: self.support.sampled() })
    }

    pub(super) fn check(&self) -> Result<(), WeighError> {
        let (known, log_theta, log_s) = (self.support.known(), self.log_theta.log_p.len(), self.log_s.log_p.len());
        if log_theta != known || log_s != known {
            return Err(WeighError::Entries { known, log_theta, log_s });
        }
        let entries = self.support.ids().iter().zip(self.log_theta.log_p.iter().zip(&self.log_s.log_p));
        for (&token, (&log_theta, &log_s)) in entries {
            if !(log_theta - log_s).is_finite() {
                return Err(WeighError::Entry { token, log_theta, log_s });
            }
        }
        Ok(())
    }

    /// Masses of q, p_s and p_theta off the known entries, floored; `None` when nothing is unknown.
    pub(super) fn tails(&self) -> Result<Option<Tails>, WeighError> {
        let Some(q) = self.support.log_rest() else { return Ok(None) };
        let masses = self.log_s.log_rest.zip(self.log_theta.log_rest);
        let (p_s, p_theta) = masses.ok_or(WeighError::NoRest(q))?;
        let floored = |log_mass: f64| log_mass.exp().max(TAIL_FLOOR);
        Ok(Some(Tails { q: floored(q), p_s: floored(p_s), p_theta: floored(p_theta) }))
    }
}

pub(super) struct Tails {
    pub(super) q: f64,
    pub(super) p_s: f64,
    pub(super) p_theta: f64,
}

/// The `(w, c)` of one position under a rule.
///
/// # Errors
/// A ratio that is not finite, scores that do not cover the support.
pub fn weigh(position: &Position<'_>, rule: &Rule) -> Result<TokenCorrection, WeighError> {
    let (lag, _) = position.decompose()?;
    match *rule {
        Rule::Method(method) => Err(WeighError::NeedsAdvantage(method)),
        Rule::Uncorrected => Ok(TokenCorrection { w: 1.0, c: vec![0.0; position.support.known()], tail: None }),
        Rule::Dlc { lag_clip, tail } => {
            position.check()?;
            let w = lag_clip.weight(lag);
            let mut correction = TokenCorrection { w, c: lag_weighted(position, lag_clip), tail: None };
            if let Some(tails) = position.tails()? {
                match tail {
                    TailModel::SamplerWeights => {
                        correction.tail = Some(TailTerm { scale: tails.q / tails.p_s, clip: lag_clip });
                    }
                    TailModel::Collapsed => collapse(&mut correction.c, position, &tails, lag_clip),
                }
            }
            Ok(correction)
        }
    }
}

/// Form A on the known entries: `c_v = q_v clip(p_theta,v / p_s,v)`.
fn lag_weighted(position: &Position<'_>, clip: LagClip) -> Vec<f64> {
    let (log_theta, log_s) = (&position.log_theta.log_p, &position.log_s.log_p);
    let entries = position.support.log_q().iter().zip(log_theta.iter().zip(log_s));
    entries.map(|(log_q, (log_theta, log_s))| log_q.exp() * clip.of_log(log_theta - log_s)).collect()
}

/// `c_v -= alpha p_theta,v` with `alpha = rho clip(1 / sigma), rho = q_t / p_t, sigma = p_s,t / p_t`: the tail's centring,
/// modelled proportional to p_theta, moved onto the known entries by `sum_v p_v s_v = 0`.
fn collapse(c: &mut [f64], position: &Position<'_>, tails: &Tails, clip: LagClip) {
    let alpha = tails.q / tails.p_theta * clip.of_log((tails.p_theta / tails.p_s).ln());
    c.iter_mut().zip(&position.log_theta.log_p).for_each(|(c, log_p)| *c -= alpha * log_p.exp());
}
