//! One position: its logits, their log-probs, its loss and its gradient.

use super::{Correction, LogProbs, OlderScores, Row, RowError, Scores, Weighed};
use crate::rows::Over;
use crate::softmax::{Exponent, Part, divergence, largest, scaled_exp, tail_gradient, tail_sums};
use crate::{Error, Result};
use std::borrow::Cow;

/// The logits of one position over its domain, under the weights now and, where they are asked for, under older ones.
pub(super) struct Logits<'a> {
    pub(super) now: &'a mut [f32],
    pub(super) older: Option<&'a mut [f32]>,
}

/// What became of one position.
pub(super) struct Outcome<X> {
    pub(super) seen: X,
    pub(super) loss: f64,
    pub(super) reach: Reach,
}

/// Where the gradient of a position's logits is not exactly zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    Nowhere,
    /// At the known ids and the drawn token, which are few.
    Few,
    Everywhere,
}

/// A term of at most this share of the others' size is lost when they are rounded to f32.
const LOST: f64 = f32::EPSILON as f64 / 2.0;

/// As many entries of a row cost as much one by one as the whole row does in a product of matrices: one in 64, about.
const ENTRIES_OF_A_ROW: usize = 64;

impl Row<'_> {
    /// Where a known id, or the drawn token, stands among the logits.
    fn place(&self, id: u32) -> usize {
        match self.over {
            Over::Vocabulary => id as usize,
            Over::Listed => self.ids.iter().position(|listed| *listed == id).unwrap_or_default(),
        }
    }

    /// Where the `i`-th known id stands among the logits.
    fn known_place(&self, i: usize) -> usize {
        match self.over {
            Over::Vocabulary => self.ids[i] as usize,
            Over::Listed => i,
        }
    }

    fn known_index(&self, id: u32) -> Option<usize> {
        self.ids[..self.known].iter().position(|known| *known == id)
    }

    /// Takes the logits of the known ids out of a row, and leaves negative infinity, which has no mass, in their place.
    fn take_known(&self, x: &mut [f32]) -> Vec<f32> {
        (0..self.known).map(|i| std::mem::replace(&mut x[self.known_place(i)], f32::NEG_INFINITY)).collect()
    }

    /// Whether those are less work one by one than the `vocab` entries of the row are in a product of matrices.
    fn knows_few(&self, vocab: usize) -> bool {
        self.over == Over::Vocabulary && (self.known + 1) * ENTRIES_OF_A_ROW <= vocab
    }

    /// The known ids, and the drawn token where it is none of them.
    pub(super) fn few(&self) -> Cow<'_, [u32]> {
        let known = &self.ids[..self.known];
        match self.known_index(self.drawn) {
            Some(_) => Cow::Borrowed(known),
            None => Cow::Owned([known, &[self.drawn]].concat()),
        }
    }

    fn put_known(&self, x: &mut [f32], known: &[f32]) {
        known.iter().enumerate().for_each(|(i, value)| x[self.known_place(i)] = *value);
    }
}

/// log p of a row of logits, which are the same afterwards.
fn log_probs(row: &Row<'_>, x: &mut [f32]) -> Result<LogProbs> {
    largest(x)?;
    let drawn = x[row.place(row.drawn)];
    let known = row.take_known(x);
    let off = Part::of(x, row.inv_t);
    row.put_known(x, &known);
    let all = Part::of(&known, row.inv_t).join(off);
    let log_p = |x: f32| f64::from(x) * row.inv_t - all.log_sum;
    Ok(LogProbs {
        known: known.into_iter().map(log_p).collect(),
        drawn: log_p(drawn),
        rest: (off.log_sum - all.log_sum).min(0.0),
        log_sum_exp: all.log_sum,
        entropy: all.entropy(),
    })
}

fn exponent(row: &Row<'_>, log_probs: &LogProbs) -> Exponent {
    Exponent { inv_t: row.inv_t, shift: log_probs.log_sum_exp }
}

/// log p under one set of weights or two, and the divergence of the two.
pub(super) fn scores(row: &Row<'_>, Logits { now: x, older }: Logits<'_>) -> Result<Scores> {
    let now = log_probs(row, x)?;
    let older = older.map(|s| -> Result<OlderScores> {
        let log_probs = log_probs(row, s)?;
        let kl = divergence((&*s, exponent(row, &log_probs)), (&*x, exponent(row, &now))).max(0.0);
        Ok(OlderScores { log_probs, kl })
    });
    Ok(Scores { now, older: older.transpose()? })
}

