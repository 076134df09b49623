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
const TOP_K: u32 = 3;
/// Ids listed to see which are tied.
const LISTED: u32 = 8;

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
    let listed = question::first(target, &prompts, how(0x7e1, LISTED)).await?;
    let found = question::first(target, &prompts, how(0x7e2, TOP_K)).await?;
    let tied: Vec<(&Support, &Support)> = listed.iter().zip(&found).filter(|(listed, _)| is_tied(listed)).collect();
    if tied.is_empty() {
        return Err(Obstacle::NotApplicable(format!("none of {PROMPTS} prompts has two ids tied at rank {TOP_K}")));
    }
    let wrong = tied.iter().filter(|(listed, found)| !keeps(rule, listed, found)).count();
    let sizes: Vec<String> = tied.iter().take(4).map(|(_, found)| found.ids().len().to_string()).collect();
    let evidence = format!(
        "{} of {PROMPTS} prompts have ids tied at rank {TOP_K}; {wrong} are not kept as {rule:?} says; sizes {}..",
        tied.len(),
        sizes.join(", ")
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

fn is_tied(listed: &Support) -> bool {
    let ranked = ranked(listed);
    let at = TOP_K as usize;
    ranked.len() > at && ranked[at - 1].1 == ranked[at].1
}

fn keeps(rule: TieRule, listed: &Support, found: &Support) -> bool {
    let (ranked, k) = (ranked(listed), TOP_K as usize);
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
