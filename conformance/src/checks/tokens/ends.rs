//! An answer ends where the sampler ended it: at a stop id it drew, or at the limit.

use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::question::{self, How},
    difference::{Difference, Place},
    draw::{self, Shape},
    faults::ends as faults,
    obstacle::Obstacle,
    target::Target,
};
use lockstep_core::{Batch, Rollout, Support, TokenId, delta::FinishReason};
use std::collections::BTreeMap;

const ANSWERS: u32 = 4;
/// Mass of ids that one of two reports of an end may keep alone.
const LONE: f64 = 0.5;

/// `tokens.ends`.
pub const ENDS: Check = Check {
    id: "tokens.ends",
    demand: "ids, log-probs and finish reason agree: an answer ends at the first stop id it drew, or at its limit, and nowhere else",
    cost: |target| {
        let longest = target.ask.max_new_tokens;
        draw::cost(&target.ask, 2 * ANSWERS, longest) + draw::cost(&target.ask, ANSWERS, 1)
    },
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/tokens_ends.md"),
    cases: &["NVIDIA/TensorRT-LLM#18190", "vllm-project/vime#70", "fw-ai/cookbook#483", "sgl-project/sglang#11673"],
    fault: faults::STOP_TRIMMED,
    extra_faults: &[
        faults::SYNTHETIC_EOS,
        faults::RUNS_ON,
        faults::LIMIT_EXCEEDED,
        faults::CUT_EARLY,
        faults::FOREIGN_TEXT,
    ],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    if let Some(batch) = &target.recorded {
        return Ok(of_recorded(batch));
    }
    let shape = |question| Shape { question, answers: ANSWERS, max_new_tokens: target.ask.max_new_tokens };
    let endless = draw::sample(&target.asking(|ask| ask.stop = vec![]), shape(0xe0d)).await?;
    let stop = most_drawn(&endless).into_iter().collect::<Vec<TokenId>>();
    let batch = draw::sample(&target.asking(|ask| ask.stop = stop.clone()), shape(0xe0e)).await?;
    let all: Vec<&Rollout> = endless.rollouts().iter().chain(batch.rollouts()).collect();
    let wrong: Vec<String> = all.iter().filter_map(|answer| wrong_end(answer)).collect();
    let foreign = foreign_ends(target, &batch).await?;
    let stopped = batch.rollouts().iter().filter(|answer| matches!(answer.finish(), FinishReason::Stop(_))).count();
    let evidence = format!(
        "{} answers, {stopped} ended by id {}, {} wrongly; {foreign} of {} last tokens were not drawn from what is drawn from \
         there{}",
        all.len(),
        stop.first().map_or_else(String::new, ToString::to_string),
        wrong.len(),
        batch.rollouts().len(),
        wrong.first().map_or_else(String::new, |first| format!("; {first}")),
    );
    Ok(Finding::of(wrong.is_empty() && foreign == 0, evidence))
}

/// Ends alone: what else could have been drawn there needs the sampler.
fn of_recorded(batch: &Batch) -> Finding {
    let wrong: Vec<String> = batch.rollouts().iter().filter_map(wrong_end).collect();
    let first = wrong.first().map_or_else(String::new, |first| format!("; {first}"));
    let evidence = format!("{} recorded answers, {} end wrongly{first}", batch.rollouts().len(), wrong.len());
    Finding::of(wrong.is_empty(), evidence)
}

/// The id that stands most often after the first token of an answer.
fn most_drawn(batch: &Batch) -> Option<TokenId> {
    let mut counts = BTreeMap::<TokenId, u32>::new();
    let later = batch.rollouts().iter().flat_map(|answer| answer.sampled().skip(1));
    later.for_each(|token| *counts.entry(token).or_default() += 1);
    counts.into_iter().max_by_key(|&(_, count)| count).map(|(token, _)| token)
}

fn wrong_end(answer: &Rollout) -> Option<String> {
    let (id, limits) = (answer.id(), answer.params().limits());
    let tokens: Vec<TokenId> = answer.sampled().collect();
    let (length, limit) = (tokens.len(), limits.max_new_tokens as usize);
    let stop = tokens.iter().position(|token| limits.stop.contains(token));
    match (answer.finish(), stop) {
        _ if length > limit => Some(format!("rollout {id} has {length} tokens of {limit}")),
        (_, Some(at)) if at + 1 < length => Some(format!("rollout {id} runs on after stop id {} at {at}", tokens[at])),
        (FinishReason::Stop(token), None) => {
            Some(format!("rollout {id} was ended by {token}, which is not among its {length} tokens"))
        }
        (FinishReason::StopText, _) => Some(format!("rollout {id} was ended by a stop text, but none was asked for")),
        (FinishReason::Length, _) if length < limit => {
            Some(format!("rollout {id} was ended by its limit of {limit} after {length} tokens"))
        }
        _ => None,
    }
}

/// Last tokens whose report differs from the report of a token drawn after the same ids.
async fn foreign_ends(target: &Target, batch: &Batch) -> Result<usize, Obstacle> {
    let how = How { question: 0xe0f, temperature: target.ask.temperature, truncation: target.ask.truncation };
    let before = |answer: &Rollout| -> Vec<TokenId> {
        answer.prompt().iter().copied().chain(answer.sampled().take(answer.len() - 1)).collect()
    };
    let prefixes: Vec<Vec<TokenId>> = batch.rollouts().iter().map(before).collect();
    let asked = question::first(target, &prefixes, how).await?;
    let foreign = batch.rollouts().iter().zip(&asked).filter(|(answer, asked)| {
        let last: Option<Support> =
            answer.segments().last().map(|segment| segment.behavior.row(segment.behavior.len() - 1));
        last.is_none_or(|last| question::compare((&last, asked), Place::default(), &mut Difference::default()) > LONE)
    });
    Ok(foreign.count())
}
