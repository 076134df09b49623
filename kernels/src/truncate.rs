//! The definition of truncation: which tokens a chain of filters keeps, and the distribution left over them.
//!
//! Every filter keeps a prefix of the row ranked by (value descending, id ascending), so a chain is a sequence of prefix
//! lengths and no row is ever sorted in full. Mass is summed in integers ([`mod@crate::mass`]), so a support does not depend on the
//! order of the additions.

use crate::chain::{Chain, Filter};
use crate::mass::{self, mass};
use crate::select::Ranked;
use crate::{Error, Result};

/// A logit as an engine stores it.
pub trait Logit: Copy {
    /// Widens without rounding.
    fn to_f64(self) -> f64;
}

impl Logit for f32 {
    fn to_f64(self) -> f64 {
        self.into()
    }
}

impl Logit for f64 {
    fn to_f64(self) -> f64 {
        self
    }
}

/// The distribution a token is really drawn from.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// Kept ids, ascending.
    pub ids: Vec<u32>,
    /// Their log-probabilities, renormalised over the kept set at the chain's temperature.
    pub log_q: Vec<f64>,
    /// Mass of the kept set in the untruncated distribution at the chain's temperature.
    pub kept_mass: f64,
}

/// The largest entries of a distribution and the log of the mass of all others.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// Ids of the largest entries, ascending.
    pub ids: Vec<u32>,
    /// Their log-probabilities in the whole distribution.
    pub log_q: Vec<f64>,
    /// `ln sum exp(log_q)` over the entries that are not listed; negative infinity when all are.
    pub log_rest: f64,
}

/// A row under examination: its largest logit, how many are finite, how many are still kept.
pub(crate) struct Row<'a, T> {
    logits: &'a [T],
    max: f64,
    finite: usize,
    kept: usize,
    inv_t: f64,
    /// Mass of the finite entries at `inv_t`, where it is known.
    total: Option<u64>,
    ranked: Option<Ranked>,
}

/// The first block a search for the crossing token sorts; each next one is four times as long.
const BLOCK: usize = 64;

/// Entries further below the largest than this many nats are looked at only when the nearer ones do not suffice.
const NEAR: f64 = 12.0;

impl<'a, T: Logit> Row<'a, T> {
    pub(crate) fn new(logits: &'a [T]) -> Result<Self> {
        let (mut max, mut finite) = (f64::NEG_INFINITY, 0);
        for (id, x) in logits.iter().enumerate() {
            let value = x.to_f64();
            if value.is_nan() || value == f64::INFINITY {
                return Err(Error::BadLogit { id, value });
            }
            finite += usize::from(value > f64::NEG_INFINITY);
            max = max.max(value);
        }
        match finite {
            _ if logits.is_empty() => Err(Error::EmptyRow),
            0 => Err(Error::NoFiniteLogit { len: logits.len() }),
            _ => Ok(Self { logits, max, finite, kept: finite, inv_t: 1.0, total: None, ranked: None }),
        }
    }

    /// `(x - max) / T`, at the temperature so far.
    pub(crate) fn gap(&self, x: T) -> f64 {
        (x.to_f64() - self.max) * self.inv_t
    }

    /// The largest logit.
    pub(crate) fn max(&self) -> f64 {
        self.max
    }

    /// 1 / T, at the temperature so far.
    pub(crate) fn inv_t(&self) -> f64 {
        self.inv_t
    }

    /// Mass of the finite entries.
    pub(crate) fn total(&mut self) -> u64 {
        let total = self.total.unwrap_or_else(|| mass::total(self.logits, self.max, self.inv_t));
        self.total = Some(total);
        total
    }

    /// A ranking that holds at least the `n` largest entries.
    fn ranked(&mut self, n: usize) -> &mut Ranked {
        let held = self.ranked.take().filter(|r| r.len() >= n);
        let ranked = held.unwrap_or_else(|| {
            let near = Ranked::above(self.logits, self.max - NEAR / self.inv_t);
            if near.len() >= n { near } else { Ranked::above(self.logits, f64::NEG_INFINITY) }
        });
        self.ranked.insert(ranked)
    }

    /// Applies the filters that do something, in order.
    pub(crate) fn apply_all(&mut self, chain: &Chain) {
        for filter in chain.filters() {
            if filter.truncates() || matches!(filter, Filter::Temperature(_)) {
                self.apply(*filter);
            }
        }
    }

    fn apply(&mut self, filter: Filter) {
        match filter {
            Filter::Temperature(t) => {
                self.inv_t = 1.0 / t;
                self.total = None;
            }
            Filter::TopK(k) => self.kept = self.kept.min(k),
            Filter::TopP(p) => self.kept = self.crossing(p),
            Filter::MinP(p) => self.kept = self.kept.min(self.at_least(p)),
        }
    }

