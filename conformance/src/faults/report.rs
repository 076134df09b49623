//! Faults of log-probs: a report of something else than what was drawn from.

use super::{
    rows::{coarser_spacing, descending, of_weights, with_log_q},
    tampered::{At, reporting},
};
use crate::{
    check::Fault,
    mix::{keyed, normal},
    target::Target,
    tolerance::NumericClass,
};
use lockstep_core::{RolloutId, Support, TokenId, WeightVersion};
use std::{
    collections::BTreeMap,
    sync::{Mutex, OnceLock, PoisonError},
};

/// Takes base-10 log-probs for nats.
pub const LOG_BASE_10: Fault = Fault {
    id: "log-base-10",
    does: "takes base-10 log-probs for nats and renormalises them",
    break_target: |target| {
        reporting(target, |support, _| with_log_q(support, |_, log_q| log_q / std::f64::consts::LN_10))
    },
};

/// Reports the distribution of the token before.
pub const OFF_BY_ONE: Fault = Fault {
    id: "off-by-one",
    does: "reports for each token the distribution of the one before it, repaired with the drawn token",
    break_target: |target| {
        let before = Mutex::new(BTreeMap::<RolloutId, Support>::new());
        reporting(target, move |support, at| {
            let mut before = before.lock().unwrap_or_else(PoisonError::into_inner);
            let earlier = before.insert(at.call.request.request.id, support.clone()).filter(|_| at.row > 0);
            match earlier {
                Some(earlier) if earlier.is_exact() && support.is_exact() => {
                    repaired(&earlier, support.sampled().token)
                }
                _ => Ok(support.clone()),
            }
        })
    },
};

/// Rounds log-probs.
pub const COARSE_LOG_PROBS: Fault = Fault {
    id: "coarse-log-probs",
    does: "rounds log-probs to a number format coarser than the pair declares: bf16 where it says f32",
    break_target: |target| {
        let bits = if target.numeric == NumericClass::F32 { 7 } else { 1 };
        reporting(target, move |support, _| with_log_q(support, |_, log_q| rounded(log_q, bits)))
    },
};

/// Makes ids of the prompt less likely.
pub const REPETITION_PENALTY: Fault = Fault {
    id: "repetition-penalty",
    does: "penalises ids that stand in the prompt, as a model's own generation config tells an engine to",
    break_target: |target| {
        let penalty = if target.numeric == NumericClass::F32 { 0.3 } else { 3.0 };
        reporting(target, move |support, at| {
            let prompt = &at.call.request.request.prompt;
            with_log_q(support, |id, log_q| if prompt.contains(&id) { log_q - penalty } else { log_q })
        })
    },
};

/// Gives log-probs to the wrong ids.
pub const SHUFFLED: Fault = Fault {
    id: "shuffled",
    does: "lists ids by number and log-probs by size, so that they do not belong to each other",
    break_target: |target| {
        reporting(target, |support, _| {
            let entries = descending(support);
            let mut ids: Vec<TokenId> = entries.iter().map(|&(id, _)| id).collect();
            ids.sort_unstable_by(|a, b| b.cmp(a));
            let weights: Vec<(TokenId, f64)> = ids.into_iter().zip(entries.iter().map(|&(_, q)| q)).collect();
            if support.is_exact() { of_weights(support.sampled().token, &weights) } else { Ok(support.clone()) }
        })
    },
};

/// Rounds logits to a coarser format than declared.
pub const COARSE_LOGITS: Fault = Fault {
    id: "coarse-logits",
    does: "reports log-probs of logits rounded one number format coarser than the pair declares",
    break_target: |target| {
        let spacing = coarser_spacing(target.numeric);
        let round = move |log_q: f64| ((log_q + 20.0) / spacing).round() * spacing;
        reporting(target, move |support, _| with_log_q(support, |_, log_q| round(log_q)))
    },
};

/// Adds noise to logits.
pub const NOISY_LOGITS: Fault = Fault {
    id: "noisy-logits",
    does: "reports log-probs of logits with the noise of weights one number format coarser than the pair declares",
    break_target: |target| noisy(target, |_| 1.0),
};

