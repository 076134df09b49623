//! The ordered list of filters a sampler applies. Engines apply the same filters in different orders and the order changes
//! the distribution, so there is no default order here: the caller states it.

use crate::{Error, Result};
use std::mem::discriminant;

/// One step of a sampler's chain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Filter {
    /// Divides the logits. Positive and finite: zero is greedy decoding, a point mass without a ratio.
    Temperature(f64),
    /// Keeps exactly the k largest, ties to the lower id. 0 is off.
    TopK(usize),
    /// Keeps tokens in descending order while the mass *before* them is below p: the crossing token stays. 1 is off.
    TopP(f64),
    /// Keeps tokens with at least this share of the largest probability. 0 is off.
    MinP(f64),
}

impl Filter {
    /// `true` when the filter can keep a token out of the support.
    pub fn truncates(self) -> bool {
        match self {
            Self::Temperature(_) => false,
            Self::TopK(k) => k > 0,
            Self::TopP(p) => p < 1.0,
            Self::MinP(p) => p > 0.0,
        }
    }

    fn check(self) -> Result<()> {
        let (filter, value, fine, wanted) = match self {
            Self::Temperature(t) => ("temperature", t, t > 0.0 && t.is_finite(), "a positive finite number"),
            Self::TopP(p) => ("top_p", p, p > 0.0 && p <= 1.0, "a number in (0, 1]"),
            Self::MinP(p) => ("min_p", p, (0.0..1.0).contains(&p), "a number in [0, 1)"),
            Self::TopK(_) => return Ok(()),
        };
        if fine { Ok(()) } else { Err(Error::Parameter { filter, value, wanted }) }
    }
}

/// Filters in the order they are applied. Every value is in its domain and no kind occurs twice.
#[derive(Debug, Clone, PartialEq)]
pub struct Chain(Vec<Filter>);

impl Chain {
    /// Checks every filter; the order is kept as given.
    pub fn new(filters: impl Into<Vec<Filter>>) -> Result<Self> {
        let filters = filters.into();
        for (j, &second) in filters.iter().enumerate() {
            second.check()?;
            let earlier = filters[..j].iter().position(|f| discriminant(f) == discriminant(&second));
            if let Some(i) = earlier {
                return Err(Error::Repeated { first: filters[i], second, at: (i, j) });
            }
        }
        Ok(Self(filters))
    }

    /// The filters, in order.
    pub fn filters(&self) -> &[Filter] {
        &self.0
    }

    /// The temperature of the distribution that comes out at the end; 1 where none is stated.
    pub fn temperature(&self) -> f64 {
        let stated = self.0.iter().find_map(|f| match f {
            Filter::Temperature(t) => Some(*t),
            _ => None,
        });
        stated.unwrap_or(1.0)
    }

    /// `true` when some filter can keep a token out of the support.
    pub fn truncates(&self) -> bool {
        self.0.iter().any(|f| f.truncates())
    }
}
