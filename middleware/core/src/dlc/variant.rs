//! The forms of DLC: what is centred, how the lag is bounded, whether the numeric term is weighted as well.
//!
//! Form A is what [`super::Rule`] trains with; the others are its rivals within the definition. Our definitions, all of
//! them: the published formulas were not available when this was written.
//!
//! | form | w | c | drift at constant advantage |
//! |---|---|---|---|
//! | A | `w_a` | `q_v w_v` | 0 |
//! | B | `w_a` | `(q_v - p_s,v) w_v` | 0 while no clip is active |
//! | E | `r_a 1[active_a]` | `q_v r_v 1[active_v]` | 0 |
//! | F | `min(p_s,a / q_a, C) w_a` | `q_v min(p_s,v / q_v, C) w_v` | 0 |
//!
//! with `r = p_theta / p_s` and `w = clip(r, low, high)`.

use super::rule::{LagClip, TailModel};
use std::fmt;

/// What the centring subtracts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Centring {
    /// `c_v = q_v w_v`.
    LagWeighted,
    /// `c_v = (q_v - p_s,v) w_v`: nothing where the sampler is exact, even under a clip.
    NumericOnly,
    /// `c_v = 0`.
    Off,
}

/// Bounds of PPO: a ratio is cut above `1 + high` where the advantage is not negative, below `1 - low` where it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PpoClip {
    low: f64,
    high: f64,
}

impl PpoClip {
    /// # Errors
    /// A half-width that is negative or no finite number.
    pub fn new(low: f64, high: f64) -> Result<Self, VariantError> {
        let widths = [low, high].iter().all(|width| width.is_finite() && *width >= 0.0);
        widths.then_some(Self { low, high }).ok_or(VariantError::PpoClip { low, high })
    }

    /// `1 - low`.
    pub fn floor(&self) -> f64 {
        1.0 - self.low
    }

    /// `1 + high`.
    pub fn ceiling(&self) -> f64 {
        1.0 + self.high
    }

    /// `clip(r, 1 - low, 1 + high)`.
    pub fn clip(&self, ratio: f64) -> f64 {
        ratio.max(self.floor()).min(self.ceiling())
    }

    /// True where the clip leaves a gradient: `r <= 1 + high` for `A >= 0`, `r >= 1 - low` for `A < 0`.
    pub fn is_active(&self, ratio: f64, sign: AdvantageSign) -> bool {
        match sign {
            AdvantageSign::NonNegative => ratio <= self.ceiling(),
            AdvantageSign::Negative => ratio >= self.floor(),
        }
    }
}

/// All that a weight may know of an advantage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdvantageSign {
    /// `A >= 0`.
    NonNegative,
    /// `A < 0`.
    Negative,
}

impl AdvantageSign {
    /// # Errors
    /// An advantage that is no finite number.
    pub fn of(advantage: f64) -> Result<Self, VariantError> {
        match advantage {
            a if !a.is_finite() => Err(VariantError::Advantage(a)),
            a if a < 0.0 => Ok(Self::Negative),
            _ => Ok(Self::NonNegative),
        }
    }
}

/// How the lag ratio becomes a weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LagBound {
    /// `clip(r, low, high)`.
    Clip(LagClip),
    /// `r 1[low <= r <= high]`, bounds inclusive.
    Mask(LagClip),
    /// `r 1[active(sign A)]`.
    Ppo(PpoClip),
}

impl LagBound {
    /// The weight of a log ratio.
    pub(crate) fn of_log(&self, log_ratio: f64, sign: AdvantageSign) -> f64 {
        let ratio = log_ratio.exp();
        let passes = match self {
            Self::Clip(clip) => return clip.of_log(log_ratio),
            Self::Mask(band) => ratio >= band.low() && ratio <= band.high(),
            Self::Ppo(clip) => clip.is_active(ratio, sign),
        };
        if passes { ratio } else { 0.0 }
    }
}

impl fmt::Display for LagBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clip(_) => "clip",
            Self::Mask(_) => "mask",
            Self::Ppo(_) => "ppo",
        })
    }
}

/// Weight of the numeric term, `p_s / q`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NumericWeight {
    /// 1: the numeric term enters through the centring alone.
    None,
    /// `min(p_s / q, C)`.
    Truncated(f64),
}

/// A form that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum VariantError {
    /// Half-widths of PPO.
    #[error("ppo clip (1 - {low}, 1 + {high}): a half-width is not a finite number >= 0")]
    PpoClip {
        /// Below 1.
        low: f64,
        /// Above 1.
        high: f64,
    },
    /// The cap of the numeric weight.
    #[error("numeric cap {0} is not a finite number >= 1")]
    NumericCap(f64),
    /// B with F.
    #[error("centring numeric_only is not defined with a truncated numeric weight (cap {cap})")]
    NumericOnlyTruncated {
        /// C.
        cap: f64,
    },
    /// A tail that has no term.
    #[error("tail on p_s is not defined for lag bound {0}: only a clipped ratio has a term off the known entries")]
    TailOnSamplerWeights(LagBound),
    /// No advantage.
    #[error("advantage {0} is not a finite number")]
    Advantage(f64),
}

