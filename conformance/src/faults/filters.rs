//! Faults of what is asked for: filters and temperatures that are lost, added, or applied elsewhere.

use super::{
    rows::{descending, draw, of_weights, with_log_q},
    stepwise::{Redraw, Stepwise, Widen},
    support::as_head,
    tampered::{asking, asking_and_reporting, reporting, with_params},
};
use crate::{check::Fault, target::Target};
use lockstep_core::{SamplingParams, Support, TokenId, sampling::Truncation, support::SupportError};
use std::sync::Arc;

/// Divides by the temperature after the filters.
pub const TEMPERATURE_LAST: Fault = Fault {
    id: "temperature-last",
    does: "applies top-k, top-p and min-p at temperature 1 and divides by the temperature last, undeclared",
    break_target: |target| refiltering(target, temperature_last, |_| (1.0, Truncation::NONE)),
};

/// Forgets min-p.
pub const MIN_P_IGNORED: Fault = Fault {
    id: "min-p-ignored",
    does: "ignores min_p where top_p is off",
    break_target: |target| {
        asking(target, |asked| {
            with_params(asked, |_, cut, _| cut.min_p = if cut.top_p < 1.0 { cut.min_p } else { 0.0 })
        })
    },
};

/// Forgets top-p.
pub const TOP_P_IGNORED: Fault = Fault {
    id: "top-p-ignored",
    does: "ignores top_p and min_p where top_k is on",
    break_target: |target| {
        asking(target, |asked| {
            with_params(asked, |_, cut, _| {
                if cut.top_k > 0 {
                    *cut = Truncation { top_k: cut.top_k, ..Truncation::NONE };
                }
            })
        })
    },
};

/// Drops tied ids.
pub const TIES_CUT: Fault = Fault {
    id: "ties-cut",
    does: "drops every id that is tied with the k-th",
    break_target: |target| refiltering(target, |support, params, u| tied(support, params, (u, false)), untruncated),
};

/// Keeps tied ids.
pub const TIES_KEPT: Fault = Fault {
    id: "ties-kept",
    does: "keeps every id that is tied with the k-th, undeclared",
    break_target: |target| refiltering(target, |support, params, u| tied(support, params, (u, true)), untruncated),
};

/// Adds the model's top-k.
pub const DEFAULT_TOP_K: Fault = Fault {
    id: "default-top-k",
    does: "takes top_k 20 from the model's generation config where none is asked for",
    break_target: |target| {
        defaulting(target, |vocabulary| Truncation { top_k: 20.min(vocabulary / 2), ..Truncation::NONE })
    },
};

/// Adds the model's top-p.
pub const DEFAULT_TOP_P: Fault = Fault {
    id: "default-top-p",
    does: "takes top_p 0.95 from the model's generation config where none is asked for",
    break_target: |target| defaulting(target, |_| Truncation { top_p: 0.95, ..Truncation::NONE }),
};

/// Adds the engine's min-p.
pub const DEFAULT_MIN_P: Fault = Fault {
    id: "default-min-p",
    does: "takes the engine's default of min_p 0.05 where none is asked for",
    break_target: |target| defaulting(target, |_| Truncation { min_p: 0.05, ..Truncation::NONE }),
};

/// Samples where it should be greedy.
pub const GREEDY_SAMPLED: Fault = Fault {
    id: "greedy-sampled",
    does: "takes top_k 1 for no top_k and samples",
    break_target: |target| {
        asking(target, |asked| with_params(asked, |_, cut, _| cut.top_k = if cut.top_k == 1 { 0 } else { cut.top_k }))
    },
};

/// Reports the raw log-prob of a greedy draw.
pub const GREEDY_RAW_LOG_PROB: Fault = Fault {
    id: "greedy-raw-log-prob",
    does: "reports the log-prob that the greedy token has over the whole vocabulary",
    break_target: |target| {
        let vocabulary = target.ask.vocabulary;
        reporting(target, move |support, at| match at.params().truncation().top_k {
            1 => as_head(support, (vocabulary, 0.6)),
            _ => Ok(support.clone()),
        })
    },
};

