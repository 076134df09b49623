//! Estimators of a KL divergence from one sample (Schulman 2020; verl, DeepSeek-V3.2).
//!
//! For a sample of a, with `x = log b - log a`: `KL(a || b) = E_a[k1] = E_a[k3]`, and `E_a[k3]` only where b lies within the
//! support of a. With a truncated a and b over the vocabulary it is low by b's mass off the support.

use super::importance::LOG_CLAMP;
use crate::dlc::statistics;

/// verl's bound on k3.
pub const K3_CLAMP: f64 = 10.0;

/// `k1 = -x`: unbiased, signed.
pub fn k1(x: f64) -> f64 {
    -x
}

/// `k2 = x^2 / 2`: biased in value, right in its gradient.
pub fn k2(x: f64) -> f64 {
    x * x / 2.0
}

/// `k3 = exp(x) - 1 - x`: at least 0; by its series near 0.
pub fn k3(x: f64) -> f64 {
    statistics::k3(x)
}

/// A penalty for leaving a reference policy, of a token drawn from p: `KL(p || ref)`, `x = log ref - log p`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Penalty {
    /// verl "k1", "kl".
    K1,
    /// verl "k2", "mse".
    K2,
    /// verl "k3", "low_var_kl": x clamped to +-20, the value to +-10.
    K3,
    /// verl "k3+": the value of k3 with the gradient of k2, straight through.
    K3Plus,
}

/// Value of a penalty, and its derivative with respect to log p.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Penalised {
    /// Value.
    pub value: f64,
    /// `d value / d log p`.
    pub slope: f64,
}

/// log p or log ref that is none.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("log p {log_p}, log ref {log_ref}: their difference is not finite")]
pub struct KlError {
    /// log p.
    pub log_p: f64,
    /// log of the reference.
    pub log_ref: f64,
}

impl Penalty {
    /// # Errors
    /// A difference that is not finite.
    pub fn of(self, log_p: f64, log_ref: f64) -> Result<Penalised, KlError> {
        let x = log_ref - log_p;
        if !x.is_finite() {
            return Err(KlError { log_p, log_ref });
        }
        let clamped = k3(x.clamp(-LOG_CLAMP, LOG_CLAMP));
        let value = clamped.min(K3_CLAMP);
        let flat = x.abs() > LOG_CLAMP || clamped > K3_CLAMP;
        Ok(match self {
            Self::K1 => Penalised { value: k1(x), slope: 1.0 },
            Self::K2 => Penalised { value: k2(x), slope: -x },
            Self::K3 => Penalised { value, slope: if flat { 0.0 } else { -x.exp_m1() } },
            Self::K3Plus => Penalised { value, slope: -x },
        })
    }
}

/// Unbiased for a token drawn from q instead of p (DeepSeek-V3.2): `(p / q) k3(log ref - log p)`.
///
/// # Errors
/// A difference that is not finite.
pub fn unbiased_k3(log_p: f64, log_q: f64, log_ref: f64) -> Result<f64, KlError> {
    let (x, log_ratio) = (log_ref - log_p, log_p - log_q);
    let value = log_ratio.exp() * k3(x);
    if x.is_finite() && value.is_finite() { Ok(value) } else { Err(KlError { log_p, log_ref }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_derivatives() {
        for (penalty, log_ref) in [(Penalty::K1, -1.0), (Penalty::K2, -3.0), (Penalty::K3, -1.2), (Penalty::K3, 30.0)] {
            let value = |log_p| penalty.of(log_p, log_ref).unwrap().value;
            let slope = (value(-1.5 + 1e-6) - value(-1.5 - 1e-6)) / 2e-6;
            assert!((slope - penalty.of(-1.5, log_ref).unwrap().slope).abs() < 1e-8, "{penalty:?}");
        }
    }

    #[test]
    fn k3_plus_takes_its_gradient_from_k2() {
        let [k2, k3, plus] = [Penalty::K2, Penalty::K3, Penalty::K3Plus].map(|p| p.of(-1.0, -2.0).unwrap());
        assert_eq!(plus, Penalised { value: k3.value, slope: k2.slope });
    }

    #[test]
    fn a_clamp_is_verls() {
        assert_eq!(Penalty::K3.of(-50.0, -1.0), Ok(Penalised { value: 10.0, slope: 0.0 }));
        assert_eq!(Penalty::K1.of(-50.0, -1.0).unwrap().value, -49.0);
    }

    #[test]
    fn what_is_no_number_is_an_error() {
        assert!(Penalty::K3.of(f64::NAN, -1.0).is_err() && Penalty::K1.of(-1.0, f64::NEG_INFINITY).is_err());
        assert!(unbiased_k3(-1.0, f64::NEG_INFINITY, -1.0).is_err());
    }

    #[test]
    fn k3_is_low_by_the_mass_off_the_support() {
        let (q, p) = ([0.5, 0.5], [0.4, 0.3]);
        let expected = |k: fn(f64) -> f64| q.iter().zip(p).map(|(q, p): (&f64, f64)| q * k((p / q).ln())).sum::<f64>();
        assert!((expected(k3) - (expected(k1) + 0.7 - 1.0)).abs() < 1e-15);
    }
}
