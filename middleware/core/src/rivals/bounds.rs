//! Caps and bands of a ratio, checked once.

/// Bounds that bound nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BoundsError {
    /// A cap.
    #[error("cap {0} is not a number > 0")]
    Cap(f64),
    /// A band.
    #[error("band [{low}, {high}] is not an interval 0 <= low <= high")]
    Band {
        /// Lower bound.
        low: f64,
        /// Upper bound.
        high: f64,
    },
    /// A band as text.
    #[error("threshold {0:?} is neither a number nor \"low_high\"")]
    Threshold(String),
}

/// Upper bound C of a weight; infinite where nothing is cut.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Cap(f64);

impl Cap {
    /// Cuts nothing.
    pub const NONE: Self = Self(f64::INFINITY);

    /// # Errors
    /// A cap that is no positive number.
    pub fn new(cap: f64) -> Result<Self, BoundsError> {
        (cap > 0.0).then_some(Self(cap)).ok_or(BoundsError::Cap(cap))
    }

    /// C.
    pub fn value(self) -> f64 {
        self.0
    }

    /// `min(r, C)`.
    pub fn truncate(self, ratio: f64) -> f64 {
        ratio.min(self.0)
    }
}

/// A band of ratios, bounds inclusive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Band {
    low: f64,
    high: f64,
}

impl Band {
    /// # Errors
    /// Bounds that are not `0 <= low <= high`.
    pub fn new(low: f64, high: f64) -> Result<Self, BoundsError> {
        (low >= 0.0 && low <= high).then_some(Self { low, high }).ok_or(BoundsError::Band { low, high })
    }

    /// verl's notation: `"0.5_2.0"`, or one number u for `[1/u, u]`.
    ///
    /// # Errors
    /// Text that is neither, bounds that are no band.
    pub fn parse(text: &str) -> Result<Self, BoundsError> {
        let number = |part: &str| part.trim().parse().map_err(|_| BoundsError::Threshold(text.into()));
        match text.split_once('_') {
            Some((low, high)) => Self::new(number(low)?, number(high)?),
            None => number(text).and_then(|upper: f64| Self::new(upper.recip(), upper)),
        }
    }

    /// Lower bound.
    pub fn low(self) -> f64 {
        self.low
    }

    /// Upper bound.
    pub fn high(self) -> f64 {
        self.high
    }

    /// `low <= r <= high`.
    pub fn contains(self, ratio: f64) -> bool {
        ratio >= self.low && ratio <= self.high
    }

    /// `log low <= l <= log high`.
    pub fn contains_log(self, log_ratio: f64) -> bool {
        log_ratio >= self.low.ln() && log_ratio <= self.high.ln()
    }

    /// `r 1[low <= r <= high]`.
    pub fn mask(self, ratio: f64) -> f64 {
        if self.contains(ratio) { ratio } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_reads_as_verl_reads_it() {
        assert_eq!(Band::parse("0.5_5.0"), Band::new(0.5, 5.0));
        assert_eq!(Band::parse("2.0"), Band::new(0.5, 2.0));
        assert_eq!(Band::parse("wide"), Err(BoundsError::Threshold("wide".into())));
        assert_eq!(Band::parse("2_0.5"), Err(BoundsError::Band { low: 2.0, high: 0.5 }));
        assert!(Band::parse("0.5").is_err(), "[2, 0.5] is no band");
    }

    #[test]
    fn both_bounds_belong_to_the_band() {
        let band = Band::new(0.5, 2.0).unwrap();
        assert_eq!([0.5, 2.0, 0.49, 2.01].map(|r| band.mask(r)), [0.5, 2.0, 0.0, 0.0]);
        assert!(band.contains_log(0.5f64.ln()) && band.contains_log(2.0f64.ln()));
    }

    #[test]
    fn nan_is_no_bound() {
        assert!(Cap::new(f64::NAN).is_err() && Cap::new(0.0).is_err() && Band::new(f64::NAN, 1.0).is_err());
    }
}
