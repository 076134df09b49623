//! Equally likely ids at the edge of top-k.

use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::question::{self, How},
    faults::filters as faults,
    obstacle::Obstacle,
    target::Target,
};
use lockstep_core::{Support, TokenId, profile::TieRule};

const PROMPTS: u32 = 32;
const LENGTH: u32 = 6;
/// Ids listed to see which are tied, at most.
const LISTED: u32 = 64;

/// `distribution.ties`.
pub const TIES: Check = Check {
    id: "distribution.ties",
    demand: "ids tied at the edge of top-k are kept or cut as the engine declares",
    cost: |_| 2 * u64::from(PROMPTS),
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/distribution_ties.md"),
    cases: &["sgl-project/sglang#36630", "sgl-project/sglang#27408"],
    fault: faults::TIES_CUT,
    extra_faults: &[faults::TIES_KEPT],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let rule = target.sampler()?.capabilities().profile.ties;
    let prompts = question::random_prompts(&target.ask, PROMPTS, LENGTH);
    let how = |question, top_k| How::top_k(question, target.ask.temperature, top_k);
    // Asking for every id cuts no tie; a large vocabulary is not listed whole.
    let whole = target.ask.vocabulary <= LISTED;
    let listed = question::first(target, &prompts, how(0x7e1, if whole { 0 } else { LISTED })).await?;
    let (mut tied, mut wrong, mut shown) = (0, 0, Vec::new());
    for (at, (prompt, listed)) in prompts.iter().zip(&listed).enumerate() {
        let ranked = ranked(listed);
        let Some(k) = tie(&ranked, whole) else { continue };
        let found = question::first(target, std::slice::from_ref(prompt), how(0x7e20 + at as u64, k as u32)).await?;
        let kept = found.first().is_some_and(|found| keeps(rule, (&ranked, k), found));
        (tied, wrong) = (tied + 1, wrong + usize::from(!kept));
        shown.extend(found.first().map(|found| format!("{} of top_k {k}", found.ids().len())));
    }
    if tied == 0 {
        let reason = format!("none of {PROMPTS} prompts has two ids tied among its {LISTED} most likely");
        return Err(Obstacle::NotApplicable(reason));
    }
    shown.truncate(4);
    let evidence = format!(
        "{tied} of {PROMPTS} prompts have ids tied at a rank; {wrong} are not kept as {rule:?} says; sizes {}..",
        shown.join(", ")
    );
    Ok(Finding::of(wrong == 0, evidence))
}

/// Ids with log q, most likely first, the lower id first among equals.
fn ranked(support: &Support) -> Vec<(TokenId, f64)> {
    let known = support.ids().iter().copied().zip(support.log_q().iter().copied());
    let mut entries: Vec<(TokenId, f64)> = known.collect();
    entries.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    entries
}

/// The first rank, from 2, whose id is as likely as the next; of a list that is cut not the last ones, whose equals may be
/// missing.
fn tie(ranked: &[(TokenId, f64)], whole: bool) -> Option<usize> {
    let known = |k: usize| whole || ranked[k].1 > ranked[ranked.len() - 1].1;
    (2..ranked.len()).find(|&k| ranked[k - 1].1 == ranked[k].1 && known(k))
}

fn keeps(rule: TieRule, (ranked, k): (&[(TokenId, f64)], usize), found: &Support) -> bool {
    let mut ids = found.ids().to_vec();
    ids.sort_unstable();
    let expected = |count: usize| {
        let mut ids: Vec<TokenId> = ranked[..count].iter().map(|&(id, _)| id).collect();
        ids.sort_unstable();
        ids
    };
    match rule {
        TieRule::LowerId => ids == expected(k),
        TieRule::Unspecified => ids.len() == k,
        TieRule::KeepAll => {
            let edge = ranked[k - 1].1;
            ids == expected(ranked.iter().filter(|&&(_, log_q)| log_q >= edge).count())
        }
    }
}
