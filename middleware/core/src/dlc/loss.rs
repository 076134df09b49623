//! Value and gradient of the one loss that every `(w, c)` gives. Everything but `log p_theta` is held fixed.

use super::weigh::TokenCorrection;

/// One position over the whole domain of q: the kept ids, or the vocabulary. V entries.
#[derive(Debug, Clone, Copy)]
pub struct DomainRow<'a> {
    /// log p_theta, `[V]`, normalised over the domain.
    pub log_theta: &'a [f64],
    /// log p_s, `[V]`; read only where a correction has a tail term.
    pub log_s: &'a [f64],
    /// Index into the domain of each known entry of the support.
    pub known: &'a [usize],
    /// Index into the domain of the drawn token.
    pub sampled: usize,
}

/// Advantage and temperature of a position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// A, detached.
    pub advantage: f64,
    /// T, the divisor of the logits.
    pub temperature: f64,
}

/// The loss of one position; adds its gradient with respect to the raw logits (before the division by T) to `gradient`, `[V]`:
///
/// ```text
/// loss     = -A [ w log p_a - sum_v c_v log p_v ]
/// dloss/dz = -(A/T) [ w e_a - c - (w - sum_v c_v) p ]
/// ```
///
/// The value alone means little: with a collapsed tail it has no limit as the head fills the vocabulary, while the
/// gradient does.
pub fn loss(row: &DomainRow<'_>, correction: &TokenCorrection, scale: Scale, gradient: &mut [f64]) -> f64 {
    let c = dense_centring(row, correction);
    let (mut sum_c, mut centring) = (0.0, 0.0);
    for (c, log_p) in c.iter().zip(row.log_theta).filter(|(c, _)| **c != 0.0) {
        sum_c += c;
        centring += c * log_p;
    }
    let factor = -scale.advantage / scale.temperature;
    let beta = correction.w - sum_c;
    for ((gradient, c), log_p) in gradient.iter_mut().zip(&c).zip(row.log_theta) {
        *gradient -= factor * (c + beta * log_p.exp());
    }
    gradient[row.sampled] += factor * correction.w;
    -scale.advantage * (correction.w * row.log_theta[row.sampled] - centring)
}

/// c over the whole domain, `[V]`.
pub fn dense_centring(row: &DomainRow<'_>, correction: &TokenCorrection) -> Vec<f64> {
    let mut c = match &correction.tail {
        None => vec![0.0; row.log_theta.len()],
        Some(tail) => {
            let entries = row.log_theta.iter().zip(row.log_s);
            let off_head = |(log_theta, log_s): (&f64, &f64)| match *log_s {
                f64::NEG_INFINITY => 0.0,
                log_s => tail.scale * log_s.exp() * tail.clip.of_log(log_theta - log_s),
            };
            entries.map(off_head).collect()
        }
    };
    row.known.iter().zip(&correction.c).for_each(|(&at, &known)| c[at] = known);
    c
}
