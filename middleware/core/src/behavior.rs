//! The supports of a run of tokens as ragged columns.
//!
//! Row `t` owns the entries `offsets[t]..offsets[t + 1]`. A singleton owns none: its only id is the token, its log-prob 0.
//! Columns are f32 and u32 because that is what travels and what is stored.

use crate::{
    support::{Domain, Reported, RowError, Sampled, Support, SupportError},
    token::TokenId,
};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The columns of a behaviour distribution: T tokens, N entries.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Columns {
    /// The drawn tokens, `[T]`.
    pub tokens: Vec<TokenId>,
    /// Where each row's entries begin, `[T + 1]`.
    pub offsets: Vec<u32>,
    /// Kept ids, or heads, `[N]`; within a row those with a known log-prob first.
    pub ids: Vec<TokenId>,
    /// log q of each entry in nats, `[N]`; `-inf` marks an entry whose log-prob is not known.
    pub log_q: Vec<f32>,
    /// What exact rows do not need; absent when every row is exact.
    pub rest: Option<RestColumns>,
}

/// The columns that only partly known rows need, `[T]` each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RestColumns {
    /// Size of the vocabulary where q is untruncated, 0 where the listed ids are the whole support.
    pub vocabulary: Vec<u32>,
    /// log q of the drawn token.
    pub log_q_sampled: Vec<f32>,
    /// Log mass of the entries that are not known; `-inf` where there are none.
    pub log_rest: Vec<f32>,
}

/// Columns that do not fit together.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BehaviorError {
    /// A column of the wrong length.
    #[error("column {column} has {found} values, not {expected}")]
    Length {
        /// Its name.
        column: &'static str,
        /// Values it has.
        found: usize,
        /// Values it needs.
        expected: usize,
    },
    /// Offsets that do not ascend from 0 to the number of entries.
    #[error("offset {offset} of row {row} is outside {low}..={high}")]
    Offset {
        /// The row.
        row: usize,
        /// Its offset.
        offset: u32,
        /// Smallest legal value.
        low: u32,
        /// Largest legal value.
        high: usize,
    },
    /// A row that contradicts itself.
    #[error(transparent)]
    Row(#[from] RowError),
}

/// The supports of a run of tokens, one row a token.
#[derive(Debug, Clone, PartialEq)]
pub struct BehaviorDistribution {
    columns: Columns,
}

impl Default for BehaviorDistribution {
    fn default() -> Self {
        Self { columns: Columns { offsets: vec![0], ..Columns::default() } }
    }
}

impl BehaviorDistribution {
    /// Checks the columns row by row.
    ///
    /// # Errors
    /// Columns of unequal length, offsets that do not ascend, a row that [`Support`] refuses.
    pub fn from_columns(columns: Columns) -> Result<Self, BehaviorError> {
        check_lengths(&columns)?;
        check_offsets(&columns)?;
        let behavior = Self { columns };
        for position in 0..behavior.len() {
            behavior.read(position).and_then(Support::checked).map_err(|error| error.at(position))?;
        }
        Ok(behavior)
    }

    /// The columns, for the wire and the ledger.
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Number of tokens, T.
    pub fn len(&self) -> usize {
        self.columns.tokens.len()
    }

    /// True without tokens.
    pub fn is_empty(&self) -> bool {
        self.columns.tokens.is_empty()
    }

    /// The drawn tokens, `[T]`.
    pub fn tokens(&self) -> &[TokenId] {
        &self.columns.tokens
    }

    /// The support of token `position`.
    ///
    /// # Panics
    /// When `position` is not below [`BehaviorDistribution::len`], as slices do.
    pub fn row(&self, position: usize) -> Support {
        match self.read(position) {
            Ok(support) => support,
            Err(error) => unreachable!("row {position} was checked on entry: {error}"),
        }
    }

