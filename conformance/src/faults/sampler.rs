//! Faults of what a sampler draws and reports.

use super::{
    mapped::Mapped,
    rows::{coarser_spacing, descending, draw, of_weights, with_log_q},
    stepwise::{Redraw, Stepwise},
};
use crate::{
    check::Fault,
    mix::{keyed, normal},
    target::Target,
};
use lockstep_core::{
    RolloutId, Support,
    support::{Domain, Reported, Sampled, SupportError},
};
use std::sync::Arc;

/// Mass of the nucleus the wide report hides.
const NARROW: f64 = 0.7;

/// Draws from a nucleus, reports a wider one.
pub const WIDE_REPORT: Fault = Fault {
    id: "wide-report",
    does: "draws from the 0.7 nucleus of the distribution it reports",
    break_target: |target| redrawing(target, wide_report),
};

/// Takes base-10 log-probs for nats.
pub const LOG_BASE_10: Fault = Fault {
    id: "log-base-10",
    does: "takes base-10 log-probs for nats and renormalises them",
    break_target: |target| {
        reporting(target, |support, _| with_log_q(support, |_, log_q| log_q / std::f64::consts::LN_10))
    },
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

/// Drops the id at which the nucleus is full.
pub const CROSSING_DROPPED: Fault = Fault {
    id: "crossing-dropped",
    does: "leaves the id at which the nucleus crosses top_p out of draw and report",
    break_target: |target| redrawing(target, without_last),
};

/// Reports log-probs at temperature 1.
pub const TEMPERATURE_IGNORED: Fault = Fault {
    id: "temperature-ignored",
    does: "draws at the temperature asked for, reports log-probs at temperature 1",
    break_target: |target| {
        let temperature = target.ask.temperature;
        reporting(target, move |support, _| with_log_q(support, |_, log_q| log_q * temperature))
    },
};

/// Reports the drawn token as the only choice.
pub const DRAWN_ALONE: Fault = Fault {
    id: "drawn-alone",
    does: "reports a mask rebuilt around the drawn token: that token alone",
    break_target: |target| reporting(target, |support, _| Ok(Support::singleton(support.sampled().token))),
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
    break_target: |target| {
        let (sd, seed) = (coarser_spacing(target.numeric) / 2.0, target.ask.seed);
        let noise = move |(id, row): (RolloutId, u64), token: u32| {
            sd * normal(&[keyed(&[seed, id.plan, u64::from(id.index)]), row, u64::from(token)])
        };
        reporting(target, move |support, at| with_log_q(support, |token, log_q| log_q + noise(at, token.0)))
    },
};

fn redrawing(mut target: Target, redraw: Redraw) -> Target {
    target.sampler = target.sampler.map(|inner| Arc::new(Stepwise { inner, redraw }) as _);
    target
}

fn reporting(
    mut target: Target,
    rewrite: impl Fn(&Support, (RolloutId, u64)) -> Result<Support, SupportError> + Send + Sync + 'static,
) -> Target {
    target.sampler = target.sampler.map(|inner| Mapped::supports(inner, rewrite));
    target
}

fn wide_report(support: &Support, u: f64) -> Result<Support, SupportError> {
    let entries = descending(support);
    let mut mass = 0.0;
    let kept = entries.iter().take_while(|(_, q)| {
        let inside = mass < NARROW;
        mass += q;
        inside
    });
    let narrow = kept.count().max(1);
    match draw(&entries[..narrow.min(entries.len())], u) {
        Some(token) if support.is_exact() => of_weights(token, &entries),
        _ => Ok(support.clone()),
    }
}

fn without_last(support: &Support, u: f64) -> Result<Support, SupportError> {
    let entries = descending(support);
    if !support.is_exact() || entries.len() < 2 {
        return Ok(support.clone());
    }
    let kept = &entries[..entries.len() - 1];
    draw(kept, u).map_or_else(|| Ok(support.clone()), |token| of_weights(token, kept))
}

fn as_head(support: &Support, (vocabulary, mass): (u32, f64)) -> Result<Support, SupportError> {
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
