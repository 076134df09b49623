//! q at one position: where it is not zero, and what is known of it there.

use crate::token::TokenId;

/// Largest accepted distance between the known mass plus the rest and 1.
pub const MASS_TOLERANCE: f64 = 1e-4;

/// Largest accepted difference, relative, between a token's own log-prob and its entry in the support.
pub const LOG_PROB_RTOL: f64 = 1e-4;

/// Largest accepted difference, absolute in nats, between a token's own log-prob and its entry in the support.
pub const LOG_PROB_ATOL: f64 = 1e-5;

/// A support that contradicts itself.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SupportError {
    /// No id was kept, yet a token was drawn.
    #[error("support is empty, yet token {0} was drawn from it")]
    Empty(TokenId),
    /// The drawn token has probability zero.
    #[error("token {token} is outside its support ({kept} ids)")]
    SampledOutside {
        /// The drawn token.
        token: TokenId,
        /// Ids in the support.
        kept: usize,
    },
    /// One id twice.
    #[error("token {0} stands twice in the support")]
    Duplicate(TokenId),
    /// A value that is no log-probability.
    #[error("log-prob {log_q} of token {token} is not a finite number <= 0")]
    NotALogProb {
        /// The token.
        token: TokenId,
        /// Its reported value.
        log_q: f64,
    },
    /// The rest's mass is no probability.
    #[error("log mass {0} of the unknown entries is not a finite number <= 0")]
    NotALogMass(f64),
    /// Lists that do not fit together.
    #[error("{log_probs} log-probs for {ids} ids")]
    Lengths {
        /// Ids given.
        ids: usize,
        /// Log-probs given.
        log_probs: usize,
    },
    /// Masses that do not add up.
    #[error("known mass {known} and rest {rest} add up to {total}, not to 1 within 1e-4")]
    Mass {
        /// Mass of the known entries.
        known: f64,
        /// Mass of the others.
        rest: f64,
        /// Their sum.
        total: f64,
    },
    /// Two values for one token.
    #[error("token {token} has log-prob {own}, but {entry} as an entry of its support")]
    Disagrees {
        /// The drawn token.
        token: TokenId,
        /// Its own log-prob.
        own: f64,
        /// Its entry.
        entry: f64,
    },
    /// A tail token more probable than the whole tail.
    #[error("token {token} lies in the tail with log-prob {own}, above the tail's own log mass {rest}")]
    AboveTail {
        /// The drawn token.
        token: TokenId,
        /// Its own log-prob.
        own: f64,
        /// Log mass of the tail.
        rest: f64,
    },
    /// An id the model does not have.
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    OutsideVocabulary {
        /// The id.
        token: TokenId,
        /// Size of the vocabulary.
        vocabulary: u32,
    },
}

impl SupportError {
    /// The same fault with the position of its row.
    pub fn at(self, position: usize) -> RowError {
        RowError { position, source: self }
    }
}

/// A fault of one row of a behaviour distribution.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("at position {position}: {source}")]
pub struct RowError {
    /// Index of the row, counted from the first sampled token of its run.
    pub position: usize,
    /// What is wrong with it.
    #[source]
    pub source: SupportError,
}

/// The drawn token and its own log-prob under q, in nats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: TokenId,
    /// log q of it.
    pub log_q: f64,
}

/// Where q may be non-zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    /// On the listed ids alone.
    Listed,
    /// On a whole vocabulary of this size; the listed ids are its head.
    Vocabulary(u32),
}

/// q at one position.
///
/// The first [`Support::known`] of the ids have a known log-prob; `log_rest` is the log mass of all others, `None` when
/// there are none. Three kinds occur:
///
/// | kind | ids | known | `log_rest` |
/// |---|---|---|---|
/// | exact | the kept set | all | none |
/// | head of an untruncated q | the top k of the vocabulary | all | the tail's mass |
/// | head inside a mask | the kept set | the first few | the mass of the other kept ids |
#[derive(Debug, Clone, PartialEq)]
pub struct Support {
    domain: Domain,
    ids: Vec<TokenId>,
    log_q: Vec<f64>,
    sampled: Sampled,
    log_rest: Option<f64>,
}

/// What is known of q at one position, before it has been checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Reported {
    /// The kept ids, or the head of the vocabulary.
    pub ids: Vec<TokenId>,
    /// log q of the first ids, in nats.
    pub log_q: Vec<f64>,
    /// Log mass of everything else, `None` when there is nothing else.
    pub log_rest: Option<f64>,
    /// Where q may be non-zero.
    pub domain: Domain,
}

impl Support {
    /// Checks a report against itself and against the drawn token.
    ///
    /// # Errors
    /// Whatever [`SupportError`] names: ids that repeat or lie outside, values that are no log-probs, masses that do not
    /// add up to 1 within [`MASS_TOLERANCE`], a drawn token that could not be drawn.
    pub fn new(sampled: Sampled, reported: Reported) -> Result<Self, SupportError> {
        Self::unchecked(sampled, reported).checked()
    }

