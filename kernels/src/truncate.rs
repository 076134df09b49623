//! The definition of truncation: which tokens a chain of filters keeps, and the distribution left over them.
//!
//! Every filter keeps a prefix of the row ranked by (value descending, id ascending), so a chain is a sequence of prefix
//! lengths and no row is ever sorted in full. Mass is summed in integers ([`mod@crate::mass`]), so a support does not depend on the
//! order of the additions.

use crate::chain::{Chain, Filter};
use crate::mass::{self, mass};
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

/// A row under examination: its largest logit, and the border of what is still kept.
pub(crate) struct Row<'a, T> {
    logits: &'a [T],
    max: f64,
    finite: usize,
    kept: usize,
    inv_t: f64,
    border: Border,
    /// Mass of the finite entries at `inv_t`, where it is known.
    total: Option<u64>,
}

/// Kept are the entries above `value`, and of those equal to it the ones with an id of at most `last`: a prefix of the row
/// ranked by (value descending, id ascending).
#[derive(Debug, Clone, Copy)]
struct Border {
    value: f64,
    last: usize,
}

impl Border {
    fn keeps(self, id: usize, x: f64) -> bool {
        x > self.value || (x == self.value && id <= self.last)
    }
}

/// Bins of a nat in the search for the border.
const BINS_A_NAT: f64 = 64.0;

/// Bins of the search; the last holds everything that is too small to have mass.
const BINS: usize = 2600;

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
        // The smallest finite number: negative infinity is never kept.
        let border = Border { value: f64::MIN, last: usize::MAX };
        match finite {
            _ if logits.is_empty() => Err(Error::EmptyRow),
            0 => Err(Error::NoFiniteLogit { len: logits.len() }),
            _ => Ok(Self { logits, max, finite, kept: finite, inv_t: 1.0, border, total: None }),
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
            Filter::TopK(k) => self.keep_first(k),
            Filter::TopP(p) => self.keep_mass(p),
            Filter::MinP(p) => self.keep_first(self.at_least(p)),
        }
    }

    /// How many entries have at least the share `p` of the largest's mass.
    fn at_least(&self, p: f64) -> usize {
        let (floor, goal) = (self.max + (p.ln() - 1e-6) / self.inv_t, share(p, mass::ONE));
        let near = self.logits.iter().filter(|x| x.to_f64() >= floor);
        near.filter(|x| mass(self.gap(**x)) >= goal).count()
    }

    /// Cuts to the `n` largest.
    fn keep_first(&mut self, n: usize) {
        if n < self.kept {
            self.cut(|_| 1, n as u64);
        }
    }

    /// Cuts to the shortest prefix with `mass >= p * mass of what is kept`.
    fn keep_mass(&mut self, p: f64) {
        let masses = mass::masses(self.logits, self.max, self.inv_t);
        let kept =
            if self.kept == self.finite { masses.iter().sum() } else { self.kept_ids().map(|id| masses[id]).sum() };
        self.cut(|id| masses[id], share(p, kept));
    }

    /// Bin of an entry: larger entries in earlier bins, equal ones in the same.
    fn bin(&self, x: f64) -> usize {
        (((self.max - x) * self.inv_t * BINS_A_NAT) as usize).min(BINS - 1)
    }

    /// Moves the border to the first entry of the ranking at which the weight up to and with it reaches `goal`.
    fn cut(&mut self, weight: impl Fn(usize) -> u64, goal: u64) {
        let mut bins = vec![0u64; BINS];
        for id in self.kept_ids() {
            bins[self.bin(self.logits[id].to_f64())] += weight(id);
        }
        let (mut bin, mut sum) = (0, 0);
        while bin < BINS - 1 && sum + bins[bin] < goal {
            sum += bins[bin];
            bin += 1;
        }
        let value = |id: usize| self.logits[id].to_f64() + 0.0;
        let mut crossing: Vec<(f64, usize)> =
            self.kept_ids().filter(|id| self.bin(value(*id)) == bin).map(|id| (value(id), id)).collect();
        crossing.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (value, last) in crossing {
            self.border = Border { value, last };
            sum += weight(last);
            if sum >= goal {
                break;
            }
        }
        self.kept = self.kept_ids().count();
    }

    /// Ids of what is kept, ascending.
    fn kept_ids(&self) -> impl Iterator<Item = usize> + '_ {
        let border = self.border;
        let kept = move |(id, x): (usize, &T)| border.keeps(id, x.to_f64()).then_some(id);
        self.logits.iter().enumerate().filter_map(kept)
    }

    pub(crate) fn ids(&self) -> Vec<u32> {
        self.kept_ids().map(|id| id as u32).collect()
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
    let mut ranked: Vec<u32> = (0..kept.ids.len() as u32).collect();
    let log_q = |place: u32| kept.log_q[place as usize];
    ranked.select_nth_unstable_by(k, |a, b| log_q(*b).total_cmp(&log_q(*a)).then(a.cmp(b)));
    let mut listed = ranked[..k].to_vec();
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
