//! Two forms that look like DLC and are wrong: faults for the checks to find, never for training.
//!
//! Under pure lag (`q = p_s`, no clip) both push the policy without being asked to by a reward:
//!
//! ```text
//! C: E_q[g] - g* = -E_q[A] E_q[s]        D: E_q[g] - g* = -E_q[w A] E_q[s]
//! ```

use super::{
    rule::LagClip,
    weigh::{Position, TokenCorrection, WeighError},
};

/// Form C, biased under lag: the drawn token is weighted, its centring is not, `w = w_a, c_v = q_v`. Exact supports.
///
/// # Errors
/// As [`super::weigh()`].
pub fn centring_without_the_weight(position: &Position<'_>, clip: LagClip) -> Result<TokenCorrection, WeighError> {
    let (lag, _) = position.decompose()?;
    position.check()?;
    let c = position.support.log_q().iter().map(|log_q| log_q.exp()).collect();
    Ok(TokenCorrection { w: clip.weight(lag), c, tail: None })
}

/// Form D, biased under lag: the whole centred score is weighted by the drawn token's ratio, `w = w_a, c_v = w_a q_v`.
/// Exact supports.
///
/// # Errors
/// As [`super::weigh()`].
pub fn centring_with_the_drawn_tokens_weight(
    position: &Position<'_>,
    clip: LagClip,
) -> Result<TokenCorrection, WeighError> {
    let mut correction = centring_without_the_weight(position, clip)?;
    correction.c.iter_mut().for_each(|c| *c *= correction.w);
    Ok(correction)
}
