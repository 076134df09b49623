//! One row of logits, one token, and the report of the distribution it was drawn from: what a sampler owes its trainer.

use crate::{Chain, Error, Result, mass, philox, truncate::Row};

/// Which draw of a run this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// Seed of the request.
    pub seed: u64,
    /// Number of the request.
    pub request: u64,
    /// Index of the token among the sampled ones.
    pub position: u64,
}

/// A drawn token and q at its position.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleReport {
    /// The token.
    pub token: u32,
    /// log q of it, in nats.
    pub log_q: f64,
    /// Its log-probability over the whole row at the chain's temperature.
    pub log_p: f64,
    /// `ln sum_v exp(x_v / T)` over the whole row.
    pub log_sum_exp: f64,
    /// Tokens kept.
    pub kept: u32,
    /// Their mass in the whole row's distribution.
    pub kept_mass: f64,
    /// Kept ids, ascending, and their log q; `None` when more than the cap were kept.
    pub support: Option<(Vec<u32>, Vec<f64>)>,
}

/// Truncates a row by `chain`, draws a token, reports its distribution.
///
/// ```text
/// M_v  mass of v (module mass)         K  the kept set (module truncate)
/// token = first v of K, by id, with  sum_{u in K, u <= v} M_u > floor(R sum_{u in K} M_u / 2^64)
/// log q_v = (x_v - max) / T - ln sum_{u in K} exp((x_u - max) / T)
/// ```
/// `R` are 64 random bits of Philox, keyed by the seed, counted by request and position. Support, counts and token are the
/// same bits wherever this is computed; log q is that of [`crate::truncate()`], to which a card comes with the sum of `M_u`.
///
/// # Errors
/// A row that is empty, too long, without a finite entry, or with NaN or positive infinity.
pub fn sample_report(logits: &[f32], chain: &Chain, draw: Draw, cap: usize) -> Result<SampleReport> {
    if logits.len() > mass::MAX_ROW {
        return Err(Error::LongRow { len: logits.len(), most: mass::MAX_ROW });
    }
    let mut row = Row::new(logits)?;
    row.apply_all(chain);
    let ids = row.ids();
    let listed: Vec<f32> = ids.iter().map(|id| logits[*id as usize]).collect();
    let masses = mass::masses(&listed, row.max(), row.inv_t());
    let kept: u64 = masses.iter().sum();
    let total = row.total();
    let log = |mass: u64| (mass as f64 / mass::ONE as f64).ln();
    let token = ids[pick(&masses, point(draw, kept))];
    let gap = |id: u32| row.gap(logits[id as usize]);
    let (log_kept, log_total) = (ids.iter().map(|id| gap(*id).exp()).sum::<f64>().ln(), log(total));
    let log_q = |id: u32| gap(id) - log_kept;
    Ok(SampleReport {
        token,
        log_q: log_q(token),
        log_p: gap(token) - log_total,
        log_sum_exp: row.max() * row.inv_t() + log_total,
        kept: ids.len() as u32,
        kept_mass: kept as f64 / total as f64,
        support: (ids.len() <= cap).then(|| (ids.clone(), ids.iter().map(|id| log_q(*id)).collect())),
    })
}

/// A point in `[0, kept)`, uniform to 2^-64 of it.
fn point(Draw { seed, request, position }: Draw, kept: u64) -> u64 {
    let bits = u128::from(philox::bits(seed, request, position));
    ((bits * u128::from(kept)) >> 64) as u64
}

/// Place of the first entry whose mass, with all before it, is above the point.
fn pick(masses: &[u64], point: u64) -> usize {
    let mut below = 0;
    let crosses = |mass: &u64| {
        below += mass;
        below > point
    };
    masses.iter().position(crosses).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Filter;

    fn chain(filters: &[Filter]) -> Chain {
        Chain::new(filters).unwrap()
    }

    #[test]
    fn the_report_is_the_distribution_of_the_draws() {
        let row = [1.0f32, 0.0, 3.0, 2.5, f32::NEG_INFINITY, 2.5];
        let chain = chain(&[Filter::Temperature(0.9), Filter::TopP(0.9)]);
        let n = 40_000;
        let mut counts = [0f64; 6];
        let mut support = None;
        for request in 0..n {
            let report = sample_report(&row, &chain, Draw { seed: 5, request, position: 3 }, 8).unwrap();
            counts[report.token as usize] += 1.0;
            support = report.support;
        }
        let (ids, log_q) = support.unwrap();
        assert_eq!(ids, [2, 3, 5]);
        assert!((log_q.iter().map(|x| x.exp()).sum::<f64>() - 1.0).abs() < 1e-12);
        let g = |id: &u32, log_q: &f64| {
            let count = counts[*id as usize];
            2.0 * count * (count / (n as f64 * log_q.exp())).ln()
        };
        let g: f64 = ids.iter().zip(&log_q).map(|(id, log_q)| g(id, log_q)).sum();
        assert!(g < 18.4, "G = {g} with 2 degrees of freedom; 18.4 is the quantile of 1 - 1e-4");
        assert_eq!(counts[0] + counts[1] + counts[4], 0.0);
    }

    #[test]
    fn more_than_the_cap_is_said_and_not_cut() {
        let draw = Draw { seed: 1, request: 0, position: 0 };
        let report = sample_report(&[0.0f32; 100], &chain(&[Filter::TopP(0.5)]), draw, 49).unwrap();
        assert_eq!((report.kept, report.support), (50, None));
        assert!((report.kept_mass - 0.5).abs() < 1e-12 && (report.log_q + 50f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn rows_it_cannot_draw_from_are_refused() {
        let draw = Draw { seed: 1, request: 0, position: 0 };
        let refused = |row: &[f32]| sample_report(row, &chain(&[]), draw, 1).unwrap_err().to_string();
        assert_eq!(refused(&[]), "row is empty");
        assert_eq!(refused(&[0.0, f32::NAN]), "logit of id 1 is NaN");
        assert_eq!(refused(&vec![0.0; (1 << 18) + 1]), "row has 262145 entries, at most 262144 can be summed exactly");
    }
}
