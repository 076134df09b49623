//! AReaL's `rejection_sampling`, of the behaviour weight of decoupled PPO. With p_s for the proximal policy the ratio is the
//! numeric one.
//!
//! Where AReaL takes a log ratio that is no number for 0, a [`Batch`] refuses it.

use super::{
    batch::{Batch, PerToken, Ratio, Token},
    bounds::Band,
    importance::clamped_exp,
    selects::{Selection, Selects, Weights},
};
use crate::dlc::statistics::k3;

/// What is bounded, of `x = log p_s - log q`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// `exp(x)`.
    Ratio,
    /// `x`: the sign is AReaL's, and the opposite of verl's.
    K1,
    /// `x^2 / 2`.
    K2,
    /// `exp(-x) - 1 + x`: of the opposite sign to verl's as well.
    K3,
}

/// Over what it is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Each token.
    Token,
    /// The sum over a sequence: grows with its length.
    Sum,
    /// The mean over a sequence.
    Mean,
    /// The largest of a sequence: grows with its length.
    Max,
}

/// What happens out of bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The tokens fall.
    Mask,
    /// Their weights are clamped to the bounds.
    Clamp,
}

/// AReaL's rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RejectionSampling {
    /// What is bounded.
    pub metric: Metric,
    /// Over what.
    pub scope: Scope,
    /// What happens out of bounds.
    pub action: Action,
    /// The bounds, inclusive; without a lower one the metric may be anything below, and a weight is clamped at 0.
    pub bounds: Bounds,
}

/// Bounds of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Lower bound.
    pub low: Option<f64>,
    /// Upper bound.
    pub high: f64,
}

impl From<Band> for Bounds {
    fn from(band: Band) -> Self {
        Self { low: Some(band.low()), high: band.high() }
    }
}

impl Bounds {
    fn contain(self, value: f64) -> bool {
        self.low.is_none_or(|low| value >= low) && value <= self.high
    }

    fn clamp(self, weight: f64) -> f64 {
        weight.max(self.low.unwrap_or(0.0)).min(self.high)
    }
}

impl RejectionSampling {
    /// Weights and mask. A sequence's ratio is the geometric mean of its tokens', which is the statistic (scope mean) and,
    /// with any sequence scope, the weight of all its tokens:
    ///
    /// ```text
    /// metric ratio: agg_t x_t exponentiated; w_t = exp(mean_t x_t)        metric k: agg_t k(x_t); w_t = exp(x_t)
    /// ```
    pub fn apply(&self, batch: &Batch) -> (Weights, Selection) {
        let mut weights = self.weights(batch);
        let within = match self.scope {
            Scope::Token => batch.map(|token| self.bounds.contain(self.of_token(token))),
            _ => batch.broadcast(|tokens| self.of_sequence(tokens).is_none_or(|value| self.bounds.contain(value))),
        };
        match (self.action, self.scope) {
            (Action::Mask, _) => {
                let selection = Selection::of(batch, &within, self.selects());
                (weights.within(&selection), selection)
            }
            (Action::Clamp, scope) => {
                let pairs = weights.w.iter_mut().flatten().zip(within.iter().flatten());
                let out = pairs.filter(|(_, within)| scope == Scope::Token || !**within);
                out.for_each(|(w, _)| *w = self.bounds.clamp(*w));
                let everything = Selection::everything(batch);
                (weights.within(&everything), everything)
            }
        }
    }

    /// By what it drops.
    pub fn selects(&self) -> Selects {
        match (self.action, self.scope) {
            (Action::Clamp, _) => Selects::Nothing,
            (Action::Mask, Scope::Token) => Selects::ByToken,
            (Action::Mask, Scope::Mean) => Selects::BySequence,
            (Action::Mask, Scope::Sum | Scope::Max) => Selects::ByLength,
        }
    }

    fn weights(&self, batch: &Batch) -> Weights {
        let x = |token: &Token| Ratio::Numeric.log(token);
        let w: PerToken<f64> = if self.metric == Metric::Ratio && self.scope != Scope::Token {
            let mean = |tokens: &[Token]| tokens.iter().map(x).sum::<f64>() / tokens.len().max(1) as f64;
            batch.broadcast(|tokens| clamped_exp(mean(tokens)))
        } else {
            batch.map(|token| clamped_exp(x(token)))
        };
        Weights { w }
    }

