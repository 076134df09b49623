//! The head: from hidden states to log-probs under one or two sets of weights, and from `(w, c)` back to the gradients of the
//! hidden states and of the head, without autograd and without `[T, V]`. Over listed ids only their logits are computed; over
//! the vocabulary the logits come in chunks of rows, become their own gradient in place, and are gone before the next chunk.
//!
//! ```text
//! z_v  = h . W_v          log p_v = z_v / T - ln sum_u exp(z_u / T)          u, v over the domain of q
//! loss = -A [ w log p_a - sum_v c_v log p_v ]
//! g    = dloss / dz = -(A/T) [ w e_a - c - (w - sum_v c_v) p ]
//! dh   = sum_v g_v W_v    dW_v += g_v h
//! ```
//!
//! Where `w = sum_v c_v`, as in unweighted centring, g is c - w e_a alone, and dh and dW are sums over a few ids. Positions whose
//! g is zero take no part in a product.
//!
//! Products are f32. Sums over the vocabulary are f64: those of a softmax over every entry, that of dh over the products of
//! blocks of the vocabulary. Everything is added in a fixed order, so neither the number of threads nor a second run changes
//! a bit; the bytes of a chunk may.
//!
//! Shapes: N rows of hidden states, H hidden, V vocabulary.

use crate::rows::Over;
use crate::{Error, Result};
use listed::Entries;
use rayon::prelude::*;
use row::{Logits, Reach};
use std::borrow::Cow;

pub use crate::softmax::Tail;

mod dense;
mod listed;
mod row;

/// Rows a parallel piece covers at least.
const ROWS: usize = 32;

/// Hidden states `[N, H]` and the head `[V, H]` they meet.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    hidden: &'a [f32],
    head: &'a [f32],
    width: usize,
}

impl<'a> Side<'a> {
    /// H is `width`.
    ///
    /// # Errors
    /// Slices that are no matrices of that width.
    pub fn new(hidden: &'a [f32], head: &'a [f32], width: usize) -> Result<Self> {
        for (name, len) in [("hidden states", hidden.len()), ("head", head.len())] {
            if width == 0 || len % width != 0 {
                return Err(Error::Width { name, len, width });
            }
        }
        Ok(Self { hidden, head, width })
    }

    /// N.
    pub fn rows(&self) -> usize {
        self.hidden.len() / self.width
    }

    /// V.
    pub fn vocab(&self) -> usize {
        self.head.len() / self.width
    }

    fn row(&self, at: usize) -> &'a [f32] {
        &self.hidden[at * self.width..(at + 1) * self.width]
    }
}

/// The hidden states of one forward under the weights now, and under older ones.
#[derive(Debug, Clone, Copy)]
pub struct Sides<'a> {
    /// The weights that are trained.
    pub now: Side<'a>,
    /// The weights that sampled, by [`Row::older`]; of the shapes of `now`.
    pub older: &'a [Side<'a>],
    /// Bytes of logits held at a time under each set of weights, about.
    pub logits_bytes: usize,
}

/// One position.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// Its row of the hidden states; no two positions share one.
    pub at: usize,
    /// The domain of q: the vocabulary, or the listed ids.
    pub over: Over,
    /// Distinct ids: those of the domain where it is listed, else those that q knows.
    pub ids: &'a [u32],
    /// How many of the ids, from the first, q knows.
    pub known: usize,
    /// The drawn token; one of the ids where the domain is listed.
    pub drawn: u32,
    /// 1 / T.
    pub inv_t: f64,
    /// Index of the older side, where log p_s is asked for.
    pub older: Option<usize>,
}

impl Row<'_> {
    /// A token without alternative: log p is 0, the gradient exactly 0, and no product is needed.
    fn is_only(&self) -> bool {
        self.over == Over::Listed && self.ids.len() == 1
    }
}

/// log p of one position under one set of weights, in nats.
#[derive(Debug, Clone, PartialEq)]
pub struct LogProbs {
    /// Of the known ids, in order.
    pub known: Vec<f64>,
    /// Of the drawn token.
    pub drawn: f64,
    /// Log mass of the domain's other entries, summed over those entries: `1 - sum` has no digits where it is small. Negative
    /// infinity where there are none.
    pub rest: f64,
    /// `ln sum_v exp(z_v / T)` over the domain.
    pub log_sum_exp: f64,
    /// `-sum_v p_v log p_v` over the domain.
    pub entropy: f64,
}

