//! No cache of the old weights answers for the new ones.

use super::moved::{self, Shown};
use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::question,
    difference::Row,
    draw::{self, Shape},
    faults::version as faults,
    obstacle::{AtPort, Obstacle},
    target::Target,
    training,
};

const PROMPTS: u32 = 12;
const LENGTH: u32 = 6;
const ANSWERS: u32 = 4;
/// The change must be this many standard errors of the noise.
const RESOLUTION: f64 = 40.0;
/// How far the first tokens may stand from the new weights, as a share of the way.
const NEAR: f64 = 0.25;

/// `version.cache`.
pub const CACHE: Check = Check {
    id: "version.cache",
    demand: "a prompt that was asked before the update is answered by the new weights from its first token on",
    cost: |_| 2 * u64::from(PROMPTS * ANSWERS),
    false_alarm: FalseAlarm {
        probability: 1e-12,
        why: "the threshold lies ten standard errors of the numeric noise from the new weights",
    },
    explain: include_str!("../../../explain/version_cache.md"),
    cases: &["NVIDIA-NeMo/RL#4018", "InternLM/lmdeploy#4917", "NovaSky-AI/SkyRL#2246", "sgl-project/sglang#27886"],
    fault: faults::STALE_PREFIX,
    extra_faults: &[],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let (trainer, scorer) = (target.trainer()?, target.scorer()?.as_ref());
    target.control()?;
    training::needs_snapshots(target)?;
    let prompts = question::random_prompts(&target.ask, PROMPTS, LENGTH);
    let shape = |question| Shape { question, answers: ANSWERS, max_new_tokens: 1 };
    let probe = draw::answer(target, target.ask.plan(&prompts, shape(0xca))?).await?;
    let old = draw::version_of(&probe)?;
    let new = moved::weights(target, &probe, (old, RESOLUTION), first).await?;
    training::load(target, new).await?;
    let batch = draw::answer(target, target.ask.plan(&prompts, shape(0xcb))?).await?;
    let scores = (draw::score(scorer, &batch, old).await?, draw::score(scorer, &batch, new).await?);
    trainer.retain(&[new]).await.at("trainer")?;
    let shown = Shown::of(&batch, (&scores.0, &scores.1), first);
    let evidence = format!(
        "{} entries of first tokens after the same prompts: log q moved {:.1} % of the way from {old} to {new} (rms {:.1e})",
        shown.change.count,
        100.0 * shown.share,
        shown.change.rms(),
    );
    if shown.change.count == 0 {
        return Err(Obstacle::Unclear(format!("{evidence}: no first token has a choice")));
    }
    Ok(Finding::of((shown.share - 1.0).abs() <= NEAR, evidence))
}

fn first(row: &Row) -> bool {
    row.at.position == 0
}
