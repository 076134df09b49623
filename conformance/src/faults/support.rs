//! Faults of the support: something that can be drawn is missing, or something is in it that cannot.

use super::{
    report::repaired,
    rows::{descending, draw, of_weights, with_log_q},
    sampler::redrawing,
    tampered::reporting,
};
use crate::{check::Fault, mix::keyed};
use lockstep_core::{
    SamplingParams, Support,
    support::{Domain, Reported, Sampled, SupportError},
};

/// Drops the id at which the nucleus is full.
pub const CROSSING_DROPPED: Fault = Fault {
    id: "crossing-dropped",
    does: "leaves the id at which the nucleus crosses top_p out of draw and report",
    break_target: |target| redrawing(target, without_last),
};

/// Reports the drawn token as the only choice.
pub const DRAWN_ALONE: Fault = Fault {
    id: "drawn-alone",
    does: "reports a mask rebuilt around the drawn token: that token alone",
    break_target: |target| reporting(target, |support, _| Ok(Support::singleton(support.sampled().token))),
};

/// Reports full-vocabulary probabilities of the kept ids.
pub const TAIL_CLAIMED: Fault = Fault {
    id: "tail-claimed",
    does: "reports the kept ids without renormalising, as the head of the whole vocabulary",
    break_target: |target| {
        let (vocabulary, mass) = (target.ask.vocabulary, target.ask.truncation.top_p.min(0.95));
        reporting(target, move |support, _| as_head(support, (vocabulary, mass)))
    },
};

/// Reports raw log-probs under top-p.
pub const RAW_LOG_PROBS: Fault = Fault {
    id: "raw-log-probs",
    does: "reports log-probs at temperature 1 over the whole vocabulary, although it draws at another and under top-p",
    break_target: |target| {
        let (vocabulary, mass) = (target.ask.vocabulary, target.ask.truncation.top_p.min(0.95) - 0.05);
        reporting(target, move |support, at| {
            let temperature = at.params().temperature();
            as_head(&with_log_q(support, |_, log_q| log_q * temperature)?, (vocabulary, mass))
        })
    },
};

/// Rebuilds the mask and repairs it.
pub const MASK_REPAIRED: Fault = Fault {
    id: "mask-repaired",
    does: "rebuilds the mask after the draw, too small, and repairs it by adding the drawn token",
    break_target: |target| {
        reporting(target, |support, _| {
            let entries = descending(support);
            let mut mass = 0.0;
            let kept = entries.iter().take_while(|(_, q)| {
                let inside = mass < 0.5;
                mass += q;
                inside
            });
            let kept = entries[..kept.count().clamp(1, entries.len())].to_vec();
            match kept.first() {
                Some(&(token, _)) if support.is_exact() => {
                    repaired(&of_weights(token, &kept)?, support.sampled().token)
                }
                _ => Ok(support.clone()),
            }
        })
    },
};

/// Pads missing log-probs with 0.0.
pub const PADDED_WITH_ZERO: Fault = Fault {
    id: "padded-with-zero",
    does: "fills in the log-probs that are missing, a third of them, with 0.0, which is probability 1",
    break_target: |target| {
        reporting(target, |support, at| {
            let missing = keyed(&at.key()).is_multiple_of(3);
            Ok(if missing { Support::singleton(support.sampled().token) } else { support.clone() })
        })
    },
};

fn without_last(support: &Support, _: &SamplingParams, u: f64) -> Result<Support, SupportError> {
    let entries = descending(support);
    if !support.is_exact() || entries.len() < 2 {
        return Ok(support.clone());
    }
    let kept = &entries[..entries.len() - 1];
    draw(kept, u).map_or_else(|| Ok(support.clone()), |token| of_weights(token, kept))
}

pub(super) fn as_head(support: &Support, (vocabulary, mass): (u32, f64)) -> Result<Support, SupportError> {
    if !support.is_exact() || support.ids().len() >= vocabulary as usize {
        return Ok(support.clone());
    }
    let shifted = |log_q: f64| log_q + mass.ln();
    let Sampled { token, log_q } = support.sampled();
    let reported = Reported {
        ids: support.ids().to_vec(),
        log_q: support.log_q().iter().copied().map(shifted).collect(),
        log_rest: Some((1.0 - mass).ln()),
        domain: Domain::Vocabulary(vocabulary),
    };
    Support::new(Sampled { token, log_q: shifted(log_q) }, reported)
}
