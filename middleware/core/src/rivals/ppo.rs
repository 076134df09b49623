//! PPO's clip and the dual clip (Schulman et al. 2017; Ye et al. 2020; verl, AReaL).

use super::{
    batch::{Batch, PerToken, Ratio},
    importance::clamped_exp,
};
use crate::dlc::PpoClip;

/// Bound of the loss for a negative advantage, `c > 1`; verl's default is 3.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DualClip(f64);

/// A dual clip at or below 1.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("dual clip {0} is not a number > 1")]
pub struct DualClipError(f64);

impl DualClip {
    /// # Errors
    /// A bound that is not above 1.
    pub fn new(c: f64) -> Result<Self, DualClipError> {
        (c > 1.0).then_some(Self(c)).ok_or(DualClipError(c))
    }
}

/// Bounds of a clipped surrogate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ppo {
    /// Bounds of the ratio.
    pub clip: PpoClip,
    /// Bound of the loss for `A < 0`.
    pub dual: Option<DualClip>,
}

/// A surrogate loss whose gradient is `-A w s`: the clipped ones have a value that is not `-A w log p`.
#[derive(Debug, Clone, PartialEq)]
pub struct Surrogate {
    /// Value of each token's loss.
    pub loss: PerToken<f64>,
    /// Weight of each token's gradient: the ratio, or 0 where a clip is active.
    pub w: PerToken<f64>,
    /// Where the clip is active.
    pub clipped: PerToken<bool>,
    /// Where the dual clip is.
    pub dual_clipped: PerToken<bool>,
}

/// One token's part of a [`Surrogate`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TokenSurrogate {
    /// Value.
    pub loss: f64,
    /// Weight of the gradient.
    pub w: f64,
    /// Whether the clip is active.
    pub clipped: bool,
    /// Whether the dual clip is.
    pub dual_clipped: bool,
}

impl Ppo {
    /// ```text
    /// l1 = -r A        l2 = -clip(r, 1 - low, 1 + high) A        loss = max(l1, l2), for A < 0 at most -c A
    /// ```
    ///
    /// A tie counts as unclipped.
    pub fn token(&self, ratio: f64, advantage: f64) -> TokenSurrogate {
        let (free, bounded) = (-ratio * advantage, -self.clip.clip(ratio) * advantage);
        let clipped = bounded > free;
        let loss = free.max(bounded);
        let ceiling = self.dual.filter(|_| advantage < 0.0).map_or(f64::INFINITY, |dual| -dual.0 * advantage);
        let dual_clipped = loss > ceiling;
        let w = if clipped || dual_clipped { 0.0 } else { ratio };
        TokenSurrogate { loss: loss.min(ceiling), w, clipped, dual_clipped }
    }

    /// The surrogate of a batch at ratios `exp(clamp(l, -20, 20))`, as verl clamps them.
    pub fn surrogate(&self, batch: &Batch, ratio: Ratio) -> Surrogate {
        Surrogate::of(&batch.map(|token| self.token(clamped_exp(ratio.log(token)), token.advantage)))
    }
}

impl Surrogate {
    pub(crate) fn of(tokens: &PerToken<TokenSurrogate>) -> Self {
        fn each<T>(tokens: &PerToken<TokenSurrogate>, of: impl Fn(&TokenSurrogate) -> T) -> PerToken<T> {
            tokens.iter().map(|row| row.iter().map(&of).collect()).collect()
        }
        Self {
            loss: each(tokens, |token| token.loss),
            w: each(tokens, |token| token.w),
            clipped: each(tokens, |token| token.clipped),
            dual_clipped: each(tokens, |token| token.dual_clipped),
        }
    }

    /// The surrogate times a detached weight of each token.
    #[must_use]
    pub fn times(mut self, weights: &PerToken<f64>) -> Self {
        for values in [&mut self.loss, &mut self.w] {
            let pairs = values.iter_mut().flatten().zip(weights.iter().flatten());
            pairs.for_each(|(value, weight)| *value *= weight);
        }
        self
    }

    /// Share of the tokens that count whose clip is active; `None` without tokens.
    pub fn clip_fraction(&self, batch: &Batch) -> Option<f64> {
        let clipped = self.clipped.iter().flatten().filter(|&&clipped| clipped).count();
        let counted = batch.tokens().count();
        (counted > 0).then(|| clipped as f64 / counted as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ppo() -> Ppo {
        Ppo { clip: PpoClip::new(0.2, 0.2).unwrap(), dual: Some(DualClip::new(3.0).unwrap()) }
    }

    #[test]
    fn a_ratio_at_a_bound_is_not_clipped() {
        for (ratio, advantage) in [(1.2, 1.0), (0.8, -1.0), (3.0, -1.0)] {
            let token = ppo().token(ratio, advantage);
            assert_eq!(
                token,
                TokenSurrogate { loss: -ratio * advantage, w: ratio, clipped: false, dual_clipped: false }
            );
        }
    }

    #[test]
    fn a_clip_acts_on_one_side_of_each_sign() {
        let clipped = |ratio, advantage| ppo().token(ratio, advantage).clipped;
        assert_eq!([clipped(1.3, 1.0), clipped(0.7, 1.0)], [true, false]);
        assert_eq!([clipped(1.3, -1.0), clipped(0.7, -1.0)], [false, true]);
        assert_eq!([clipped(9.0, 0.0), clipped(0.1, 0.0)], [false, false]);
    }

    #[test]
    fn the_dual_clip_knows_negative_advantages_only() {
        let token = ppo().token(4.0, -2.0);
        assert_eq!(token, TokenSurrogate { loss: 6.0, w: 0.0, clipped: false, dual_clipped: true });
        assert!(!ppo().token(4.0, 2.0).dual_clipped);
        assert!(DualClip::new(1.0).is_err() && DualClip::new(f64::NAN).is_err());
    }

    #[test]
    fn the_weight_is_the_derivative_of_the_loss() {
        for (ratio, advantage) in [(1.1, 0.7), (1.3, 0.7), (0.5, -0.7), (2.0, -0.7), (3.5, -0.7)] {
            let loss = |log: f64| ppo().token(log.exp(), advantage).loss;
            let slope = (loss(f64::ln(ratio) + 1e-6) - loss(f64::ln(ratio) - 1e-6)) / 2e-6;
            assert!((slope + advantage * ppo().token(ratio, advantage).w).abs() < 1e-6, "{ratio}");
        }
    }
}