/// Reports a sharper distribution.
pub const SHARPENED_REPORT: Fault = Fault {
    id: "sharpened-report",
    does: "reports a distribution a little sharper than the one it draws from, within the size the number format allows",
    break_target: |target| {
        let factor = if target.numeric <= NumericClass::Bf16 { 1.06 } else { 1.6 };
        reporting(target, move |support, _| with_log_q(support, |_, log_q| factor * log_q))
    },
};

/// Overstates the drawn token.
pub const DRAWN_OVERSTATED: Fault = Fault {
    id: "drawn-overstated",
    does: "overstates the log-prob of whatever token was drawn",
    break_target: |target| {
        reporting(target, |support, _| {
            let token = support.sampled().token;
            with_log_q(support, |id, log_q| if id == token { log_q + 1.5 } else { log_q })
        })
    },
};

/// Gets one token in eleven wrong.
pub const OUTLIER: Fault = Fault {
    id: "outlier",
    does: "reports one token in eleven as far less likely than it was, as a kernel with a race does",
    break_target: |target| understating(target, |at| keyed(&at.key()).is_multiple_of(11)),
};

/// Gets the last token of each block wrong.
pub const BLOCK_EDGE: Fault = Fault {
    id: "block-edge",
    does: "reports every fourth token as far less likely than it was, as a cache with a wrong block edge does",
    break_target: |target| understating(target, |at| at.row % 4 == 3),
};

/// Noise that grows with the position.
pub const COARSE_ROTARY: Fault = Fault {
    id: "coarse-rotary",
    does: "adds noise to log-probs that grows with the position, as rotary tables in half precision do",
    break_target: |target| noisy(target, |at| at.row as f64 / 24.0),
};

/// Noise from some position on.
pub const LATE_NOISE: Fault = Fault {
    id: "late-noise",
    does: "adds noise to log-probs from the 24th token on",
    break_target: |target| noisy(target, |at| if at.row < 24 { 0.0 } else { 1.0 }),
};

/// Noise where a request has company.
pub const BATCH_DEPENDENT: Fault = Fault {
    id: "batch-dependent",
    does: "adds noise to log-probs where four requests or more are answered at once",
    break_target: |target| noisy(target, |at| if at.call.beside < 4 { 0.0 } else { 1.0 }),
};

/// Noise that grows with every update.
pub const WORSE_EACH_UPDATE: Fault = Fault {
    id: "worse-each-update",
    does: "adds noise to log-probs that grows with every version it is given, as scales that are not calibrated again do",
    break_target: |target| {
        let first = OnceLock::<u64>::new();
        noisy(target, move |at| {
            let step = at.version.map_or(0, |WeightVersion { step, .. }| step);
            step.saturating_sub(*first.get_or_init(|| step)) as f64
        })
    },
};

/// The target with noise on its logits; `size` is in units of one number format coarser than declared.
pub(super) fn noisy(target: Target, size: impl Fn(At<'_>) -> f64 + Send + Sync + 'static) -> Target {
    let (sd, seed) = (coarser_spacing(target.numeric) / 2.0, target.ask.seed);
    reporting(target, move |support, at| {
        let (sd, key) = (sd * size(at), keyed(&[&[seed, at.call.before][..], &at.key()].concat()));
        with_log_q(support, |token, log_q| log_q + sd * normal(&[key, u64::from(token.0)]))
    })
}

fn understating(target: Target, rows: impl Fn(At<'_>) -> bool + Send + Sync + 'static) -> Target {
    reporting(target, move |support, at| {
        let token = support.sampled().token;
        let shift = if rows(at) { 6.0 } else { 0.0 };
        with_log_q(support, |id, log_q| if id == token { log_q - shift } else { log_q })
    })
}

/// A support with a token added that it lacks.
pub(super) fn repaired(support: &Support, token: TokenId) -> Result<Support, lockstep_core::support::SupportError> {
    let mut entries = descending(support);
    if !entries.iter().any(|&(id, _)| id == token) {
        let least = entries.last().map_or(1.0, |&(_, q)| q);
        entries.push((token, least));
    }
    of_weights(token, &entries)
}

/// A number with this many bits after its first one.
fn rounded(x: f64, bits: i32) -> f64 {
    if x == 0.0 {
        return x;
    }
    let spacing = (x.abs().log2().floor() - f64::from(bits)).exp2();
    (x / spacing).round() * spacing
}