    pub(crate) fn unchecked(sampled: Sampled, reported: Reported) -> Self {
        let Reported { ids, log_q, log_rest, domain } = reported;
        Self { domain, ids, log_q, sampled, log_rest }
    }

    pub(crate) fn checked(self) -> Result<Self, SupportError> {
        let (ids, log_probs) = (self.ids.len(), self.log_q.len());
        if ids == 0 && self.domain == Domain::Listed {
            return Err(SupportError::Empty(self.sampled.token));
        }
        let partial = self.log_rest.is_some() && self.domain == Domain::Listed;
        if log_probs > ids || (log_probs < ids && !partial) {
            return Err(SupportError::Lengths { ids, log_probs });
        }
        check_ids(&self.ids, self.domain)?;
        check_log_probs(&self.ids, &self.log_q, self.sampled)?;
        check_mass(&self.log_q, self.log_rest)?;
        self.check_sampled()?;
        Ok(self)
    }

    /// A support of which nothing is unknown: the kept ids and their renormalised log-probs.
    ///
    /// # Errors
    /// As [`Support::new`]; also when `token` is not among the ids.
    pub fn exact(token: TokenId, ids: Vec<TokenId>, log_q: Vec<f64>) -> Result<Self, SupportError> {
        Self::exact_unchecked(token, ids, log_q)?.checked()
    }

    pub(crate) fn exact_unchecked(token: TokenId, ids: Vec<TokenId>, log_q: Vec<f64>) -> Result<Self, SupportError> {
        let at = ids.iter().position(|&id| id == token);
        let own = at.and_then(|at| log_q.get(at).copied());
        let sampled = match own {
            Some(log_q) => Sampled { token, log_q },
            None if ids.is_empty() => return Err(SupportError::Empty(token)),
            None => return Err(SupportError::SampledOutside { token, kept: ids.len() }),
        };
        Ok(Self::unchecked(sampled, Reported { ids, log_q, log_rest: None, domain: Domain::Listed }))
    }

    /// The support of a token that was the only choice.
    pub fn singleton(token: TokenId) -> Self {
        let sampled = Sampled { token, log_q: 0.0 };
        Self { domain: Domain::Listed, ids: vec![token], log_q: vec![0.0], sampled, log_rest: None }
    }

    /// Where q may be non-zero.
    pub fn domain(&self) -> Domain {
        self.domain
    }

    /// The kept ids, or the head of the vocabulary; those with a known log-prob first.
    pub fn ids(&self) -> &[TokenId] {
        &self.ids
    }

    /// log q of the known entries, in nats.
    pub fn log_q(&self) -> &[f64] {
        &self.log_q
    }

    /// Number of entries whose log-prob is known.
    pub fn known(&self) -> usize {
        self.log_q.len()
    }

    /// The drawn token.
    pub fn sampled(&self) -> Sampled {
        self.sampled
    }

    /// Log mass of the entries that are not known; `None` when nothing is unknown.
    pub fn log_rest(&self) -> Option<f64> {
        self.log_rest
    }

    /// True when nothing is unknown.
    pub fn is_exact(&self) -> bool {
        self.log_rest.is_none()
    }

    fn check_sampled(&self) -> Result<(), SupportError> {
        let Sampled { token, log_q: own } = self.sampled;
        let at = self.ids.iter().position(|&id| id == token);
        if let Some(entry) = at.and_then(|at| self.log_q.get(at).copied()) {
            let close = (own - entry).abs() <= LOG_PROB_ATOL + LOG_PROB_RTOL * entry.abs();
            return if close { Ok(()) } else { Err(SupportError::Disagrees { token, own, entry }) };
        }
        match (at, self.domain, self.log_rest) {
            (None, Domain::Listed, _) | (_, _, None) => {
                Err(SupportError::SampledOutside { token, kept: self.ids.len() })
            }
            (None, Domain::Vocabulary(vocabulary), _) if token.0 >= vocabulary => {
                Err(SupportError::OutsideVocabulary { token, vocabulary })
            }
            (_, _, Some(rest)) if own > rest + LOG_PROB_ATOL + LOG_PROB_RTOL * rest.abs() => {
                Err(SupportError::AboveTail { token, own, rest })
            }
            _ => Ok(()),
        }
    }
}

fn check_ids(ids: &[TokenId], domain: Domain) -> Result<(), SupportError> {
    if let Domain::Vocabulary(vocabulary) = domain
        && let Some(&token) = ids.iter().find(|token| token.0 >= vocabulary)
    {
        return Err(SupportError::OutsideVocabulary { token, vocabulary });
    }
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(SupportError::Duplicate(pair[0])),
        None => Ok(()),
    }
}

