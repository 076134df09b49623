//! The loops of a softmax over f32 logits with f64 sums. Entry `i` is added to lane `i mod 8` and the lanes are added in order,
//! so a sum does not depend on the processor.
//!
//! ```text
//! z_v = x_v / T        p_v = exp(z_v - LSE)        LSE = ln sum_u exp(z_u)
//! ```
//! An exponent below -700 counts as -700: its exponential, 1e-304, adds nothing to a sum that has a 1 in it.

use crate::mass::exp_times_power;
use crate::{Error, Result};

const LANES: usize = 8;

/// Exponents are held above this, so that no product with a vanished probability is NaN.
const FLOOR: f64 = -700.0;

/// Factor and constant of a row's exponents: `x inv_t - shift`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exponent {
    /// 1 / T.
    pub(crate) inv_t: f64,
    /// What is subtracted.
    pub(crate) shift: f64,
}

impl Exponent {
    /// The exponent of one entry, unbounded.
    #[inline(always)]
    pub(crate) fn at(self, x: f32) -> f64 {
        f64::from(x) * self.inv_t - self.shift
    }

    #[inline(always)]
    fn of(self, x: f32) -> f64 {
        self.at(x).max(FLOOR)
    }
}

#[inline(always)]
fn exp(exponent: f64) -> f64 {
    exp_times_power(exponent, 0)
}

#[inline(always)]
fn plain_maximum(row: &[f32]) -> (f32, bool) {
    let (mut max, mut good) = ([f32::NEG_INFINITY; 4 * LANES], [true; 4 * LANES]);
    for piece in row.chunks(4 * LANES) {
        for ((max, good), &x) in max.iter_mut().zip(&mut good).zip(piece) {
            *max = if x > *max { x } else { *max };
            *good &= x < f32::INFINITY;
        }
    }
    let larger = |a: f32, b: &f32| if *b > a { *b } else { a };
    (max.iter().fold(f32::NEG_INFINITY, larger), good.iter().all(|good| *good))
}

vectorised! {
    /// The largest entry, and whether every entry is a number below infinity.
    fn maximum = plain_maximum, wide_maximum(row: &[f32]) -> (f32, bool)
}

#[inline(always)]
fn add_exp((sums, weighted): (&mut [f64; LANES], &mut [f64; LANES]), piece: &[f32], e: Exponent) {
    for ((sum, weighted), &x) in sums.iter_mut().zip(weighted).zip(piece) {
        let exponent = e.of(x);
        let p = exp(exponent);
        *sum += p;
        *weighted += exponent * p;
    }
}

#[inline(always)]
fn plain_exp_sums(row: &[f32], e: Exponent) -> (f64, f64) {
    let (mut sums, mut weighted) = ([0.0; LANES], [0.0; LANES]);
    let (pieces, rest) = row.as_chunks::<LANES>();
    for piece in pieces {
        add_exp((&mut sums, &mut weighted), piece, e);
    }
    add_exp((&mut sums, &mut weighted), rest, e);
    (sums.iter().sum(), weighted.iter().sum())
}

vectorised! {
    /// `sum_v exp(e_v)` and `sum_v e_v exp(e_v)`.
    fn exp_sums = plain_exp_sums, wide_exp_sums(row: &[f32], e: Exponent) -> (f64, f64)
}

#[inline(always)]
fn plain_scaled_exp(row: &mut [f32], e: Exponent, scale: f64) {
    for x in row {
        *x = (scale * exp(e.of(*x))) as f32;
    }
}

vectorised! {
    /// `x_v <- scale exp(e_v)`.
    pub(crate) fn scaled_exp = plain_scaled_exp, wide_scaled_exp(row: &mut [f32], e: Exponent, scale: f64)
}