/// Takes the second where it should take the first.
pub const GREEDY_SECOND: Fault = Fault {
    id: "greedy-second",
    does: "draws the second most likely id under top_k 1",
    break_target: |target| {
        asking_and_reporting(
            target,
            |asked| with_params(asked, |_, cut, _| cut.top_k = if cut.top_k == 1 { 2 } else { cut.top_k }),
            |support, at| match (at.params().truncation().top_k, descending(support).last()) {
                (1, Some(&(token, _))) => Ok(Support::singleton(token)),
                _ => Ok(support.clone()),
            },
        )
    },
};

/// Reports log-probs at temperature 1.
pub const TEMPERATURE_IGNORED: Fault = Fault {
    id: "temperature-ignored",
    does: "draws at the temperature asked for, reports log-probs at temperature 1",
    break_target: |target| {
        reporting(target, |support, at| {
            let temperature = at.params().temperature();
            with_log_q(support, |_, log_q| log_q * temperature)
        })
    },
};

/// Divides twice.
pub const TEMPERATURE_TWICE: Fault = Fault {
    id: "temperature-twice",
    does: "divides the logits by the temperature twice",
    break_target: |target| asking(target, |asked| with_params(asked, |temperature, _, _| *temperature *= *temperature)),
};

/// Uses the model's temperature.
pub const TEMPERATURE_DEFAULT: Fault = Fault {
    id: "temperature-default",
    does: "draws at the temperature 0.6 of the model's generation config, whatever is asked for",
    break_target: |target| asking(target, |asked| with_params(asked, |temperature, _, _| *temperature = 0.6)),
};

fn refiltering(mut target: Target, redraw: Redraw, widen: Widen) -> Target {
    target.sampler = target.sampler.map(|inner| Arc::new(Stepwise { inner, redraw, widen: Some(widen) }) as _);
    target
}

fn defaulting(target: Target, default: fn(u32) -> Truncation) -> Target {
    let default = default(target.ask.vocabulary);
    asking(target, move |asked| with_params(asked, |_, cut, _| *cut = if cut.is_none() { default } else { *cut }))
}

fn untruncated(params: &SamplingParams) -> (f64, Truncation) {
    (params.temperature(), Truncation::NONE)
}

/// Filters at temperature 1, then the temperature, then the draw.
fn temperature_last(support: &Support, params: &SamplingParams, u: f64) -> Result<Support, SupportError> {
    let mut entries = descending(support);
    let cut = params.truncation();
    if cut.top_k > 0 {
        entries.truncate(cut.top_k as usize);
    }
    let total: f64 = entries.iter().map(|(_, q)| q).sum();
    let mut before = 0.0;
    let kept = entries.iter().take_while(|(_, q)| {
        let keep = before < cut.top_p * total;
        before += q;
        keep
    });
    entries.truncate(kept.count().max(1));
    let floor = entries.first().map_or(0.0, |(_, q)| q * cut.min_p);
    entries.retain(|&(_, q)| q >= floor);
    let tempered: Vec<(TokenId, f64)> =
        entries.iter().map(|&(id, q)| (id, q.powf(1.0 / params.temperature()))).collect();
    draw(&tempered, u).map_or_else(|| Ok(support.clone()), |token| of_weights(token, &tempered))
}

/// Top-k with ties kept or cut.
fn tied(support: &Support, params: &SamplingParams, (u, keep): (f64, bool)) -> Result<Support, SupportError> {
    let (mut entries, k) = (descending(support), params.truncation().top_k as usize);
    if k > 0 && k < entries.len() {
        let (edge, next) = (entries[k - 1].1, entries[k].1);
        let equal = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs();
        let kept: Vec<(TokenId, f64)> = match (equal(edge, next), keep) {
            (true, true) => entries.iter().copied().filter(|&(_, q)| q > edge || equal(edge, q)).collect(),
            (true, false) => entries.iter().copied().filter(|&(_, q)| q > edge && !equal(edge, q)).collect(),
            _ => entries[..k].to_vec(),
        };
        entries = if kept.is_empty() { entries[..1].to_vec() } else { kept };
    }
    draw(&entries, u).map_or_else(|| Ok(support.clone()), |token| of_weights(token, &entries))
}