    /// The supports in order.
    pub fn rows(&self) -> impl Iterator<Item = Support> + '_ {
        (0..self.len()).map(|position| self.row(position))
    }

    /// Appends one support.
    pub fn push(&mut self, support: &Support) {
        if !support.is_exact() && self.columns.rest.is_none() {
            self.columns.rest = Some(RestColumns::of_exact(self.rows()));
        }
        let columns = &mut self.columns;
        columns.tokens.push(support.sampled().token);
        if !(support.is_exact() && support.ids().len() == 1) {
            columns.ids.extend_from_slice(support.ids());
            columns.log_q.extend(support.log_q().iter().map(|&log_q| log_q as f32));
            columns.log_q.resize(columns.ids.len(), f32::NEG_INFINITY);
        }
        columns.offsets.push(columns.ids.len() as u32);
        if let Some(rest) = &mut columns.rest {
            rest.push(support);
        }
    }

    /// The rows of a range of positions.
    ///
    /// # Panics
    /// When the range reaches beyond the rows, as slices do.
    pub fn slice(&self, positions: Range<usize>) -> Self {
        let columns = &self.columns;
        let offsets = &columns.offsets[positions.start..=positions.end];
        let base = columns.offsets[positions.start];
        let entries = base as usize..columns.offsets[positions.end] as usize;
        let rest = columns.rest.as_ref().map(|rest| RestColumns {
            vocabulary: rest.vocabulary[positions.clone()].to_vec(),
            log_q_sampled: rest.log_q_sampled[positions.clone()].to_vec(),
            log_rest: rest.log_rest[positions.clone()].to_vec(),
        });
        let columns = Columns {
            tokens: columns.tokens[positions].to_vec(),
            offsets: offsets.iter().map(|offset| offset - base).collect(),
            ids: columns.ids[entries.clone()].to_vec(),
            log_q: columns.log_q[entries].to_vec(),
            rest,
        };
        Self { columns }
    }

    /// Appends the rows of another run.
    pub fn extend(&mut self, other: &Self) {
        other.rows().for_each(|support| self.push(&support));
    }

    fn read(&self, position: usize) -> Result<Support, SupportError> {
        let columns = &self.columns;
        let token = columns.tokens[position];
        let entries = columns.offsets[position] as usize..columns.offsets[position + 1] as usize;
        let rest = columns.rest.as_ref().map(|rest| rest.row(position));
        let partial = rest.is_some_and(|(_, _, log_rest)| log_rest != f64::NEG_INFINITY);
        if entries.is_empty() && !partial {
            return Ok(Support::singleton(token));
        }
        let ids = columns.ids[entries.clone()].to_vec();
        let log_q = columns.log_q[entries].iter().map(|&log_q| f64::from(log_q));
        match rest {
            Some((vocabulary, log_q_sampled, log_rest)) if partial => {
                let domain = if vocabulary == 0 { Domain::Listed } else { Domain::Vocabulary(vocabulary) };
                let log_q = log_q.take_while(|&log_q| log_q != f64::NEG_INFINITY).collect();
                let sampled = Sampled { token, log_q: log_q_sampled };
                Ok(Support::unchecked(sampled, Reported { ids, log_q, log_rest: Some(log_rest), domain }))
            }
            _ => Support::exact_unchecked(token, ids, log_q.collect()),
        }
    }
}

impl RestColumns {
    fn of_exact(rows: impl Iterator<Item = Support>) -> Self {
        let mut rest = Self { vocabulary: vec![], log_q_sampled: vec![], log_rest: vec![] };
        rows.for_each(|support| rest.push(&support));
        rest
    }

    fn push(&mut self, support: &Support) {
        self.vocabulary.push(match support.domain() {
            Domain::Listed => 0,
            Domain::Vocabulary(size) => size,
        });
        self.log_q_sampled.push(support.sampled().log_q as f32);
        self.log_rest.push(support.log_rest().map_or(f32::NEG_INFINITY, |log_rest| log_rest as f32));
    }

    fn row(&self, position: usize) -> (u32, f64, f64) {
        let (own, rest) = (self.log_q_sampled[position], self.log_rest[position]);
        (self.vocabulary[position], f64::from(own), f64::from(rest))
    }
}

