//! Second-moment trust policy optimisation (M2PO, arXiv 2510.01161): tokens fall until the mean square of what is left of
//! the log ratios is small. Three rules go by the name.
//!
//! In the first two the loss is `-M r A`, of gradient `-M r A s`, without another clip; use [`super::importance::importance`]
//! within the selection.

use super::{
    batch::{Batch, PerToken, Ratio, Token},
    selects::{Selection, Selects},
};
use crate::dlc::{PpoClip, VariantError};

/// The threshold of every published script.
pub const THRESHOLD: f64 = 0.04;

const TIE: f64 = 1e-12;

/// True where a token pulls further away: `A > 0, r > 1` or `A < 0, r < 1`.
pub fn is_harmful(token: &Token, ratio: Ratio) -> bool {
    token.advantage * ratio.log(token) > 0.0
}

/// AReaL: over all tokens, the largest `(log r)^2` fall until the mean of the rest is *below* the threshold; if it never is,
/// the smallest one stays. AReaL's code takes [`Ratio::Numeric`] (its text [`Ratio::Full`]) and divides by what is kept.
pub fn areal(batch: &Batch, ratio: Ratio, threshold: f64) -> Selection {
    let order = by_size(batch, ratio, |_| true);
    let kept = smallest(&order, |mean| mean < threshold).max(1).min(order.len());
    keep(batch, order[..kept].iter().map(|(_, at)| *at), Selects::ByToken)
}

/// Our reading of the paper's mask: only [harmful](is_harmful) tokens are counted and fall, until their mean is at most the
/// threshold; all of them may. Depends on the advantage.
pub fn harmful_only(batch: &Batch, ratio: Ratio, threshold: f64) -> Selection {
    let order = by_size(batch, ratio, |token| is_harmful(token, ratio));
    let kept = smallest(&order, |mean| mean <= threshold);
    let harmless = by_size(batch, ratio, |token| !is_harmful(token, ratio));
    keep(batch, order[..kept].iter().chain(&harmless).map(|(_, at)| *at), Selects::ByOutcome)
}

/// How many of the smallest may stay for their mean to pass; their mean grows with their number.
fn smallest(order: &[(f64, Place)], passes: impl Fn(f64) -> bool) -> usize {
    let mut sum = 0.0;
    let passing = order.iter().enumerate().take_while(|(at, (square, _))| {
        sum += square;
        passes(sum / (*at as f64 + 1.0))
    });
    passing.count()
}

/// The least half-widths of the published code ("miniclip").
pub const MINICLIP: (f64, f64) = (0.3, 0.5);

/// Half-width of a clip that does nothing, where the published code clips nothing.
const OPEN: (f64, f64) = (1.0, 1e5);

/// The published code: bounds for PPO's clip, so wide that the harmful tokens' mean of `(log r)^2`, cut at `tau^2`, meets the
/// threshold.
///
/// ```text
/// d ascending over the n harmful tokens; no clip where mean d <= threshold + 1e-12
/// k = first with (d_k - 1e-12) (n - k - 1) + d_0 + .. + d_k >= threshold n - 1e-12
/// tau = sqrt(d_{k-1} - 1e-12), 0 for k = 0        bounds (1 - exp(-tau), exp(tau) - 1), at least `floor`
/// ```
///
/// # Errors
/// A floor that is no half-width.
pub fn official(batch: &Batch, ratio: Ratio, threshold: f64, floor: (f64, f64)) -> Result<PpoClip, VariantError> {
    let order = by_size(batch, ratio, |token| is_harmful(token, ratio));
    let squares: Vec<f64> = order.into_iter().map(|(square, _)| square).collect();
    let (n, total) = (squares.len() as f64, squares.iter().sum::<f64>());
    if squares.is_empty() || total / n <= threshold + TIE {
        return PpoClip::new(OPEN.0, OPEN.1);
    }
    let mut below = 0.0;
    let cut = |(k, square): (usize, &f64)| {
        below += square;
        (square - TIE) * (n - k as f64 - 1.0) + below >= threshold * n - TIE
    };
    let k = squares.iter().enumerate().position(cut).unwrap_or(squares.len());
    let tau = if k == 0 { 0.0 } else { (squares[k - 1] - TIE).max(0.0).sqrt() };
    PpoClip::new((-(-tau).exp_m1()).max(floor.0), tau.exp_m1().max(floor.1))
}

type Place = (usize, usize);

/// `(log r)^2` and place of the tokens that count, ascending; equals by place.
fn by_size(batch: &Batch, ratio: Ratio, counts: impl Fn(&Token) -> bool) -> Vec<(f64, Place)> {
    let rows = batch.sequences().iter().enumerate();
    let places = rows.flat_map(|(i, row)| row.iter().enumerate().map(move |(t, token)| (token, (i, t))));
    let counted =
        places.filter_map(|(token, at)| token.as_ref().filter(|token| counts(token)).map(|token| (token, at)));
    let mut order: Vec<(f64, Place)> = counted.map(|(token, at)| (ratio.log(token).powi(2), at)).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    order
}

fn keep(batch: &Batch, places: impl Iterator<Item = Place>, selects: Selects) -> Selection {
    let mut keep: PerToken<bool> = batch.map(|_| false);
    places.for_each(|(i, t)| keep[i][t] = true);
    Selection::of(batch, &keep, selects)
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::batch, *};

    #[test]
    fn a_mean_at_the_threshold_is_not_below_it() {
        let at = batch(&[(&[0.5, 0.5, 0.0], 1.0)]);
        let mean = at.tokens().map(|token| Ratio::Full.log(token).powi(2)).sum::<f64>() / 3.0;
        assert_eq!(areal(&at, Ratio::Full, mean).keep(), &[vec![true, false, true]]);
        assert_eq!(areal(&at, Ratio::Full, mean * 1.01).keep(), &[vec![true; 3]]);
    }

    #[test]
    fn one_token_always_stays_in_areals_form_alone() {
        let wide = batch(&[(&[0.9, 0.5, -0.7], 1.0)]);
        assert_eq!(areal(&wide, Ratio::Full, THRESHOLD).keep(), &[vec![false, true, false]]);
        let harmful = harmful_only(&wide, Ratio::Full, THRESHOLD);
        assert_eq!(harmful.keep(), &[vec![false, false, true]]);
        assert_eq!(harmful.selects(), Selects::ByOutcome);
    }

    #[test]
    fn nothing_harmful_is_not_clipped() {
        let tame = batch(&[(&[-0.9, -0.7], 1.0), (&[0.01], 1.0)]);
        let clip = official(&tame, Ratio::Full, THRESHOLD, MINICLIP).unwrap();
        assert_eq!((clip.floor(), clip.ceiling()), (0.0, 1.0 + 1e5));
    }

    #[test]
    fn the_first_beyond_leaves_no_room() {
        let wide = batch(&[(&[0.9, 0.5], 1.0)]);
        let clip = |floor| official(&wide, Ratio::Full, THRESHOLD, floor).unwrap();
        assert_eq!((clip((0.0, 0.0)).floor(), clip((0.0, 0.0)).ceiling()), (1.0, 1.0));
        assert_eq!((clip(MINICLIP).floor(), clip(MINICLIP).ceiling()), (0.7, 1.5));
    }
}
