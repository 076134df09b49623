//! Rewriting one support.

use crate::tolerance::NumericClass;
use lockstep_core::{Support, TokenId, support::SupportError};

/// Ids with weights, most likely first.
pub(super) fn descending(support: &Support) -> Vec<(TokenId, f64)> {
    let known = support.ids().iter().copied().zip(support.log_q().iter().map(|log_q| log_q.exp()));
    let mut entries: Vec<(TokenId, f64)> = known.collect();
    entries.sort_by(|a, b| b.1.total_cmp(&a.1));
    entries
}

/// The support with these weights, normalised.
pub(super) fn of_weights(token: TokenId, entries: &[(TokenId, f64)]) -> Result<Support, SupportError> {
    let total: f64 = entries.iter().map(|(_, weight)| weight).sum();
    let log_q = entries.iter().map(|(_, weight)| (weight / total).ln().min(0.0)).collect();
    Support::exact(token, entries.iter().map(|&(id, _)| id).collect(), log_q)
}

/// The same ids with log q rewritten, then normalised.
pub(super) fn with_log_q(support: &Support, rewrite: impl Fn(TokenId, f64) -> f64) -> Result<Support, SupportError> {
    if !support.is_exact() || support.ids().len() < 2 {
        return Ok(support.clone());
    }
    let entries = support.ids().iter().zip(support.log_q());
    let weights: Vec<(TokenId, f64)> = entries.map(|(&id, &log_q)| (id, rewrite(id, log_q).exp())).collect();
    of_weights(support.sampled().token, &weights)
}

/// The token at `u` of the cumulated weights.
pub(super) fn draw(entries: &[(TokenId, f64)], u: f64) -> Option<TokenId> {
    let mut left = u * entries.iter().map(|(_, weight)| weight).sum::<f64>();
    let inside = |&&(_, weight): &&(TokenId, f64)| {
        left -= weight;
        left < 0.0
    };
    entries.iter().find(inside).or(entries.last()).map(|&(id, _)| id)
}

/// Spacing of logits one class coarser than the declared one.
pub(super) fn coarser_spacing(declared: NumericClass) -> f64 {
    match declared {
        NumericClass::F32 => 0.125,
        NumericClass::Bf16 => 1.0,
        NumericClass::Fp8Int8 => 4.0,
        NumericClass::Int4 => 16.0,
    }
}
