//! The kept set: temperature, then top-k, then top-p, then min-p; the crossing token is kept, ties go to the lower id.

use super::model::log_softmax;
use lockstep_core::{TokenId, sampling::Truncation};

/// Ids with renormalised log q, most likely first; `z` are the logits after the division by the temperature.
pub(super) fn kept(z: &[f64], truncation: &Truncation) -> Vec<(TokenId, f64)> {
    let mut entries: Vec<(TokenId, f64)> = (0..).map(TokenId).zip(z.iter().copied()).collect();
    entries.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if truncation.top_k > 0 {
        entries.truncate(truncation.top_k as usize);
    }
    renormalise(&mut entries);
    if truncation.top_p < 1.0 {
        entries.truncate(nucleus(&entries, truncation.top_p));
        renormalise(&mut entries);
    }
    let floor = entries.first().map_or(0.0, |(_, log_q)| log_q + truncation.min_p.ln());
    entries.retain(|&(_, log_q)| log_q >= floor);
    renormalise(&mut entries);
    entries
}

/// Size of the smallest most likely set of at least this mass.
fn nucleus(entries: &[(TokenId, f64)], top_p: f64) -> usize {
    let mut before = 0.0;
    let kept = entries.iter().take_while(|(_, log_q)| {
        let keep = before < top_p;
        before += log_q.exp();
        keep
    });
    kept.count().max(1)
}

fn renormalise(entries: &mut [(TokenId, f64)]) {
    let log_q = log_softmax(&entries.iter().map(|&(_, z)| z).collect::<Vec<f64>>());
    entries.iter_mut().zip(log_q).for_each(|(entry, log_q)| entry.1 = log_q);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(p: &[f64], truncation: Truncation) -> Vec<u32> {
        let z: Vec<f64> = p.iter().map(|p| p.ln()).collect();
        kept(&z, &truncation).into_iter().map(|(id, _)| id.0).collect()
    }

    #[test]
    fn the_crossing_token_is_kept() {
        let top_p = |top_p| Truncation { top_p, ..Truncation::NONE };
        assert_eq!(ids(&[0.4, 0.3, 0.2, 0.1], top_p(0.8)), [0, 1, 2]);
        assert_eq!(ids(&[0.5, 0.35, 0.10, 0.05], top_p(0.9)), [0, 1, 2]);
        assert_eq!(ids(&[0.5, 0.41, 0.09], top_p(0.9)), [0, 1]);
        assert_eq!(ids(&[0.1, 0.2, 0.3, 0.4], Truncation { top_k: 2, ..Truncation::NONE }), [3, 2]);
        assert_eq!(ids(&[0.5, 0.3, 0.2], Truncation { min_p: 0.5, ..Truncation::NONE }), [0, 1]);
        assert_eq!(ids(&[0.5, 0.3, 0.2], Truncation::NONE), [0, 1, 2]);
    }
}