/// One form of DLC.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Variant {
    centring: Centring,
    lag: LagBound,
    numeric: NumericWeight,
    tail: TailModel,
}

impl Variant {
    /// # Errors
    /// A cap below 1, a combination that is not defined.
    pub fn new(
        centring: Centring,
        lag: LagBound,
        numeric: NumericWeight,
        tail: TailModel,
    ) -> Result<Self, VariantError> {
        if let NumericWeight::Truncated(cap) = numeric {
            if !(cap.is_finite() && cap >= 1.0) {
                return Err(VariantError::NumericCap(cap));
            }
            if centring == Centring::NumericOnly {
                return Err(VariantError::NumericOnlyTruncated { cap });
            }
        }
        let dense_tail = centring != Centring::Off && tail == TailModel::SamplerWeights;
        match lag {
            LagBound::Mask(_) | LagBound::Ppo(_) if dense_tail => Err(VariantError::TailOnSamplerWeights(lag)),
            _ => Ok(Self { centring, lag, numeric, tail }),
        }
    }

    /// Form A: lag-weighted centring, clipped lag, the numeric term unweighted.
    pub fn a(clip: LagClip, tail: TailModel) -> Self {
        Self { centring: Centring::LagWeighted, lag: LagBound::Clip(clip), numeric: NumericWeight::None, tail }
    }

    /// Form B: as A, centring the numeric term alone.
    pub fn b(clip: LagClip, tail: TailModel) -> Self {
        Self { centring: Centring::NumericOnly, ..Self::a(clip, tail) }
    }

    /// Form E: as A, with PPO's clip in place of the bounds; its tail can only be collapsed.
    pub fn e(clip: PpoClip) -> Self {
        Self { lag: LagBound::Ppo(clip), ..Self::a(LagClip::default(), TailModel::Collapsed) }
    }

    /// Form F: as A, with the numeric term weighted by `min(p_s / q, C)`.
    ///
    /// # Errors
    /// A cap that is not a finite number >= 1.
    pub fn f(clip: LagClip, cap: f64, tail: TailModel) -> Result<Self, VariantError> {
        Self::new(Centring::LagWeighted, LagBound::Clip(clip), NumericWeight::Truncated(cap), tail)
    }

    /// What the centring subtracts.
    pub fn centring(&self) -> Centring {
        self.centring
    }

    /// How the lag ratio becomes a weight.
    pub fn lag(&self) -> LagBound {
        self.lag
    }

    /// Weight of the numeric term.
    pub fn numeric(&self) -> NumericWeight {
        self.numeric
    }

    /// Model of what is not known of q.
    pub fn tail(&self) -> TailModel {
        self.tail
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_defined_is_refused_by_name() {
        let (clip, ppo) = (LagClip::default(), PpoClip::new(0.2, 0.28).unwrap());
        let new = |centring, lag, numeric| Variant::new(centring, lag, numeric, TailModel::SamplerWeights);
        let message = |result: Result<Variant, VariantError>| result.unwrap_err().to_string();
        assert_eq!(
            message(new(Centring::NumericOnly, LagBound::Clip(clip), NumericWeight::Truncated(2.0))),
            "centring numeric_only is not defined with a truncated numeric weight (cap 2)"
        );
        for (lag, name) in [(LagBound::Mask(clip), "mask"), (LagBound::Ppo(ppo), "ppo")] {
            let error = message(new(Centring::LagWeighted, lag, NumericWeight::None));
            assert!(error.starts_with(&format!("tail on p_s is not defined for lag bound {name}")), "{error}");
            assert!(new(Centring::Off, lag, NumericWeight::None).is_ok());
        }
        for cap in [0.5, f64::NAN, f64::INFINITY] {
            assert!(Variant::f(clip, cap, TailModel::Collapsed).is_err(), "{cap}");
        }
        assert!(PpoClip::new(-0.1, 0.2).is_err() && PpoClip::new(0.1, f64::NAN).is_err());
    }

    #[test]
    fn a_ratio_at_a_bound_passes() {
        let sign = AdvantageSign::NonNegative;
        let mask = LagBound::Mask(LagClip::new(0.5, 1.0).unwrap());
        assert_eq!((mask.of_log(0.0, sign), mask.of_log(1e-9, sign)), (1.0, 0.0));
        let ppo = PpoClip::new(0.0, 0.0).unwrap();
        assert!(ppo.is_active(1.0, sign) && ppo.is_active(1.0, AdvantageSign::Negative));
        assert!(!ppo.is_active(1.1, sign) && ppo.is_active(1.1, AdvantageSign::Negative));
        assert!(ppo.is_active(0.9, sign) && !ppo.is_active(0.9, AdvantageSign::Negative));
    }

    #[test]
    fn zero_counts_as_a_non_negative_advantage_and_nan_as_none() {
        assert_eq!(AdvantageSign::of(-0.0), Ok(AdvantageSign::NonNegative));
        assert_eq!(AdvantageSign::of(-1e-300), Ok(AdvantageSign::Negative));
        assert!(AdvantageSign::of(f64::NAN).is_err());
    }
}
