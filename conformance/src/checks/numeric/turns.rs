//! A later turn sees every token of the turns before it.

use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::question::{self, LONE},
    difference::{self, Difference, Place, Row},
    draw::{self, Shape},
    faults::turns as faults,
    obstacle::Obstacle,
    target::Target,
};
use lockstep_core::{Batch, Rollout, TokenId};

/// Ids of the turn that follows an answer.
const TURN: u32 = 4;

/// `numeric.turns`.
pub const TURNS: Check = Check {
    id: "numeric.turns",
    demand: "a later turn sees every token of the turns before it, those that were decoded too",
    cost: |target| draw::cost(&target.ask, 1, target.ask.max_new_tokens) + draw::cost(&target.ask, 2, 1),
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/numeric_turns.md"),
    cases: &["NVIDIA-NeMo/RL#4018", "THUDM/slime#2213", "InternLM/lmdeploy#4917"],
    fault: faults::ANSWER_LOST,
    extra_faults: &[faults::LAST_TOKEN_LOST],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let target = question::listing(target);
    let shape = Shape { question: 0x7a, answers: 1, max_new_tokens: target.ask.max_new_tokens };
    let answers = draw::sample(&target, shape).await?;
    let turns = question::random_prompts(&target.ask, answers.rollouts().len() as u32, TURN);
    let followed = |(answer, turn): (&Rollout, &Vec<TokenId>)| -> Vec<TokenId> {
        answer.prompt().iter().copied().chain(answer.sampled()).chain(turn.iter().copied()).collect()
    };
    let prompts: Vec<Vec<TokenId>> = answers.rollouts().iter().zip(&turns).map(followed).collect();
    let ask = |question| target.ask.plan(&prompts, Shape { question, answers: 1, max_new_tokens: 1 });
    let (first, second) = (draw::answer(&target, ask(0x7a1)?).await?, draw::answer(&target, ask(0x7a2)?).await?);
    let (found, lone) = twice(&first, &second)?;
    let mut parts = vec![("asked twice", found)];
    if target.scorer.is_some() {
        parts.push(("against the trainer", scored(&target, &first).await?));
    }
    if parts.iter().any(|(_, found)| found.count == 0) {
        return Err(Obstacle::Unclear(format!("none of {} turns has a token with a choice", prompts.len())));
    }
    Ok(judge(&target, (&parts, lone), &prompts))
}

fn judge(target: &Target, (parts, lone): (&[(&str, Difference)], f64), prompts: &[Vec<TokenId>]) -> Finding {
    let tolerance = target.numeric.tolerance();
    let line = |(name, found): &(&str, Difference)| {
        let position = prompts.get(found.at.rollout).map_or(0, Vec::len);
        let Difference { count, max_abs, at, .. } = *found;
        format!(
            "{name}: {count} entries, mean abs {:.1e}, max abs {max_abs:.1e} in turn {} at position {position}",
            found.mean_abs(),
            at.rollout
        )
    };
    let lines: Vec<String> = parts.iter().map(line).collect();
    let evidence = format!(
        "{} turns of {TURN} ids after decoded answers, {}, mass of ids kept once {lone:.1e} ({} allows {:.0e})",
        prompts.len(),
        lines.join("; "),
        target.numeric,
        tolerance.mean_abs
    );
    let met = |(_, found): &(&str, Difference)| tolerance.holds(found.mean_abs(), found.max_abs);
    Finding::of(parts.iter().all(met) && lone <= LONE, evidence)
}

fn twice(first: &Batch, second: &Batch) -> Result<(Difference, f64), Obstacle> {
    let (mut found, mut lone) = (Difference::default(), 0.0);
    let (first, second) = (question::first_of(first)?, question::first_of(second)?);
    for (rollout, pair) in first.iter().zip(&second).enumerate() {
        lone += question::compare(pair, Place { rollout, position: 0 }, &mut found) / first.len() as f64;
    }
    Ok((found, lone))
}

/// The trainer's log-probs of the same ids against what was reported.
async fn scored(target: &Target, batch: &Batch) -> Result<Difference, Obstacle> {
    let scored = draw::score(target.scorer()?.as_ref(), batch, draw::version_of(batch)?).await?;
    let rows: Vec<Row> = difference::rows(batch, &scored).collect();
    Ok(difference::over_supports(rows.iter()))
}
