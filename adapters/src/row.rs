//! One position of a reply: from reported values to a checked support. Knows no dialect.

use crate::{
    json::Number,
    wire::{Asked, WireError, check_vocabulary},
};
use lockstep_core::{
    TokenId,
    support::{Domain, MASS_TOLERANCE, Reported, Sampled, Support},
};

/// The value that vLLM writes for minus infinity and for what is missing.
pub(crate) const NEVER: f64 = -9999.0;

/// Smallest mass of a rest: below it the rounding of the reported log-probs decides.
const SMALLEST_REST: f64 = 1e-12;

/// What a row says before it is checked.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// Its index among the rollout's sampled tokens.
    pub(crate) position: usize,
    /// The drawn token and its own log-prob.
    pub(crate) sampled: Sampled,
    /// Ids with a known log-prob, each once.
    pub(crate) entries: Vec<(TokenId, f64)>,
}

/// A log-prob of the wire.
///
/// # Errors
/// What is not finite, what is above 0, and -9999, with position and value.
pub(crate) fn log_prob(value: &Number, token: TokenId, place: Place) -> Result<f64, WireError> {
    let refused = |value: String| WireError::NotALogProb { position: place.position, token, what: place.what, value };
    match *value {
        Number::Is(log_q) if log_q == NEVER => {
            Err(refused("-9999.0, the mark of what is missing or impossible".into()))
        }
        Number::Is(log_q) if log_q.is_finite() && log_q <= 0.0 => Ok(log_q + 0.0),
        ref other => Err(refused(format!("{other}, not a finite number <= 0"))),
    }
}

/// Where a value stands, for its error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The row.
    pub(crate) position: usize,
    /// What the value is called.
    pub(crate) what: &'static str,
}

/// A token id of the wire.
///
/// # Errors
/// What is no id, with position and value.
pub(crate) fn token_id(value: &Number, place: Place) -> Result<TokenId, WireError> {
    let Place { position, what } = place;
    value.id().map(TokenId).ok_or_else(|| WireError::NotAnId { position, what, value: value.to_string() })
}

impl Row {
    /// The entries are the whole support; of more than `head` the least probable become mass.
    ///
    /// # Errors
    /// Whatever contradicts itself.
    pub(crate) fn exact(self, asked: &Asked) -> Result<Support, WireError> {
        let head = asked.head;
        if self.entries.len() <= head {
            return self.support(asked, None, Domain::Listed);
        }
        self.clone().support(asked, None, Domain::Listed)?;
        let tail: f64 = self.descending().split_off(head).iter().map(|(_, log_q)| log_q.exp()).sum();
        let mut row = self;
        let mut kept = row.descending();
        let others: Vec<TokenId> = kept.split_off(head).into_iter().map(|(token, _)| token).collect();
        row.entries = kept;
        row.with_others(asked, others, tail)
    }

    /// The entries are the most probable of the kept ids.
    ///
    /// # Errors
    /// Whatever contradicts itself: an entry outside the mask, a rest that the other ids cannot carry.
    pub(crate) fn masked(mut self, asked: &Asked, mask: &[TokenId]) -> Result<Support, WireError> {
        check_vocabulary(mask, asked.vocabulary, self.position)?;
        let room = asked.head.min(mask.len());
        if self.entries.len() < room {
            let (position, listed) = (self.position, self.entries.len());
            return Err(WireError::MaskUnlisted { position, kept: mask.len(), listed, room });
        }
        self.entries = self.descending();
        self.drop_outlier(mask.len());
        if let Some(&(token, _)) = self.entries.iter().find(|(token, _)| !mask.contains(token)) {
            let error = lockstep_core::support::SupportError::SampledOutside { token, kept: mask.len() };
            return Err(error.at(self.position).into());
        }
        let others: Vec<TokenId> =
            mask.iter().copied().filter(|id| self.entries.iter().all(|(e, _)| e != id)).collect();
        if others.is_empty() {
            return self.exact(asked);
        }
        let rest = 1.0 - self.known();
        let bound = self.entries.last().map_or(1.0, |(_, log_q)| log_q.exp());
        if rest > others.len() as f64 * bound + MASS_TOLERANCE {
            return Err(WireError::RestTooLarge { position: self.position, others: others.len(), rest, bound });
        }
        self.with_others(asked, others, rest)
    }

    /// The entries are the head of a q on the whole vocabulary.
    ///
    /// # Errors
    /// Whatever contradicts itself.
    pub(crate) fn untruncated(mut self, asked: &Asked) -> Result<Support, WireError> {
        self.entries = self.descending();
        self.drop_outlier(asked.vocabulary as usize);
        self.entries.truncate(asked.head);
        if self.entries.len() == asked.vocabulary as usize {
            return self.support(asked, None, Domain::Listed);
        }
        let rest = self.rest(1.0 - self.known());
        self.support(asked, Some((vec![], rest)), Domain::Vocabulary(asked.vocabulary))
    }

    /// Refuses entries of which nothing says that they are all: neither an entry beyond the support was seen, nor do they
    /// carry all of the mass.
    ///
    /// # Errors
    /// [`WireError::Incomplete`].
    pub(crate) fn complete(self, beyond: bool, advice: &'static str) -> Result<Self, WireError> {
        let known = self.known();
        if beyond || known > 1.0 - MASS_TOLERANCE {
            return Ok(self);
        }
        Err(WireError::Incomplete { position: self.position, listed: self.entries.len(), known, advice })
    }