fn check_lengths(columns: &Columns) -> Result<(), BehaviorError> {
    let (tokens, entries) = (columns.tokens.len(), columns.ids.len());
    let mut lengths = vec![("offsets", columns.offsets.len(), tokens + 1), ("log_q", columns.log_q.len(), entries)];
    if let Some(rest) = &columns.rest {
        lengths.push(("vocabulary", rest.vocabulary.len(), tokens));
        lengths.push(("log_q_sampled", rest.log_q_sampled.len(), tokens));
        lengths.push(("log_rest", rest.log_rest.len(), tokens));
    }
    let wrong = lengths.into_iter().find(|&(_, found, expected)| found != expected);
    wrong.map_or(Ok(()), |(column, found, expected)| Err(BehaviorError::Length { column, found, expected }))
}

fn check_offsets(columns: &Columns) -> Result<(), BehaviorError> {
    let high = columns.ids.len();
    let mut low = 0;
    for (row, &offset) in columns.offsets.iter().enumerate() {
        let legal = offset >= low && offset as usize <= high && (row > 0 || offset == 0);
        let last = row + 1 == columns.offsets.len();
        if !legal || (last && offset as usize != high) {
            return Err(BehaviorError::Offset { row, offset, low, high });
        }
        low = offset;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(token: u32, masses: &[(u32, f64)]) -> Support {
        let ids = masses.iter().map(|&(id, _)| TokenId(id)).collect();
        Support::exact(TokenId(token), ids, masses.iter().map(|&(_, mass)| mass.ln()).collect()).unwrap()
    }

    fn tail(token: u32, own: f64) -> Support {
        let reported = Reported {
            ids: vec![TokenId(3), TokenId(4)],
            log_q: vec![0.5f64.ln(), 0.25f64.ln()],
            log_rest: Some(0.25f64.ln()),
            domain: Domain::Vocabulary(50),
        };
        Support::new(Sampled { token: TokenId(token), log_q: own.ln() }, reported).unwrap()
    }

    #[test]
    fn rows_come_back_as_they_went_in() {
        let rows = [exact(2, &[(1, 0.5), (2, 0.5)]), Support::singleton(TokenId(7)), tail(40, 0.125), tail(3, 0.5)];
        let mut behavior = BehaviorDistribution::default();
        rows.iter().for_each(|support| behavior.push(support));
        for (position, support) in rows.iter().enumerate() {
            let back = behavior.row(position);
            assert_eq!(
                (back.ids(), back.domain(), back.sampled().token),
                (support.ids(), support.domain(), support.sampled().token)
            );
            assert!((back.sampled().log_q - support.sampled().log_q).abs() < 1e-6);
        }
        let again = BehaviorDistribution::from_columns(behavior.columns().clone()).unwrap();
        assert_eq!(again, behavior);
        let mut twice = again.clone();
        twice.extend(&behavior);
        assert_eq!((twice.len(), twice.row(6).sampled().token), (8, TokenId(40)));
        let mut joined = twice.slice(0..3);
        joined.extend(&twice.slice(3..8));
        assert_eq!(joined, twice);
    }

    #[test]
    fn a_singleton_costs_nothing_but_its_id() {
        let mut behavior = BehaviorDistribution::default();
        behavior.push(&Support::singleton(TokenId(7)));
        assert_eq!((behavior.columns().ids.len(), behavior.columns().offsets.clone()), (0, vec![0, 0]));
    }

    #[test]
    fn damaged_columns_are_named() {
        let mut behavior = BehaviorDistribution::default();
        behavior.push(&exact(2, &[(1, 0.5), (2, 0.5)]));
        let damaged = |change: fn(&mut Columns)| {
            let mut columns = behavior.columns().clone();
            change(&mut columns);
            BehaviorDistribution::from_columns(columns).unwrap_err().to_string()
        };
        assert_eq!(damaged(|c| c.log_q.truncate(1)), "column log_q has 1 values, not 2");
        assert_eq!(damaged(|c| c.offsets[1] = 3), "offset 3 of row 1 is outside 0..=2");
        assert_eq!(damaged(|c| c.offsets[1] = 1), "offset 1 of row 1 is outside 0..=2");
        assert_eq!(damaged(|c| c.tokens[0] = TokenId(9)), "at position 0: token 9 is outside its support (2 ids)");
        assert_eq!(damaged(|c| c.offsets.clear()), "column offsets has 0 values, not 2");
    }
}
