//! One position: its domain, the logits over it, and their log-probs.

use super::{Asked, ROWS, Side};
use crate::fused::{dot, with_floats};
use crate::train_error::{TrainError, TrainResult};
use lockstep_core::score::RowLogProbs;
use lockstep_core::support::{Domain, Support};
use lockstep_core::token::TokenId;
use lockstep_kernels::rows::log_sum_exp;
use rayon::prelude::*;

/// How the domain of q is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The token was the only choice: log p is 0, the gradient exactly 0.
    Only,
    /// The listed ids.
    Listed,
    /// Every row of the head.
    Whole,
}

impl Asked {
    pub(super) fn kind(&self) -> Kind {
        match self.support.domain() {
            Domain::Vocabulary(_) => Kind::Whole,
            Domain::Listed if self.support.is_exact() && self.support.ids().len() == 1 => Kind::Only,
            Domain::Listed => Kind::Listed,
        }
    }

    /// Indices into the domain: of the known entries, and of the drawn token.
    pub(super) fn places(&self) -> (Vec<usize>, usize) {
        let (ids, token) = (self.support.ids(), self.support.sampled().token);
        match self.kind() {
            Kind::Whole => (ids.iter().map(|id| id.0 as usize).collect(), token.0 as usize),
            _ => ((0..self.support.known()).collect(), place_of(ids, token)),
        }
    }
}

/// Where a token stands among the kept ids; a support holds its drawn token.
fn place_of(ids: &[TokenId], token: TokenId) -> usize {
    ids.iter().position(|&id| id == token).unwrap_or_default()
}

/// Every id is a row of the head, every vocabulary is the head's.
pub(super) fn check(asked: &[Asked], vocab: usize) -> TrainResult<()> {
    for Asked { place, support, .. } in asked {
        let place = *place;
        if let Domain::Vocabulary(found) = support.domain()
            && found as usize != vocab
        {
            return Err(TrainError::OtherVocabulary { place, found, vocab });
        }
        let all = support.ids().iter().copied().chain([support.sampled().token]);
        if let Some(token) = all.into_iter().find(|id| id.0 as usize >= vocab) {
            return Err(TrainError::OutsideHead { place, token, vocab });
        }
    }
    Ok(())
}

/// The positions over the whole vocabulary, in order.
pub(super) fn whole(asked: &[Asked]) -> Vec<usize> {
    (0..asked.len()).filter(|&index| asked[index].kind() == Kind::Whole).collect()
}

/// Logits of the listed ids of every `wanted` position, in the order of its ids; nothing for the others. A token without
/// alternative costs no product: any logit gives it log p 0.
pub(super) fn listed_logits(
    side: &Side,
    asked: &[Asked],
    wanted: impl Fn(&Asked) -> bool + Sync,
) -> TrainResult<Vec<Vec<f32>>> {
    let width = side.hidden.dim(1)?;
    let logits = with_floats([&side.hidden, &side.head], |[hidden, head]| {
        let row = |asked: &Asked| match asked.kind() {
            _ if !wanted(asked) => Vec::new(),
            Kind::Only => vec![0.0],
            _ => {
                let hidden = &hidden[asked.row * width..(asked.row + 1) * width];
                let logit = |id: &TokenId| dot(hidden, &head[id.0 as usize * width..(id.0 as usize + 1) * width]);
                asked.support.ids().iter().map(logit).collect()
            }
        };
        Ok(asked.par_iter().with_min_len(ROWS).map(row).collect())
    })?;
    Ok(logits)
}

/// Logits of the listed ids under each position's own sampler's side, where it has one.
pub(super) fn sampler_logits(sides: &[Side], asked: &[Asked]) -> TrainResult<Vec<Vec<f32>>> {
    let mut all = vec![Vec::new(); asked.len()];
    for (at, side) in sides.iter().enumerate() {
        let needed = |asked: &Asked| asked.sampler == Some(at) && asked.kind() == Kind::Listed;
        if !asked.iter().any(needed) {
            continue;
        }
        for (all, logits) in all.iter_mut().zip(listed_logits(side, asked, needed)?) {
            if !logits.is_empty() {
                *all = logits;
            }
        }
    }
    Ok(all)
}

/// log p over the domain, from its logits; f64 sums.
pub(super) fn log_softmax(asked: &Asked, logits: &[f32]) -> TrainResult<Vec<f64>> {
    let inverse = 1.0 / asked.temperature;
    let total = log_sum_exp(logits, inverse).map_err(|source| TrainError::Logits { place: asked.place, source })?;
    Ok(logits.iter().map(|x| f64::from(*x) * inverse - total).collect())
}

/// The log-probs a scorer reports for a position, from those of its domain. The mass of the entries q does not know is
/// summed over those entries themselves: `1 - sum` has no digits where the rest is small.
pub(super) fn row_log_probs(support: &Support, log_p: &[f64]) -> RowLogProbs {
    let (ids, token) = (support.ids(), support.sampled().token);
    let unknown = |rest: f64| support.log_rest().map(|_| rest.min(0.0));
    let row = match support.domain() {
        Domain::Vocabulary(_) => {
            let mut listed = vec![false; log_p.len()];
            ids.iter().for_each(|id| listed[id.0 as usize] = true);
            let rest = log_p.iter().zip(&listed).filter(|(_, listed)| !**listed).map(|(log_p, _)| *log_p);
            RowLogProbs {
                log_p: ids.iter().map(|id| log_p[id.0 as usize]).collect(),
                log_p_sampled: log_p[token.0 as usize],
                log_rest: unknown(log_mass(rest)),
            }
        }
        Domain::Listed => RowLogProbs {
            log_p: log_p[..support.known()].to_vec(),
            log_p_sampled: log_p[place_of(ids, token)],
            log_rest: unknown(log_mass(log_p[support.known()..].iter().copied())),
        },
    };
    row.rounded()
}

/// `ln sum exp`; negative infinity of nothing.
fn log_mass(log_p: impl Iterator<Item = f64> + Clone) -> f64 {
    let max = log_p.clone().fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY { max } else { max + log_p.map(|x| (x - max).exp()).sum::<f64>().ln() }
}
