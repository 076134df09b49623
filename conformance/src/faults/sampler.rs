//! Faults of the draw: tokens that do not come from what is reported.

use super::{
    rows::{descending, draw, of_weights},
    stepwise::{Redraw, Stepwise},
    tampered::asking,
};
use crate::{check::Fault, mix::keyed, target::Target};
use lockstep_core::{
    SamplingParams, Support,
    ports::{PortError, SampleRequest},
    rollout::Request,
    support::SupportError,
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Mass of the nucleus the wide report hides.
const NARROW: f64 = 0.7;

/// Draws from a nucleus, reports a wider one.
pub const WIDE_REPORT: Fault = Fault {
    id: "wide-report",
    does: "draws from the 0.7 nucleus of the distribution it reports",
    break_target: |target| redrawing(target, wide_report),
};

/// Draws the most likely id.
pub const MOST_LIKELY_DRAWN: Fault = Fault {
    id: "most-likely-drawn",
    does: "draws the most likely id whatever the temperature, and reports a distribution, as a speculative path without sampling does",
    break_target: |target| {
        redrawing(target, |support, _, _| match descending(support).first() {
            Some(&(token, _)) if support.is_exact() => of_weights(token, &descending(support)),
            _ => Ok(support.clone()),
        })
    },
};

/// Draws at a lower temperature than it reports.
pub const DRAWN_SHARPER: Fault = Fault {
    id: "drawn-sharper",
    does: "draws from the square of the distribution it reports, as lossy acceptance of drafts does",
    break_target: |target| {
        redrawing(target, |support, _, u| {
            let entries = descending(support);
            let squared: Vec<_> = entries.iter().map(|&(id, q)| (id, q * q)).collect();
            drawn(support, &squared, u)
        })
    },
};

/// Never draws the least likely ids.
pub const TAIL_NEVER_DRAWN: Fault = Fault {
    id: "tail-never-drawn",
    does: "never draws the less likely half of the ids it reports, as a rejection without a residual draw does",
    break_target: |target| {
        redrawing(target, |support, _, u| {
            let entries = descending(support);
            drawn(support, &entries[..entries.len().div_ceil(2)], u)
        })
    },
};

/// Draws without looking at the seed.
pub const SEED_IGNORED: Fault = Fault {
    id: "seed-ignored",
    does: "draws with a seed of its own, another one each time",
    break_target: |target| {
        let count = AtomicU64::new(0);
        asking(target, move |asked| {
            let seed = keyed(&[count.fetch_add(1, Ordering::SeqCst), 0x5eed]);
            let params = &asked.request.params;
            let (temperature, truncation) = (params.temperature(), *params.truncation());
            let params = SamplingParams::new(temperature, truncation, params.limits().clone(), seed)
                .map_err(|error| PortError::Refused(error.to_string()))?;
            let resumed = asked.resumed.clone();
            Ok(SampleRequest { request: Request { params, ..asked.request.clone() }, resumed })
        })
    },
};

/// Reuses one random number.
pub const NOISE_REUSED: Fault = Fault {
    id: "noise-reused",
    does: "draws every token of every answer with the same random number",
    break_target: |target| redrawing(target, |support, _, _| drawn(support, &descending(support), 0.37)),
};

pub(super) fn redrawing(mut target: Target, redraw: Redraw) -> Target {
    target.sampler = target.sampler.map(|inner| Arc::new(Stepwise { inner, redraw, widen: None }) as _);
    target
}

/// The report as it is, its token drawn from other weights.
fn drawn(support: &Support, weights: &[(lockstep_core::TokenId, f64)], u: f64) -> Result<Support, SupportError> {
    match draw(weights, u) {
        Some(token) if support.is_exact() => of_weights(token, &descending(support)),
        _ => Ok(support.clone()),
    }
}

fn wide_report(support: &Support, _: &SamplingParams, u: f64) -> Result<Support, SupportError> {
    let entries = descending(support);
    let mut mass = 0.0;
    let kept = entries.iter().take_while(|(_, q)| {
        let inside = mass < NARROW;
        mass += q;
        inside
    });
    let narrow = kept.count().max(1);
    drawn(support, &entries[..narrow.min(entries.len())], u)
}
