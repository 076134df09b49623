//! No filter that nobody asked for.

use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::question::{self, How},
    faults::filters as faults,
    obstacle::Obstacle,
    target::Target,
};
use lockstep_core::{Support, sampling::Truncation, support::Domain};

const PROMPTS: u32 = 8;
const LENGTH: u32 = 6;

/// `distribution.defaults`.
pub const DEFAULTS: Check = Check {
    id: "distribution.defaults",
    demand: "with every filter off q lives on the whole vocabulary: no default of the engine or of the model leaks in",
    cost: |_| u64::from(PROMPTS),
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/distribution_defaults.md"),
    cases: &["NVIDIA-NeMo/RL#3497", "modelscope/ms-swift#8442", "vllm-project/vime#69", "verl-project/verl#6240"],
    fault: faults::DEFAULT_TOP_K,
    extra_faults: &[faults::DEFAULT_TOP_P, faults::DEFAULT_MIN_P],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let vocabulary = target.sampler()?.capabilities().vocabulary;
    let prompts = question::random_prompts(&target.ask, PROMPTS, LENGTH);
    let how = How { question: 0xdef, temperature: target.ask.temperature, truncation: Truncation::NONE };
    let found = question::refusable(question::first(target, &prompts, how).await, "an untruncated distribution")?;
    let whole = |support: &&Support| {
        support.domain() != Domain::Listed || support.ids().len() as u32 >= target.ask.defined().min(vocabulary)
    };
    let cut: Vec<&Support> = found.iter().filter(|support| !whole(support)).collect();
    let fewest = cut.iter().map(|support| support.ids().len()).min().unwrap_or(0);
    let evidence = format!(
        "{} of {PROMPTS} untruncated requests were answered with a kept set{}, of a vocabulary of {vocabulary}",
        cut.len(),
        if cut.is_empty() { String::new() } else { format!(" of {fewest} ids or more") },
    );
    Ok(Finding::of(cut.is_empty(), evidence))
}
