//! No id without a token.

use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::question,
    draw::{self, Shape},
    faults::tokens as faults,
    obstacle::Obstacle,
    target::Target,
};
use lockstep_core::{Batch, TokenId};

const PROMPTS: u32 = 12;
const LENGTH: u32 = 6;
const TOKENS: u32 = 4;

/// `tokens.vocabulary`.
pub const VOCABULARY: Check = Check {
    id: "tokens.vocabulary",
    demand: "every id that is kept or drawn has a token: none comes from the padding of the vocabulary",
    cost: |_| u64::from(PROMPTS) * u64::from(TOKENS),
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/tokens_vocabulary.md"),
    cases: &["sgl-project/sglang#38279", "ai-dynamo/dynamo#8630"],
    fault: faults::PADDED_ID,
    extra_faults: &[],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let defined = target.ask.defined();
    let batch = match &target.recorded {
        Some(recorded) => (**recorded).clone(),
        None => asked(target, defined).await?,
    };
    let segments = batch.rollouts().iter().flat_map(|answer| answer.segments());
    let supports: Vec<_> = segments.flat_map(|segment| segment.behavior.rows()).collect();
    let beyond = |support: &&lockstep_core::Support| support.ids().iter().any(|id| id.0 >= defined);
    let (wrong, largest) = (
        supports.iter().filter(beyond).count(),
        supports.iter().flat_map(|support| support.ids()).map(|id| id.0).max().unwrap_or(0),
    );
    let evidence =
        format!("{wrong} of {} supports keep an id of {defined} or above; the largest is {largest}", supports.len());
    Ok(Finding::of(wrong == 0, evidence))
}

async fn asked(target: &Target, defined: u32) -> Result<Batch, Obstacle> {
    let mut prompts = question::random_prompts(&target.ask, PROMPTS, LENGTH);
    prompts.iter_mut().for_each(|prompt| prompt[0] = TokenId(defined.saturating_sub(1)));
    let plan = target.ask.plan(&prompts, Shape { question: 0x70c, answers: 1, max_new_tokens: TOKENS })?;
    draw::answer(target, plan).await
}