#[inline(always)]
fn plain_divergence((a, of_a): (&[f32], Exponent), (b, of_b): (&[f32], Exponent)) -> f64 {
    let mut sums = [0.0; LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        for ((sum, &a), &b) in sums.iter_mut().zip(a).zip(b) {
            let log_p = of_a.of(a);
            *sum += exp(log_p) * (log_p - of_b.of(b));
        }
    }
    sums.iter().sum()
}

vectorised! {
    /// `KL(a || b) = sum_v a_v (log a_v - log b_v)` of two rows of log-probabilities.
    pub(crate) fn divergence = plain_divergence, wide_divergence(a: (&[f32], Exponent), b: (&[f32], Exponent)) -> f64
}

/// `c_v = scale clip(p_v, low s_v, high s_v)`: the centring of an entry by p_s, with the lag ratio `p_v / s_v` clipped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tail {
    /// `q_t / p_s,t`, the ratio of the tails' masses.
    pub scale: f64,
    /// Lower bound of the lag ratio.
    pub low: f64,
    /// Upper bound of the lag ratio; may be infinite.
    pub high: f64,
}

impl Tail {
    /// c of an entry.
    #[inline(always)]
    pub(crate) fn of(&self, p: f64, s: f64) -> f64 {
        let least = self.low * s;
        let most = self.high * s;
        self.scale
            * if p > most {
                most
            } else if p < least {
                least
            } else {
                p
            }
    }
}

#[inline(always)]
fn plain_tail_sums((p, of_p): (&[f32], Exponent), (s, of_s): (&[f32], Exponent), tail: Tail) -> (f64, f64) {
    let (mut sums, mut weighted) = ([0.0; LANES], [0.0; LANES]);
    for (p, s) in p.chunks(LANES).zip(s.chunks(LANES)) {
        for (i, (&p, &s)) in p.iter().zip(s).enumerate() {
            let log_p = of_p.of(p);
            let c = tail.of(exp(log_p), exp(of_s.of(s)));
            sums[i] += c;
            weighted[i] += c * log_p;
        }
    }
    (sums.iter().sum(), weighted.iter().sum())
}

vectorised! {
    /// `sum_v c_v` and `sum_v c_v log p_v` of a tail.
    pub(crate) fn tail_sums = plain_tail_sums, wide_tail_sums
    (p: (&[f32], Exponent), s: (&[f32], Exponent), tail: Tail) -> (f64, f64)
}

#[inline(always)]
fn plain_tail_gradient((x, of_x): (&mut [f32], Exponent), (s, of_s): (&[f32], Exponent), tail: Tail, k: (f64, f64)) {
    let (factor, beta) = k;
    for (x, &s) in x.iter_mut().zip(s) {
        let p = exp(of_x.of(*x));
        *x = (factor * (tail.of(p, exp(of_s.of(s))) + beta * p)) as f32;
    }
}

vectorised! {
    /// `x_v <- factor (c_v + beta p_v)` of a tail, with `k = (factor, beta)`.
    pub(crate) fn tail_gradient = plain_tail_gradient, wide_tail_gradient
    (x: (&mut [f32], Exponent), s: (&[f32], Exponent), tail: Tail, k: (f64, f64))
}

/// Refuses NaN, positive infinity, an empty row, and a row without a finite entry; gives the largest entry.
pub(crate) fn largest(row: &[f32]) -> Result<f64> {
    match maximum(row) {
        (_, false) => {
            let bad = row.iter().enumerate().find(|(_, x)| x.is_nan() || **x == f32::INFINITY);
            let (id, value) = bad.map_or((0, f64::NAN), |(id, x)| (id, f64::from(*x)));
            Err(Error::BadLogit { id, value })
        }
        _ if row.is_empty() => Err(Error::EmptyRow),
        (f32::NEG_INFINITY, _) => Err(Error::NoFiniteLogit { len: row.len() }),
        (max, _) => Ok(max.into()),
    }
}

/// Some entries of a row under their own softmax.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Part {
    /// `ln sum_v exp(z_v)`; negative infinity of nothing.
    pub(crate) log_sum: f64,
    /// Mean of z under the part's softmax.
    mean: f64,
}