/// One position under the weights now, and under those that sampled it.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    /// log p_theta.
    pub now: LogProbs,
    /// log p_s, where it was asked for.
    pub older: Option<OlderScores>,
}

/// One position under older weights.
#[derive(Debug, Clone, PartialEq)]
pub struct OlderScores {
    /// log p_s.
    pub log_probs: LogProbs,
    /// `KL(p_s || p_theta)` over the domain, in nats.
    pub kl: f64,
}

/// The coefficients of one position's loss.
#[derive(Debug, Clone, PartialEq)]
pub struct Correction {
    /// Weight of the drawn token.
    pub w: f64,
    /// Centring coefficients of the known ids, in order.
    pub c: Vec<f64>,
    /// Those of the domain's other entries, where they have any; needs an older side.
    pub tail: Option<Tail>,
    /// A, with the position's share of the batch.
    pub advantage: f64,
}

/// What an objective makes of one position.
#[derive(Debug, Clone)]
pub struct Weighed<X> {
    /// Its coefficients.
    pub correction: Correction,
    /// What the objective wants to remember.
    pub seen: X,
}

/// Where gradients are added.
#[derive(Debug)]
pub struct Gradient<'a> {
    /// dh, `[N, H]`.
    pub hidden: &'a mut [f32],
    /// dW, `[V, H]`.
    pub head: &'a mut [f32],
}

/// What a backward through the head found.
#[derive(Debug)]
pub struct HeadLoss<X> {
    /// Sum of the losses.
    pub loss: f64,
    /// What the objective saw, one entry a position.
    pub seen: Vec<X>,
    /// `false` where every gradient is exactly zero.
    pub reached: bool,
}

/// A refused position.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("position {position}: {source}")]
pub struct RowError {
    /// Index of the position as it was asked.
    pub position: usize,
    /// What is wrong with it.
    #[source]
    pub source: Error,
}

/// log p of every position under its one or two sets of weights.
///
/// # Errors
/// An id, a row or a side that is not there, logits that cannot be normalised; the first one.
pub fn head_logprob(sides: Sides<'_>, rows: &[Row<'_>]) -> std::result::Result<Vec<Scores>, RowError> {
    check(sides, rows)?;
    let narrow = in_order(rows.len(), |position| match rows[position].over {
        Over::Vocabulary => Ok(None),
        Over::Listed => {
            let (mut now, mut older) = listed::logits(sides, &rows[position]);
            row::scores(&rows[position], Logits { now: &mut now, older: older.as_deref_mut() }).map(Some)
        }
    })?;
    let wide = dense::logprob(sides, rows)?;
    Ok(merge(narrow, wide))
}

/// Sum of the losses of all positions; adds their gradients to `gradient`. The objective sees the index of a position and its
/// log p_theta, and is asked once a position.
///
/// # Errors
/// As [`head_logprob`]; coefficients or gradients of another number, a tail without an older side; and whatever the objective
/// refuses. `gradient` may then hold some of the sums.
pub fn head_backward<X: Send, E: Send + From<RowError>>(
    sides: Sides<'_>,
    rows: &[Row<'_>],
    objective: impl Fn(usize, LogProbs) -> std::result::Result<Weighed<X>, E> + Sync,
    mut gradient: Gradient<'_>,
) -> std::result::Result<HeadLoss<X>, E> {
    check(sides, rows)?;
    gradient.check(sides.now)?;
    let narrow = in_order_of::<_, E>(rows.len(), |position| match rows[position].over {
        Over::Vocabulary => Ok(None),
        Over::Listed => {
            let row = &rows[position];
            let (mut now, mut older) = listed::logits(sides, row);
            let logits = Logits { now: &mut now, older: older.as_deref_mut() };
            let outcome = row::loss((position, row), logits, &objective)?;
            Ok(Some((outcome, Entries { at: row.at, ids: Cow::Borrowed(row.ids), gradient: now })))
        }
    })?;
    let (narrow, few): (Vec<_>, Vec<_>) = narrow.into_iter().map(Option::unzip).unzip();
    let mut few = few.into_iter().flatten().collect();
    let wide = dense::backward(sides, rows, &objective, (&mut gradient, &mut few))?;
    let whole = wide.iter().any(|outcome| outcome.reach == Reach::Everywhere);
    let reached = listed::add(sides.now, &few, (gradient.hidden, gradient.head)) || whole;
    let (seen, losses): (Vec<X>, Vec<f64>) =
        merge(narrow, wide).into_iter().map(|outcome| (outcome.seen, outcome.loss)).unzip();
    Ok(HeadLoss { loss: losses.iter().sum(), seen, reached })
}

/// Gradient of one position's loss with respect to the logits of its listed ids, all known, in their order; unrounded.
///
/// # Errors
/// As [`head_backward`]; ids that are not all known.
pub fn logits_gradient(
    side: Side<'_>,
    row: &Row<'_>,
    correction: &Correction,
) -> std::result::Result<Vec<f64>, RowError> {
    let sides = Sides { now: side, older: &[], logits_bytes: 0 };
    check(sides, std::slice::from_ref(row))?;
    let refused = |source| RowError { position: 0, source };
    let domain = if row.over == Over::Listed { row.ids.len() } else { side.vocab() };
    if row.known != domain {
        return Err(refused(Error::Size { name: "known ids", got: row.known, want: domain }));
    }
    let row = Row { over: Over::Listed, older: None, ..*row };
    let (mut now, _) = listed::logits(sides, &row);
    row::exact_gradient(&row, &mut now, correction).map_err(refused)
}

impl Gradient<'_> {
    fn check(&self, side: Side<'_>) -> std::result::Result<(), RowError> {
        let pairs = [
            ("gradient of the hidden states", self.hidden.len(), side.hidden.len()),
            ("gradient of the head", self.head.len(), side.head.len()),
        ];
        for (name, got, want) in pairs {
            if got != want {
                return Err(RowError { position: 0, source: Error::Size { name, got, want } });
            }
        }
        Ok(())
    }
}

