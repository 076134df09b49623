//! CISPO (MiniMax-M1, arXiv 2506.13585): the ratio is clipped and detached, so every token keeps its gradient.

use super::{
    batch::{Batch, Ratio},
    importance::clamped_exp,
    selects::Weights,
};
use crate::dlc::PpoClip;

/// `w = clip(r, 1 - low, 1 + high)`; `low >= 1` leaves no floor.
pub fn cispo(batch: &Batch, ratio: Ratio, clip: PpoClip) -> Weights {
    Weights { w: batch.map(|token| clip.clip(clamped_exp(ratio.log(token)))) }
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::batch, *};

    #[test]
    fn a_half_width_of_1_is_no_floor() {
        let tokens = batch(&[(&[-5.0, 5.0], -1.0)]);
        let w = |low| cispo(&tokens, Ratio::Full, PpoClip::new(low, 0.28).unwrap()).w;
        assert_eq!(w(1.0), [[(-5f64).exp(), 1.28]]);
        assert_eq!(w(0.2), [[0.8, 1.28]]);
    }
}