    /// How many entries have at least the share `p` of the largest's mass; masses are taken near the boundary and above it.
    fn at_least(&self, p: f64) -> usize {
        let (floor, goal) = (self.max + (p.ln() - 1e-6) / self.inv_t, share(p, mass::ONE));
        let near = self.logits.iter().filter(|x| x.to_f64() >= floor);
        near.filter(|x| mass(self.gap(**x)) >= goal).count()
    }

    /// Length of the prefix up to and with the first entry at which `cumulative mass >= p * mass of what is kept`.
    fn crossing(&mut self, p: f64) -> usize {
        let kept = self.kept;
        let goal = share(p, if kept == self.finite { self.total() } else { self.sum_of_largest(kept) });
        let (mut sum, mut seen, mut block) = (0, 0, BLOCK);
        while seen < kept {
            let end = (seen + block).min(kept);
            let (max, inv_t) = (self.max, self.inv_t);
            let values: Vec<f64> = self.ranked(end).first(end)[seen..].iter().map(|(x, _)| *x).collect();
            for mass in mass::masses(&values, max, inv_t) {
                seen += 1;
                sum += mass;
                if sum >= goal {
                    return seen;
                }
            }
            block *= 4;
        }
        kept
    }

    fn sum_of_largest(&mut self, n: usize) -> u64 {
        let (max, inv_t) = (self.max, self.inv_t);
        let values: Vec<f64> = self.ranked(n).set(n).iter().map(|(x, _)| *x).collect();
        mass::total(&values, max, inv_t)
    }

    pub(crate) fn ids(&mut self) -> Vec<u32> {
        let n = self.kept;
        if n == self.finite {
            let finite = |x: &T| x.to_f64() > f64::NEG_INFINITY;
            return (0u32..).zip(self.logits).filter(|(_, x)| finite(x)).map(|(id, _)| id).collect();
        }
        let mut ids: Vec<u32> = self.ranked(n).set(n).iter().map(|(_, id)| *id).collect();
        ids.sort_unstable();
        ids
    }
}

/// Applies `chain` to one row of logits, in the order stated.
///
/// ```text
/// top_p    keep v in order while  sum_{u before v} p_u < p     p over what is kept so far, at the temperature so far
/// min_p    keep v                 when  p_v >= min_p * max p
/// top_k    keep exactly k
/// q_v = p_v / sum_{u kept} p_u                                 at the chain's temperature
/// ```
pub fn truncate<T: Logit>(logits: &[T], chain: &Chain) -> Result<Kept> {
    let mut row = Row::new(logits)?;
    row.apply_all(chain);
    let ids = row.ids();
    let total = row.total();
    let gaps: Vec<f64> = ids.iter().map(|id| row.gap(logits[*id as usize])).collect();
    let sum: f64 = gaps.iter().map(|gap| gap.exp()).sum();
    let log_sum = sum.ln();
    let kept_mass = if ids.len() == row.finite { 1.0 } else { (sum * mass::ONE as f64 / total as f64).min(1.0) };
    Ok(Kept { ids, log_q: gaps.into_iter().map(|gap| gap - log_sum).collect(), kept_mass })
}

/// `p` of a mass, rounded up, at least 1.
fn share(p: f64, of: u64) -> u64 {
    ((p * of as f64).ceil() as u64).max(1)
}

/// The `k` largest entries of `kept` (ties to the lower id), and the log mass of the rest, summed over the rest itself.
pub fn head(kept: &Kept, k: usize) -> Head {
    if k >= kept.ids.len() {
        return Head { ids: kept.ids.clone(), log_q: kept.log_q.clone(), log_rest: f64::NEG_INFINITY };
    }
    let mut listed: Vec<u32> = match k {
        0 => Vec::new(),
        _ => Ranked::above(&kept.log_q, f64::NEG_INFINITY).set(k).iter().map(|(_, place)| *place).collect(),
    };
    listed.sort_unstable();
    let mut taken = listed.iter().peekable();
    let rest = (0u32..).zip(&kept.log_q).filter(|(place, _)| taken.next_if_eq(&place).is_none());
    let log_rest = log_sum(rest.map(|(_, log_q)| *log_q).collect());
    let places = || listed.iter().map(|place| *place as usize);
    let ids = places().map(|place| kept.ids[place]).collect();
    Head { ids, log_q: places().map(|place| kept.log_q[place]).collect(), log_rest }
}

fn log_sum(log_q: Vec<f64>) -> f64 {
    let max = log_q.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY { max } else { max + log_q.iter().map(|x| (x - max).exp()).sum::<f64>().ln() }
}