/// Rows, sides and ids are there, and the shapes of all sides agree.
fn check(sides: Sides<'_>, rows: &[Row<'_>]) -> std::result::Result<(), RowError> {
    let (n, vocab) = (sides.now.rows(), sides.now.vocab());
    let fault = |row: &Row<'_>| {
        let older = row.older.map(|at| sides.older.get(at).ok_or(Error::NoSide { at, sides: sides.older.len() }));
        let older = match older.transpose() {
            Ok(side) => side.unwrap_or(&sides.now),
            Err(error) => return Some(error),
        };
        let outside = row.ids.iter().chain([&row.drawn]).position(|id| *id as usize >= vocab);
        let id = |place: usize| row.ids.get(place).copied().unwrap_or(row.drawn);
        match outside {
            Some(place) => Some(Error::OutsideRow { id: id(place), place, len: vocab }),
            None if row.at >= n => Some(Error::NoHidden { at: row.at, rows: n }),
            None if older.vocab() != vocab => Some(Error::Size { name: "older head", got: older.vocab(), want: vocab }),
            None if older.rows() != n => Some(Error::Size { name: "older hidden states", got: older.rows(), want: n }),
            None if row.known > row.ids.len() => {
                Some(Error::Size { name: "known ids", got: row.known, want: row.ids.len() })
            }
            None if row.over == Over::Listed && !row.ids.contains(&row.drawn) => {
                Some(Error::NotListed { id: row.drawn, listed: row.ids.len() })
            }
            None => None,
        }
    };
    let first = rows.iter().enumerate().find_map(|(position, row)| Some((position, fault(row)?)));
    first.map_or(Ok(()), |(position, source)| Err(RowError { position, source }))
}

/// `f(0), f(1), ..` in parallel; the error is the first one.
fn in_order_of<R: Send, E: Send>(
    n: usize,
    f: impl Fn(usize) -> std::result::Result<R, E> + Sync,
) -> std::result::Result<Vec<R>, E> {
    let all: Vec<_> = (0..n).into_par_iter().with_min_len(ROWS).map(&f).collect();
    all.into_iter().collect()
}

/// As [`in_order_of`], with the position of the error.
fn in_order<R: Send>(n: usize, f: impl Fn(usize) -> Result<R> + Sync) -> std::result::Result<Vec<R>, RowError> {
    in_order_of(n, |position| f(position).map_err(|source| RowError { position, source }))
}

/// The results of the listed rows, with those of the others in the gaps.
fn merge<R>(narrow: Vec<Option<R>>, wide: Vec<R>) -> Vec<R> {
    let mut wide = wide.into_iter();
    narrow.into_iter().filter_map(|row| row.or_else(|| wide.next())).collect()
}
