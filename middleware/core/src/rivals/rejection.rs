//! Rejection by statistics of the log ratio, as in verl's `rollout_rs`. Edits the mask, weighs nothing.

use super::{
    batch::{Batch, Ratio, Token},
    bounds::{Band, BoundsError},
    importance::LOG_CLAMP,
    selects::{Selection, Selects},
};
use crate::dlc::statistics::k3;

/// A statistic of `l = log p - log q`, clamped to +-20 first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Statistic {
    /// `k1 = -l`, kept within `[log low, log high]`. The sign is verl's: the bounds hold for `q / p`, so "0.5_5.0" keeps
    /// `p / q` in [0.2, 2].
    K1(Band),
    /// `k2 = l^2 / 2`, kept up to a bound, inclusive.
    K2(f64),
    /// `k3 = exp(l) - 1 - l`, kept up to a bound, inclusive.
    K3(f64),
}

impl Statistic {
    /// The statistic of one token.
    pub fn of_log(&self, log_ratio: f64) -> f64 {
        let l = log_ratio.clamp(-LOG_CLAMP, LOG_CLAMP);
        match self {
            Self::K1(_) => -l,
            Self::K2(_) => l * l / 2.0,
            Self::K3(_) => k3(l),
        }
    }

    fn keeps(&self, value: f64) -> bool {
        match *self {
            Self::K1(band) => band.contains_log(value),
            Self::K2(upper) | Self::K3(upper) => value <= upper,
        }
    }
}

/// Over what a statistic is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// Each token.
    Token,
    /// The sum over a sequence: grows with its length.
    SeqSum,
    /// The mean over a sequence; of k1, minus the log of the geometric mean ratio.
    SeqMean,
    /// The largest of a sequence: grows with its length.
    SeqMax,
}

impl Over {
    /// What a rejection by it selects by.
    pub fn selects(self) -> Selects {
        match self {
            Self::Token => Selects::ByToken,
            Self::SeqMean => Selects::BySequence,
            Self::SeqSum | Self::SeqMax => Selects::ByLength,
        }
    }
}

/// A criterion that is none.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CriterionError {
    /// No such option.
    #[error("rejection option {0:?} is not known")]
    Unknown(String),
    /// Lists that do not fit together.
    #[error("{options} rejection options, {thresholds} thresholds")]
    Count {
        /// Options.
        options: usize,
        /// Thresholds.
        thresholds: usize,
    },
    /// The threshold.
    #[error(transparent)]
    Bounds(#[from] BoundsError),
}

/// One condition to stay in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Criterion {
    /// The statistic and its bounds.
    pub statistic: Statistic,
    /// Over what it is taken.
    pub over: Over,
}

impl Criterion {
    /// verl's option and threshold: `("seq_sum_k1", "0.5_2.0")`, `("token_k3", "0.01")`.
    ///
    /// # Errors
    /// An option verl does not have (such as `seq_max_k1`), a threshold that is none.
    pub fn parse(option: &str, threshold: &str) -> Result<Self, CriterionError> {
        let unknown = || CriterionError::Unknown(option.into());
        let (over, statistic) = option.rsplit_once('_').ok_or_else(unknown)?;
        let over = match over {
            "token" => Over::Token,
            "seq_sum" => Over::SeqSum,
            "seq_mean" => Over::SeqMean,
            "seq_max" => Over::SeqMax,
            _ => return Err(unknown()),
        };
        let upper = || threshold.parse::<f64>().map_err(|_| BoundsError::Threshold(threshold.into()));
        let statistic = match statistic {
            "k1" if over != Over::SeqMax => Statistic::K1(Band::parse(threshold)?),
            "k2" => Statistic::K2(upper()?),
            "k3" => Statistic::K3(upper()?),
            _ => return Err(unknown()),
        };
        Ok(Self { statistic, over })
    }

