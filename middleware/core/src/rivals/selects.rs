//! What a rule makes of a batch: weights, and what it leaves out. Leaving out is a type of its own that says by what.

use super::batch::{Batch, PerToken};
use std::fmt;

/// By what a rule leaves tokens out, from the harmless to the grave. Whatever drops whole answers changes which answers
/// a policy is trained on, and is never on by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Selects {
    /// Every token stays.
    Nothing,
    /// Tokens fall by their own ratio.
    ByToken,
    /// Whole sequences fall, by a statistic that does not grow with their length.
    BySequence,
    /// Whole sequences fall, the longer ones more often: for iid log ratios of deviation sigma a bound of log 2 on their sum
    /// drops `2 (1 - Phi(log 2 / (sigma sqrt T)))`, at sigma 0.037 6 % of T = 100 and 67 % of T = 2000.
    ByLength,
    /// What falls depends on the advantage.
    ByOutcome,
}

impl fmt::Display for Selects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "drops nothing",
            Self::ByToken => "drops tokens by their ratio",
            Self::BySequence => "drops whole sequences by their ratio",
            Self::ByLength => "drops whole sequences by their ratio, long ones more often",
            Self::ByOutcome => "drops by the sign of the advantage",
        })
    }
}

/// Weight of each drawn token: its gradient is `-A w s`.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    /// `[sequence][token]`.
    pub w: PerToken<f64>,
}

impl Weights {
    /// Products of two weights.
    #[must_use]
    pub fn times(mut self, other: &Self) -> Self {
        let pairs = self.w.iter_mut().flatten().zip(other.w.iter().flatten());
        pairs.for_each(|(w, other)| *w *= other);
        self
    }

    /// The weights that are left: 0 where a token was dropped.
    #[must_use]
    pub fn within(mut self, selection: &Selection) -> Self {
        let pairs = self.w.iter_mut().flatten().zip(selection.keep.iter().flatten());
        pairs.filter(|(_, keep)| !**keep).for_each(|(w, _)| *w = 0.0);
        self
    }
}

/// The tokens a rule leaves in, and by what it chose.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    keep: PerToken<bool>,
    selects: Selects,
}

impl Selection {
    /// The loss mask itself.
    pub fn everything(batch: &Batch) -> Self {
        Self { keep: batch.mask(), selects: Selects::Nothing }
    }

    /// Those of the loss mask that a rule keeps.
    pub(crate) fn of(batch: &Batch, keep: &PerToken<bool>, selects: Selects) -> Self {
        Self::everything(batch).and(&Self { keep: keep.clone(), selects })
    }

    /// What two rules both keep; selects by the graver of the two.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        let pairs = self.keep.iter_mut().flatten().zip(other.keep.iter().flatten());
        pairs.for_each(|(keep, other)| *keep &= other);
        Self { selects: self.selects.max(other.selects), ..self }
    }

    /// Kept tokens, `[sequence][token]`; never a masked one.
    pub fn keep(&self) -> &PerToken<bool> {
        &self.keep
    }

    /// By what tokens were left out.
    pub fn selects(&self) -> Selects {
        self.selects
    }

    /// Share of each sequence's tokens that was dropped; `None` where nothing counted. Held against lengths and rewards, it
    /// shows a bias.
    pub fn dropped(&self, batch: &Batch) -> Vec<Option<f64>> {
        let counted = batch.mask();
        let rows = self.keep.iter().zip(&counted);
        let share = |(keep, counted): (&Vec<bool>, &Vec<bool>)| {
            let count = |row: &[bool]| row.iter().filter(|&&kept| kept).count() as f64;
            (count(counted) > 0.0).then(|| 1.0 - count(keep) / count(counted))
        };
        rows.map(share).collect()
    }
}