impl Part {
    const NOTHING: Self = Self { log_sum: f64::NEG_INFINITY, mean: 0.0 };

    /// Of entries that [`largest`] has looked at.
    pub(crate) fn of(row: &[f32], inv_t: f64) -> Self {
        let (max, _) = maximum(row);
        if max == f32::NEG_INFINITY {
            return Self::NOTHING;
        }
        let shift = f64::from(max) * inv_t;
        let (sum, weighted) = exp_sums(row, Exponent { inv_t, shift });
        Self { log_sum: shift + sum.ln(), mean: shift + weighted / sum }
    }

    /// Of both.
    pub(crate) fn join(self, other: Self) -> Self {
        let top = self.log_sum.max(other.log_sum);
        if top == f64::NEG_INFINITY || self.log_sum == f64::NEG_INFINITY {
            return other;
        }
        if other.log_sum == f64::NEG_INFINITY {
            return self;
        }
        let (a, b) = ((self.log_sum - top).exp(), (other.log_sum - top).exp());
        Self { log_sum: top + (a + b).ln(), mean: (a * self.mean + b * other.mean) / (a + b) }
    }

    /// `-sum_v p_v ln p_v`, in nats.
    pub(crate) fn entropy(self) -> f64 {
        (self.log_sum - self.mean).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::philox::normal;

    fn row(n: usize, seed: u64) -> Vec<f32> {
        (0..n as u64).map(|i| 3.0 * normal(seed, 1, i) as f32).collect()
    }

    const TAIL: Tail = Tail { scale: 0.9, low: 0.5, high: 2.0 };

    #[test]
    fn the_vector_loops_give_the_same_bits() {
        for n in [1, 7, 8, 9, 1003] {
            let (x, s) = (row(n, 3), row(n, 4));
            let e = Exponent { inv_t: 1.25, shift: 9.0 };
            assert_eq!(maximum(&x), plain_maximum(&x));
            assert_eq!(exp_sums(&x, e), plain_exp_sums(&x, e));
            assert_eq!(divergence((&x, e), (&s, e)), plain_divergence((&x, e), (&s, e)));
            assert_eq!(tail_sums((&x, e), (&s, e), TAIL), plain_tail_sums((&x, e), (&s, e), TAIL));
            let (mut a, mut b) = (x.clone(), x.clone());
            scaled_exp(&mut a, e, 0.3);
            plain_scaled_exp(&mut b, e, 0.3);
            assert_eq!(a, b);
            tail_gradient((&mut a, e), (&s, e), TAIL, (0.3, -0.1));
            plain_tail_gradient((&mut b, e), (&s, e), TAIL, (0.3, -0.1));
            assert_eq!(a, b);
        }
    }

    #[test]
    fn two_parts_are_the_whole() {
        let x = row(1000, 5);
        let (whole, joined) = (Part::of(&x, 0.7), Part::of(&x[..30], 0.7).join(Part::of(&x[30..], 0.7)));
        assert!((whole.log_sum - joined.log_sum).abs() < 1e-12 && (whole.mean - joined.mean).abs() < 1e-12);
        let nothing = Part::of(&[f32::NEG_INFINITY; 3], 1.0);
        assert_eq!((nothing.join(whole), whole.join(nothing)), (whole, whole));
        assert_eq!(nothing.join(nothing).log_sum, f64::NEG_INFINITY);
    }

    #[test]
    fn a_ratio_is_clipped_by_clipping_p() {
        assert_eq!(TAIL.of(0.3, 0.1), 0.9 * 0.2);
        assert_eq!(TAIL.of(0.01, 0.1), 0.9 * 0.05);
        assert_eq!(TAIL.of(0.15, 0.1), 0.9 * 0.15);
        let open = Tail { scale: 1.0, low: 0.0, high: f64::INFINITY };
        assert_eq!(open.of(0.5, 1e-304), 0.5);
    }
}
