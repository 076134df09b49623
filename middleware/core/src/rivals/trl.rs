//! TRL's `vllm_importance_sampling_correction`: a weight for the numeric term, whose default masks whole sequences.

use super::{
    batch::{Batch, Ratio},
    importance::{Level, map, raw},
    selects::{Selection, Selects, Weights},
};

/// TRL's `vllm_importance_sampling_clip_max`.
pub const CLIP_MAX: f64 = 3.0;

/// TRL's `vllm_importance_sampling_mode`; a sequence's ratio is the product of its tokens'.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// `"token_truncate"`: a token's ratio, cut to the bounds.
    TokenTruncate,
    /// `"token_mask"`: a token's ratio, its token dropped outside the bounds.
    TokenMask,
    /// `"sequence_truncate"`: the sequence's ratio, cut to the bounds.
    SequenceTruncate,
    /// `"sequence_mask"`, the default: the sequence's ratio, the sequence dropped outside the bounds.
    #[default]
    SequenceMask,
}

/// Bounds of a ratio; `low` is None by default.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clip {
    /// `clip_min`.
    pub low: Option<f64>,
    /// `clip_max`.
    pub high: f64,
}

impl Default for Clip {
    fn default() -> Self {
        Self { low: None, high: CLIP_MAX }
    }
}

impl Mode {
    fn level(self) -> Level {
        match self {
            Self::TokenTruncate | Self::TokenMask => Level::Token,
            Self::SequenceTruncate | Self::SequenceMask => Level::Sequence,
        }
    }

    /// By what it drops.
    pub fn selects(self) -> Selects {
        match self {
            Self::TokenTruncate | Self::SequenceTruncate => Selects::Nothing,
            Self::TokenMask => Selects::ByToken,
            Self::SequenceMask => Selects::ByLength,
        }
    }
}

/// `w = r`, cut or dropped outside `[low, high]`, bounds inclusive. A dropped token keeps its place in every denominator.
pub fn correct(batch: &Batch, ratio: Ratio, (mode, clip): (Mode, Clip)) -> (Weights, Selection) {
    let ratios = raw(batch, ratio, mode.level());
    let low = clip.low.unwrap_or(0.0);
    match mode {
        Mode::TokenTruncate | Mode::SequenceTruncate => {
            (Weights { w: map(ratios, |r| r.max(low).min(clip.high)) }, Selection::everything(batch))
        }
        Mode::TokenMask | Mode::SequenceMask => {
            let keep = ratios.iter().map(|row| row.iter().map(|&r| r >= low && r <= clip.high).collect()).collect();
            let selection = Selection::of(batch, &keep, mode.selects());
            (Weights { w: ratios }.within(&selection), selection)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::batch, *};

    #[test]
    fn the_default_drops_whole_sequences_by_their_product() {
        let two = batch(&[(&[0.8, 0.8], 1.0), (&[0.8], 1.0)]);
        let (weights, selection) = correct(&two, Ratio::Full, (Mode::default(), Clip::default()));
        assert_eq!(selection.keep(), &[vec![false, false], vec![true]]);
        assert_eq!(selection.selects(), Selects::ByLength);
        assert_eq!(weights.w[0], [0.0, 0.0]);
        let (weights, selection) = correct(&two, Ratio::Full, (Mode::SequenceTruncate, Clip::default()));
        assert_eq!((&weights.w[0], selection.selects()), (&vec![3.0, 3.0], Selects::Nothing));
    }

    #[test]
    fn a_lower_bound_is_off_unless_asked_for() {
        let one = batch(&[(&[-2.0, 1.2], 1.0)]);
        let kept = |low| correct(&one, Ratio::Full, (Mode::TokenMask, Clip { low, high: 3.0 })).1.keep()[0].clone();
        assert_eq!(kept(None), [true, false]);
        assert_eq!(kept(Some(0.5)), [false, false]);
    }
}