    fn of_token(&self, token: &Token) -> f64 {
        let x = Ratio::Numeric.log(token);
        match self.metric {
            Metric::Ratio => x.exp(),
            Metric::K1 => x,
            Metric::K2 => x * x / 2.0,
            Metric::K3 => k3(-x),
        }
    }

    fn of_sequence(&self, tokens: &[Token]) -> Option<f64> {
        let ratio = self.metric == Metric::Ratio;
        let values = tokens.iter().map(|token| if ratio { Ratio::Numeric.log(token) } else { self.of_token(token) });
        let value = match self.scope {
            Scope::Max => values.reduce(f64::max),
            _ if tokens.is_empty() => None,
            Scope::Sum => Some(values.sum()),
            Scope::Token | Scope::Mean => Some(values.sum::<f64>() / tokens.len() as f64),
        };
        value.map(|value| if ratio { value.exp() } else { value })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fixture, *};

    /// The fixture's log ratios, as numeric ones.
    fn batch(log_ratios: &[f64]) -> Batch {
        let batch = fixture::batch(&[(log_ratios, 1.0)]);
        let log_theta = batch.map(|token| token.log_theta);
        batch.with_log_s(&log_theta).unwrap()
    }

    fn rule(metric: Metric, scope: Scope, action: Action) -> RejectionSampling {
        RejectionSampling { metric, scope, action, bounds: Bounds { low: Some(0.5), high: 2.0 } }
    }

    fn close(found: &[f64], expected: &[f64]) -> bool {
        found.len() == expected.len() && found.iter().zip(expected).all(|(f, e)| (f - e).abs() < 1e-10)
    }

    #[test]
    fn a_sequence_ratio_is_the_geometric_mean_as_statistic_and_as_weight() {
        let tokens = batch(&[5f64.ln(), 0.0, 0.0]);
        let root = 5f64.cbrt();
        let (weights, selection) = rule(Metric::Ratio, Scope::Mean, Action::Mask).apply(&tokens);
        assert_eq!((close(&weights.w[0], &[root; 3]), selection.selects()), (true, Selects::BySequence));
        // Out of bounds by its product of 5, clamped by its mean, which is within them.
        let (weights, selection) = rule(Metric::Ratio, Scope::Sum, Action::Clamp).apply(&tokens);
        assert_eq!((close(&weights.w[0], &[root; 3]), selection.selects()), (true, Selects::Nothing));
    }

    #[test]
    fn k1_has_the_sign_of_the_log_ratio() {
        let (_, selection) = rule(Metric::K1, Scope::Token, Action::Mask).apply(&batch(&[1.0, -1.0]));
        assert_eq!(selection.keep(), &[vec![true, false]]);
    }

    #[test]
    fn a_clamp_drops_nothing_and_a_mask_zeroes_the_weight() {
        let tokens = batch(&[1.5, -1.5, 0.1]);
        let (weights, selection) = rule(Metric::Ratio, Scope::Token, Action::Clamp).apply(&tokens);
        assert!(close(&weights.w[0], &[2.0, 0.5, 0.1f64.exp()]));
        assert_eq!(selection.keep(), &[vec![true; 3]]);
        let (weights, _) = rule(Metric::Ratio, Scope::Token, Action::Mask).apply(&tokens);
        assert!(close(&weights.w[0], &[0.0, 0.0, 0.1f64.exp()]));
    }

    #[test]
    fn without_a_lower_bound_nothing_is_too_low() {
        let bounds = Bounds { low: None, high: 0.1 };
        let rule = RejectionSampling { bounds, ..rule(Metric::K3, Scope::Max, Action::Mask) };
        assert_eq!(rule.apply(&batch(&[0.0, 0.1])).1.keep(), &[vec![true; 2]]);
        assert_eq!(rule.apply(&batch(&[0.0, -0.5])).1.keep(), &[vec![false; 2]]);
        assert_eq!(rule.selects(), Selects::ByLength);
    }
}