fn check_log_probs(ids: &[TokenId], log_q: &[f64], sampled: Sampled) -> Result<(), SupportError> {
    let entries = ids.iter().copied().zip(log_q.iter().copied());
    for (token, log_q) in entries.chain([(sampled.token, sampled.log_q)]) {
        if !(log_q.is_finite() && log_q <= 0.0) {
            return Err(SupportError::NotALogProb { token, log_q });
        }
    }
    Ok(())
}

fn check_mass(log_q: &[f64], log_rest: Option<f64>) -> Result<(), SupportError> {
    if let Some(rest) = log_rest
        && !(rest.is_finite() && rest <= 0.0)
    {
        return Err(SupportError::NotALogMass(rest));
    }
    let known: f64 = log_q.iter().map(|log_q| log_q.exp()).sum();
    let rest = log_rest.map_or(0.0, f64::exp);
    let total = known + rest;
    if (total - 1.0).abs() > MASS_TOLERANCE {
        return Err(SupportError::Mass { known, rest, total });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[u32]) -> Vec<TokenId> {
        ids.iter().copied().map(TokenId).collect()
    }

    fn ln(masses: &[f64]) -> Vec<f64> {
        masses.iter().map(|mass| mass.ln()).collect()
    }

    fn head(sampled: Sampled, head: &[u32], masses: &[f64], rest: f64) -> Result<Support, SupportError> {
        let (ids, log_q) = (ids(head), ln(masses));
        Support::new(sampled, Reported { ids, log_q, log_rest: Some(rest.ln()), domain: Domain::Vocabulary(10) })
    }

    #[test]
    fn a_token_outside_its_support_is_named_with_the_number_of_ids() {
        let error = Support::exact(TokenId(9), ids(&[1, 2]), ln(&[0.5, 0.5])).unwrap_err();
        assert_eq!(error.at(3).to_string(), "at position 3: token 9 is outside its support (2 ids)");
        assert_eq!(Support::exact(TokenId(9), vec![], vec![]), Err(SupportError::Empty(TokenId(9))));
    }

    #[test]
    fn duplicates_positive_and_non_finite_values_are_refused() {
        let twice = Support::exact(TokenId(1), ids(&[1, 1]), ln(&[0.5, 0.5]));
        assert_eq!(twice, Err(SupportError::Duplicate(TokenId(1))));
        for bad in [0.01, f64::NAN, f64::NEG_INFINITY, f64::INFINITY] {
            let result = Support::exact(TokenId(1), ids(&[1, 2]), vec![-0.1, bad]);
            assert!(matches!(result, Err(SupportError::NotALogProb { token: TokenId(2), .. })), "{bad}");
        }
    }

    #[test]
    fn masses_add_up_to_one_within_the_tolerance() {
        assert!(Support::exact(TokenId(1), ids(&[1, 2]), ln(&[0.5, 0.499_95])).is_ok());
        let short = Support::exact(TokenId(1), ids(&[1, 2]), ln(&[0.5, 0.4]));
        assert!(matches!(short, Err(SupportError::Mass { .. })));
        let over = head(Sampled { token: TokenId(1), log_q: 0.9f64.ln() }, &[1, 2], &[0.9, 0.2], 1e-9);
        assert!(matches!(over, Err(SupportError::Mass { .. })));
    }

    #[test]
    fn a_head_may_hold_the_sampled_token_in_its_tail() {
        let tail = Sampled { token: TokenId(7), log_q: 0.05f64.ln() };
        assert!(head(tail, &[1, 2], &[0.6, 0.3], 0.1).is_ok());
        let above = Sampled { token: TokenId(7), log_q: 0.2f64.ln() };
        assert!(matches!(head(above, &[1, 2], &[0.6, 0.3], 0.1), Err(SupportError::AboveTail { .. })));
        let beyond = Sampled { token: TokenId(10), log_q: 0.05f64.ln() };
        assert!(matches!(head(beyond, &[1, 2], &[0.6, 0.3], 0.1), Err(SupportError::OutsideVocabulary { .. })));
    }

    #[test]
    fn a_head_inside_a_mask_keeps_the_other_ids_possible() {
        let reported = |token: u32| {
            let (ids, log_q) = (ids(&[1, 2, 3]), ln(&[0.6, 0.3]));
            let sampled = Sampled { token: TokenId(token), log_q: 0.1f64.ln() };
            Support::new(sampled, Reported { ids, log_q, log_rest: Some(0.1f64.ln()), domain: Domain::Listed })
        };
        assert!(reported(3).is_ok());
        assert!(matches!(reported(4), Err(SupportError::SampledOutside { kept: 3, .. })));
    }

    #[test]
    fn two_values_for_one_token_are_a_contradiction() {
        let own = Sampled { token: TokenId(1), log_q: 0.5f64.ln() };
        assert!(matches!(head(own, &[1, 2], &[0.6, 0.3], 0.1), Err(SupportError::Disagrees { .. })));
    }
}
