//! A prefix is the same prefix, token by token or at once.

use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::question::{self, How, LONE},
    difference::{Difference, Place},
    draw::{self, Shape},
    faults::prefill as faults,
    obstacle::{AtPort, Obstacle},
    target::Target,
};
use futures_util::TryStreamExt;
use lockstep_core::{Batch, Delta, Rollout, Support, TokenId, ports::SampleRequest};

/// `numeric.prefill`.
pub const PREFILL: Check = Check {
    id: "numeric.prefill",
    demand: "a position has one distribution, whether its prefix was decoded, given as a prompt, or resumed from",
    cost: |target| draw::cost(&target.ask, 1, target.ask.max_new_tokens) + draw::cost(&target.ask, 2, 1),
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/numeric_prefill.md"),
    cases: &["NVIDIA-NeMo/RL#4018", "verl-project/verl#6280", "THUDM/slime#2213"],
    fault: faults::DECODED_LOST,
    extra_faults: &[faults::DECODE_COARSE, faults::PREFILL_COARSE],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let target = question::listing(target);
    let shape = Shape { question: 0x9f, answers: 1, max_new_tokens: target.ask.max_new_tokens };
    let batch = draw::sample(&target, shape).await?;
    let at = (target.ask.max_new_tokens as usize).saturating_sub(1);
    let decoded = supports(&batch, at)?;
    let how = How { question: 0x9f1, temperature: target.ask.temperature, truncation: target.ask.truncation };
    let prompted = question::first(&target, &prefixes(&batch, at), how).await?;
    let mut parts = vec![("given as a prompt", compare(&decoded, &prompted, at))];
    if target.sampler()?.capabilities().resumes {
        parts.push(("resumed from", compare(&decoded, &resumed(&target, &batch, at).await?, at)));
    }
    let tolerance = target.numeric.tolerance();
    let line = |(name, (found, lone)): &(&str, (Difference, f64))| {
        format!(
            "{name}: {} entries, mean abs {:.1e}, max abs {:.1e}, mass of ids kept once {lone:.1e}",
            found.count,
            found.mean_abs(),
            found.max_abs
        )
    };
    let lines: Vec<String> = parts.iter().map(line).collect();
    let evidence = format!("token {at} of each answer, against decoding: {}", lines.join("; "));
    let met = |(_, (found, lone)): &(&str, (Difference, f64))| {
        tolerance.holds(found.mean_abs(), found.max_abs) && *lone <= LONE
    };
    Ok(Finding::of(parts.iter().all(met), evidence))
}

fn prefixes(batch: &Batch, at: usize) -> Vec<Vec<TokenId>> {
    let prefix = |answer: &Rollout| answer.prompt().iter().copied().chain(answer.sampled().take(at)).collect();
    batch.rollouts().iter().map(prefix).collect()
}

fn supports(batch: &Batch, at: usize) -> Result<Vec<Support>, Obstacle> {
    let row = |answer: &Rollout| {
        let found = answer.segments().iter().flat_map(|segment| segment.behavior.rows()).nth(at);
        found.ok_or_else(|| Obstacle::Unclear(format!("rollout {} has no token {at}", answer.id())))
    };
    batch.rollouts().iter().map(row).collect()
}

/// The token after the first ones of each answer, drawn anew.
async fn resumed(target: &Target, batch: &Batch, at: usize) -> Result<Vec<Support>, Obstacle> {
    let request = |answer: &Rollout| SampleRequest {
        request: answer.request().clone(),
        resumed: answer.sampled().take(at).collect(),
    };
    let requests: Vec<SampleRequest> = batch.rollouts().iter().map(request).collect();
    let stream = target.sampler()?.generate(requests).await.at("sampler")?;
    let deltas: Vec<Delta> = stream.try_collect().await.at("sampler")?;
    let first = |answer: &Rollout| {
        let own = deltas.iter().find(|delta| delta.rollout == answer.id() && !delta.behavior.is_empty());
        let missing = || Obstacle::Unclear(format!("rollout {} was not resumed", answer.id()));
        own.map(|delta| delta.behavior.row(0)).ok_or_else(missing)
    };
    batch.rollouts().iter().map(first).collect()
}

fn compare(decoded: &[Support], others: &[Support], position: usize) -> (Difference, f64) {
    let (mut found, mut lone) = (Difference::default(), 0.0);
    for (rollout, pair) in decoded.iter().zip(others).enumerate() {
        lone += question::compare(pair, Place { rollout, position }, &mut found) / decoded.len() as f64;
    }
    (found, lone)
}