    /// Several, comma-separated, all of which must hold.
    ///
    /// # Errors
    /// As [`Criterion::parse`]; as many thresholds as options are needed.
    pub fn parse_all(options: &str, thresholds: &str) -> Result<Vec<Self>, CriterionError> {
        let list = |text: &str| text.split(',').map(|part| part.trim().to_owned()).collect::<Vec<_>>();
        let (options, thresholds) = (list(options), list(thresholds));
        if options.len() != thresholds.len() {
            return Err(CriterionError::Count { options: options.len(), thresholds: thresholds.len() });
        }
        options.iter().zip(&thresholds).map(|(option, threshold)| Self::parse(option, threshold)).collect()
    }

    /// The statistic of a sequence; `None` without tokens.
    pub fn of_sequence(&self, tokens: &[Token], ratio: Ratio) -> Option<f64> {
        let values = tokens.iter().map(|token| self.statistic.of_log(ratio.log(token)));
        match self.over {
            Over::SeqMax => values.reduce(f64::max),
            _ if tokens.is_empty() => None,
            Over::SeqSum => Some(values.sum()),
            Over::Token | Over::SeqMean => Some(values.sum::<f64>() / tokens.len() as f64),
        }
    }
}

/// What stays under every criterion (verl `compute_rollout_rejection_mask`).
pub fn reject(batch: &Batch, ratio: Ratio, criteria: &[Criterion]) -> Selection {
    criteria.iter().fold(Selection::everything(batch), |kept, criterion| {
        let keep = match criterion.over {
            Over::Token => batch.map(|token| criterion.statistic.keeps(criterion.statistic.of_log(ratio.log(token)))),
            _ => batch.broadcast(|tokens| {
                criterion.of_sequence(tokens, ratio).is_none_or(|value| criterion.statistic.keeps(value))
            }),
        };
        kept.and(&Selection::of(batch, &keep, criterion.over.selects()))
    })
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::batch, *};

    fn kept(log_ratios: &[f64], option: &str, threshold: &str) -> Vec<bool> {
        let batch = batch(&[(log_ratios, 1.0)]);
        let criteria = Criterion::parse_all(option, threshold).unwrap();
        reject(&batch, Ratio::Full, &criteria).keep()[0].clone()
    }

    #[test]
    fn k1_bounds_q_over_p() {
        let log_ratios = [0.19, 0.21, 1.9, 2.1].map(f64::ln);
        assert_eq!(kept(&log_ratios, "token_k1", "0.5_5.0"), [false, true, true, false]);
    }

    #[test]
    fn bounds_are_inclusive() {
        assert_eq!(kept(&[1.0, -1.0, 1.5], "token_k2", "0.5"), [true, true, false]);
        assert_eq!(kept(&[0.0], "token_k1", "1.0_1.0"), [true]);
        assert_eq!(kept(&[0.0], "token_k3", "0"), [true]);
    }

    #[test]
    fn all_criteria_must_hold() {
        assert_eq!(kept(&[1.0, -0.1], "token_k2,token_k3", "0.6,0.1"), [false, true]);
    }

    #[test]
    fn a_clamped_ratio_has_a_finite_statistic() {
        let k3 = Criterion::parse("seq_max_k3", "1").unwrap();
        assert_eq!(k3.statistic.of_log(500.0), 20f64.exp_m1() - 20.0);
    }

    #[test]
    fn whole_sequences_fall_and_the_type_says_so() {
        let two = batch(&[(&[0.5, 0.5], 1.0), (&[0.5], 1.0)]);
        let selection = reject(&two, Ratio::Full, &[Criterion::parse("seq_sum_k1", "2.0").unwrap()]);
        assert_eq!(selection.keep(), &[vec![false, false], vec![true]]);
        assert_eq!(selection.selects(), Selects::ByLength);
        assert_eq!(selection.dropped(&two), [Some(1.0), Some(0.0)]);
        assert_eq!(selection.selects().to_string(), "drops whole sequences by their ratio, long ones more often");
    }

    #[test]
    fn what_verl_does_not_have_is_refused() {
        assert_eq!(Criterion::parse("seq_max_k1", "2"), Err(CriterionError::Unknown("seq_max_k1".into())));
        assert!(Criterion::parse("token_k2", "0.5_2.0").is_err());
        let error = Criterion::parse_all("token_k2,token_k3", "1").unwrap_err().to_string();
        assert_eq!(error, "2 rejection options, 1 thresholds");
    }
}