    /// Mass of the entries.
    pub(crate) fn known(&self) -> f64 {
        self.entries.iter().fold(0.0, |mass, (_, log_q)| mass + log_q.exp())
    }

    fn descending(&self) -> Vec<(TokenId, f64)> {
        let mut entries = self.entries.clone();
        entries.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        entries
    }

    /// Takes the drawn token off the end of a list that is not whole: engines add it to the most probable ids, so that it
    /// may be less probable than ids that are not listed.
    fn drop_outlier(&mut self, whole: usize) {
        let last = self.entries.last().is_some_and(|(token, _)| *token == self.sampled.token);
        if last && self.entries.len() < whole {
            self.entries.pop();
        }
    }

    /// At least what rounding leaves, and at least the drawn token's own mass where that lies in it.
    fn rest(&self, mass: f64) -> f64 {
        let listed = self.entries.iter().any(|(token, _)| *token == self.sampled.token);
        let own = if listed { 0.0 } else { self.sampled.log_q.exp() };
        // A drawn token far above the rest is no rounding: the support refuses it.
        let own = if own <= mass + MASS_TOLERANCE { own } else { 0.0 };
        mass.max(own).clamp(SMALLEST_REST, 1.0)
    }

    fn with_others(self, asked: &Asked, others: Vec<TokenId>, mass: f64) -> Result<Support, WireError> {
        let rest = self.rest(mass);
        self.support(asked, Some((others, rest)), Domain::Listed)
    }

    fn support(self, asked: &Asked, rest: Option<(Vec<TokenId>, f64)>, domain: Domain) -> Result<Support, WireError> {
        let (mut ids, log_q): (Vec<TokenId>, Vec<f64>) = self.entries.into_iter().unzip();
        let log_rest = rest.map(|(others, mass)| {
            ids.extend(others);
            mass.ln()
        });
        check_vocabulary(&[self.sampled.token], asked.vocabulary, self.position)?;
        check_vocabulary(&ids, asked.vocabulary, self.position)?;
        let reported = Reported { ids, log_q, log_rest, domain };
        Support::new(self.sampled, reported).map_err(|error| error.at(self.position).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_core::sampling::Truncation;

    fn asked(head: usize) -> Asked {
        let truncation = Truncation { top_k: 8, top_p: 0.9, min_p: 0.0 };
        Asked { vocabulary: 100, head, truncation, resumed: 0, remaining: 8, stop: vec![] }
    }

    fn row(token: u32, own: f64, entries: &[(u32, f64)]) -> Row {
        let entries = entries.iter().map(|&(id, q)| (TokenId(id), q.ln())).collect();
        Row { position: 3, sampled: Sampled { token: TokenId(token), log_q: own.ln() }, entries }
    }

    const FOUR: [(u32, f64); 4] = [(5, 0.1), (6, 0.5), (7, 0.3), (8, 0.1)];

    #[test]
    fn a_long_support_keeps_its_head_and_the_mass_of_the_others() {
        let whole = row(5, 0.1, &FOUR).exact(&asked(4)).unwrap();
        assert!(whole.is_exact());
        let cut = row(5, 0.1, &FOUR).exact(&asked(2)).unwrap();
        assert_eq!(cut.ids().iter().map(|id| id.0).collect::<Vec<_>>(), [6, 7, 5, 8]);
        assert_eq!(cut.known(), 2);
        assert!((cut.log_rest().unwrap().exp() - 0.2).abs() < 1e-12);
        let short = row(5, 0.1, &FOUR[..3]).exact(&asked(4)).unwrap_err();
        assert!(short.to_string().contains("not to 1 within 1e-4"), "{short}");
    }

    #[test]
    fn a_mask_that_lost_ids_cannot_carry_the_missing_mass() {
        let mask: Vec<TokenId> = (5..9).map(TokenId).collect();
        let whole = row(8, 0.1, &[(6, 0.5), (7, 0.3)]).masked(&asked(2), &mask).unwrap();
        assert_eq!((whole.known(), whole.ids().len()), (2, 4));
        let lost = row(6, 0.5, &[(6, 0.5), (7, 0.1)]).masked(&asked(2), &mask[..3]).unwrap_err();
        assert!(lost.to_string().starts_with("at position 3: 1 kept ids without a log-prob would carry mass 0.4"));
        let outside = row(9, 0.5, &[(9, 0.5), (7, 0.3)]).masked(&asked(2), &mask).unwrap_err();
        assert_eq!(outside.to_string(), "at position 3: token 9 is outside its support (4 ids)");
    }

    #[test]
    fn an_untruncated_q_is_a_head_and_a_tail() {
        let head = row(50, 0.01, &[(6, 0.5), (7, 0.3)]).untruncated(&asked(2)).unwrap();
        assert_eq!(head.domain(), Domain::Vocabulary(100));
        let above = row(50, 0.4, &[(6, 0.5), (7, 0.3)]).untruncated(&asked(2)).unwrap_err();
        assert!(above.to_string().contains("above the tail"), "{above}");
        let beyond = row(100, 0.01, &[(6, 0.5), (7, 0.3)]).untruncated(&asked(2)).unwrap_err();
        assert!(beyond.to_string().contains("outside the vocabulary of 100"), "{beyond}");
    }
}