/// Asks the objective, and turns the logits under the weights now into their gradient.
pub(super) fn loss<X, E: From<RowError>>(
    (position, row): (usize, &Row<'_>),
    logits: Logits<'_>,
    objective: impl FnOnce(usize, LogProbs) -> std::result::Result<Weighed<X>, E>,
) -> std::result::Result<Outcome<X>, E> {
    let refused = |source| E::from(RowError { position, source });
    let now = log_probs(row, logits.now).map_err(refused)?;
    let Weighed { correction, seen } = objective(position, now.clone())?;
    let (loss, reach) = gradient(row, &now, logits, &correction).map_err(refused)?;
    Ok(Outcome { seen, loss, reach })
}

/// `g = (A/T) [ c + (w - sum_v c_v) p - w e_a ]` of a position whose every entry is known, unrounded.
pub(super) fn exact_gradient(row: &Row<'_>, x: &mut [f32], by: &Correction) -> Result<Vec<f64>> {
    if by.c.len() != x.len() {
        return Err(Error::Size { name: "coefficients", got: by.c.len(), want: x.len() });
    }
    if row.is_only() {
        return Ok(vec![0.0]);
    }
    let now = log_probs(row, x)?;
    let (k, beta) = (by.advantage * row.inv_t, by.w - by.c.iter().sum::<f64>());
    let mut gradient: Vec<f64> = by.c.iter().zip(&now.known).map(|(c, log_p)| k * (c + beta * log_p.exp())).collect();
    gradient[row.place(row.drawn)] -= k * by.w;
    Ok(gradient)
}

/// Writes `g = (A/T) [ c + (w - sum_v c_v) p - w e_a ]` over the logits. Gives the loss, and where g can be not zero.
fn gradient(row: &Row<'_>, now: &LogProbs, logits: Logits<'_>, by: &Correction) -> Result<(f64, Reach)> {
    if by.c.len() != row.known {
        return Err(Error::Size { name: "coefficients", got: by.c.len(), want: row.known });
    }
    let Logits { now: x, older } = logits;
    let k = by.advantage * row.inv_t;
    let weighs = by.w != 0.0 || by.tail.is_some() || by.c.iter().any(|c| *c != 0.0);
    if row.is_only() || k == 0.0 || !weighs {
        x.fill(0.0);
        return Ok((0.0, Reach::Nowhere));
    }
    let (tail, drawn_by_tail) = match by.tail {
        Some(tail) => {
            let s = older.ok_or(Error::NoOlder)?;
            let of_s = exponent(row, &log_probs(row, s)?);
            let drawn = tail.of(now.drawn.exp(), of_s.at(s[row.place(row.drawn)]).exp());
            row.take_known(s);
            (Some((tail, (&*s, of_s))), drawn)
        }
        None => (None, 0.0),
    };
    row.take_known(x);
    let of_x = exponent(row, now);
    let off = tail.map_or((0.0, 0.0), |(tail, s)| tail_sums((&*x, of_x), s, tail));
    let (sum, centring) = known_sums(now, by).fold(off, |(sum, centring), (c, log_p)| (sum + c, centring + c * log_p));
    let few = tail.is_none() && row.knows_few(x.len()) && is_centred(row, by, sum);
    let beta = if few { 0.0 } else { by.w - sum };
    match tail {
        Some((tail, s)) => tail_gradient((&mut *x, of_x), s, tail, (k, beta)),
        None if beta == 0.0 => x.fill(0.0),
        None => scaled_exp(x, of_x, k * beta),
    }
    for (i, (c, log_p)) in by.c.iter().zip(&now.known).enumerate() {
        x[row.known_place(i)] = (k * (c + beta * log_p.exp())) as f32;
    }
    let c = row.known_index(row.drawn).map_or(drawn_by_tail, |i| by.c[i]);
    x[row.place(row.drawn)] = (k * (c + beta * now.drawn.exp() - by.w)) as f32;
    let reach = if few { Reach::Few } else { Reach::Everywhere };
    Ok((-by.advantage * (by.w * now.drawn - centring), reach))
}

/// `|w - sum_v c_v|`, the mass of the gradient's dense term, is lost beside that of `c - w e_a`: the weight is centred on the
/// known ids, and the gradient is there alone.
fn is_centred(row: &Row<'_>, by: &Correction, sum: f64) -> bool {
    let drawn = row.known_index(row.drawn).map_or(0.0, |i| by.c[i]);
    let size = by.c.iter().map(|c| c.abs()).sum::<f64>() - drawn.abs() + (drawn - by.w).abs();
    (by.w - sum).abs() <= LOST * size
}

/// c and log p of the known entries that are centred.
fn known_sums<'a>(now: &'a LogProbs, by: &'a Correction) -> impl Iterator<Item = (f64, f64)> + 'a {
    by.c.iter().copied().zip(now.known.iter().copied()).filter(|(c, _)| *c != 0.0)
}
