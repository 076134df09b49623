//! A draw by candle's `LogitsProcessor`, and the distribution it was drawn from: the processor itself gives only the id.

use candle_core::{Device, Tensor};
use candle_transformers::generation::{LogitsProcessor, Sampling};
use lockstep_core::{
    SamplingParams, Support, TokenId,
    ports::PortError,
    support::{Domain, Reported, Sampled},
};

/// Entries of an untruncated distribution that are listed.
const LISTED: usize = 128;

/// Draws the token at a place of an answer; the draw depends on the request's seed and on the place alone.
///
/// # Errors
/// What candle says; a support that contradicts itself.
pub(super) fn draw(logits: &[f32], params: &SamplingParams, place: u64) -> Result<Support, PortError> {
    let failed = |error: &dyn std::fmt::Display| PortError::Failed(format!("candle: {error}"));
    let (sampling, min_p) = (sampling(params), params.truncation().min_p as f32);
    let mut processor = LogitsProcessor::from_sampling(seed(params.seed(), place), sampling.clone());
    let mut probabilities = Vec::new();
    let row = Tensor::new(logits, &Device::Cpu).map_err(|error| failed(&error))?;
    let drawn = processor.sample_f(&row, |p| {
        let floor = min_p * p.iter().copied().fold(0.0, f32::max);
        p.iter_mut().filter(|p| **p < floor).for_each(|p| *p = 0.0);
        probabilities = p.to_vec();
    });
    let token = TokenId(drawn.map_err(|error| failed(&error))?);
    let mut ids = kept(&probabilities, &sampling);
    ids.sort_unstable();
    let untruncated = params.truncation().is_none();
    let support = if untruncated { whole(logits, params, token) } else { exact(logits, params, (token, &ids)) };
    support.map_err(|error| failed(&error))
}

/// What candle is asked for.
fn sampling(params: &SamplingParams) -> Sampling {
    let (temperature, cut) = (params.temperature(), params.truncation());
    let (k, p) = (cut.top_k as usize, cut.top_p);
    match (k > 0, p < 1.0) {
        (false, false) => Sampling::All { temperature },
        (true, false) => Sampling::TopK { k, temperature },
        (false, true) => Sampling::TopP { p, temperature },
        (true, true) => Sampling::TopKThenTopP { k, p, temperature },
    }
}

/// The finaliser of SplitMix64 (Steele et al. 2014).
fn seed(seed: u64, place: u64) -> u64 {
    let mut mixed = seed.wrapping_add(place.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// The ids the processor can draw from these probabilities: its own steps, on the same numbers in the same order.
fn kept(probabilities: &[f32], sampling: &Sampling) -> Vec<usize> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    let ids = match *sampling {
        Sampling::TopK { k, .. } => largest(probabilities, &mut order, k).to_vec(),
        Sampling::TopP { p, .. } => nucleus(probabilities, order, p as f32),
        Sampling::TopKThenTopP { k, p, .. } => {
            let ids = largest(probabilities, &mut order, k).to_vec();
            let mass: f32 = ids.iter().map(|&id| probabilities[id]).sum();
            if p as f32 >= mass && k < probabilities.len() { ids } else { nucleus(probabilities, ids, p as f32) }
        }
        _ => order,
    };
    ids.into_iter().filter(|&id| probabilities[id] > 0.0).collect()
}

fn largest<'a>(probabilities: &[f32], order: &'a mut [usize], k: usize) -> &'a [usize] {
    if k >= order.len() {
        return order;
    }
    let (largest, _, _) = order.select_nth_unstable_by(k, |&i, &j| probabilities[j].total_cmp(&probabilities[i]));
    largest
}

fn nucleus(probabilities: &[f32], mut ids: Vec<usize>, p: f32) -> Vec<usize> {
    ids.sort_by(|&i, &j| probabilities[j].total_cmp(&probabilities[i]));
    let mut before = 0.0;
    ids.retain(|&id| {
        let keep = before < p;
        before += if keep { probabilities[id] } else { 0.0 };
        keep
    });
    ids
}

type Built = Result<Support, lockstep_core::support::SupportError>;

fn exact(logits: &[f32], params: &SamplingParams, (token, ids): (TokenId, &[usize])) -> Built {
    let z: Vec<f64> = ids.iter().map(|&id| f64::from(logits[id]) / params.temperature()).collect();
    let log_sum = log_sum_exp(&z);
    let log_q = z.iter().map(|z| (z - log_sum).min(0.0)).collect();
    Support::exact(token, ids.iter().map(|&id| TokenId(id as u32)).collect(), log_q)
}

/// The largest entries, and the rest as one mass.
fn whole(logits: &[f32], params: &SamplingParams, token: TokenId) -> Built {
    let every: Vec<usize> = (0..logits.len()).collect();
    if logits.len() <= LISTED {
        return exact(logits, params, (token, &every));
    }
    let z: Vec<f64> = logits.iter().map(|&z| f64::from(z) / params.temperature()).collect();
    let log_sum = log_sum_exp(&z);
    let mut order = every;
    order.select_nth_unstable_by(LISTED, |&i, &j| z[j].total_cmp(&z[i]));
    let (listed, rest) = order.split_at(LISTED);
    let rest: Vec<f64> = rest.iter().map(|&id| z[id]).collect();
    let mut listed = listed.to_vec();
    listed.sort_unstable();
    let log_q = |id: usize| (z[id] - log_sum).min(0.0);
    let sampled = Sampled { token, log_q: log_q(token.0 as usize) };
    let reported = Reported {
        log_q: listed.iter().map(|&id| log_q(id)).collect(),
        ids: listed.into_iter().map(|id| TokenId(id as u32)).collect(),
        log_rest: Some((log_sum_exp(&rest) - log_sum).min(0.0)),
        domain: Domain::Vocabulary(logits.len() as u32),
    };
    Support::new(sampled, reported)
}

fn log_sum_exp(z: &[f64]) -> f64 {
    let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    max + z.iter().map(|z| (z - max).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_core::sampling::{Limits, Truncation};

    fn params(truncation: Truncation, seed: u64) -> SamplingParams {
        SamplingParams::new(0.8, truncation, Limits { stop: vec![], max_new_tokens: 1 }, seed).unwrap()
    }

    #[test]
    fn what_is_drawn_lies_in_what_is_reported_and_all_of_that_is_drawn() {
        let logits: Vec<f32> = (0..40).map(|id| ((id * 7919) % 31) as f32 / 8.0).collect();
        for (top_k, top_p, min_p) in [(0, 0.9, 0.0), (5, 1.0, 0.0), (8, 0.5, 0.0), (0, 1.0, 0.4), (12, 0.7, 0.2)] {
            let truncation = Truncation { top_k, top_p, min_p };
            let mut drawn = std::collections::BTreeSet::new();
            let mut reported = std::collections::BTreeSet::new();
            for seed in 0..2_000 {
                let support = draw(&logits, &params(truncation, seed), 3).unwrap();
                drawn.insert(support.sampled().token);
                reported.extend(support.ids().iter().copied());
            }
            assert_eq!(drawn, reported, "{truncation:?}");
        }
    }

    #[test]
    fn an_open_distribution_of_many_ids_has_a_rest() {
        let logits: Vec<f32> = (0..1_000).map(|id| (id % 37) as f32 / 9.0).collect();
        let support = draw(&logits, &params(Truncation::NONE, 1), 0).unwrap();
        assert_eq!((support.ids().len(), support.domain()), (LISTED, Domain::Vocabulary(1_000)));
        assert!(support.log_rest().is_some_and(|rest| rest < 0.0));
    }
}
