//! The numeric term does not grow from update to update.

use super::rows;
use crate::{
    check::{Check, FalseAlarm, Finding},
    difference,
    draw::{self, Shape},
    faults::report as faults,
    figure::Figure,
    obstacle::{AtPort, Obstacle},
    target::Target,
    training,
};
use lockstep_core::{dlc::Rule, score::select};

const LOADED: u32 = 3;
const ANSWERS: u32 = 2;
/// Growth over the updates that is no accident.
const GROWTH: f64 = 3.0;

/// `numeric.updates`.
pub const UPDATES: Check = Check {
    id: "numeric.updates",
    demand: "the numeric term does not grow as updates are loaded into the sampler",
    cost: |target| draw::cost(&target.ask, ANSWERS * (LOADED + 1), target.ask.max_new_tokens),
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/numeric_updates.md"),
    cases: &["vllm-project/vime#64", "verl-project/verl#7519", "NVIDIA-NeMo/RL#4018"],
    fault: faults::WORSE_EACH_UPDATE,
    extra_faults: &[],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let (trainer, scorer) = (target.trainer()?, target.scorer()?.as_ref());
    target.control()?;
    training::needs_snapshots(target)?;
    let mut version = training::synchronise(target).await?;
    let mut sizes = Vec::new();
    for update in 0..=LOADED {
        let shape =
            Shape { question: 0x0bd0 + u64::from(update), answers: ANSWERS, max_new_tokens: target.ask.max_new_tokens };
        let (batch, rows) = rows(target, shape).await?;
        sizes.push(difference::over_supports(rows.iter()).mean_abs());
        if update < LOADED {
            let scored = draw::score(scorer, &batch, draw::version_of(&batch)?).await?;
            let log_s = select(&batch, std::slice::from_ref(&scored))?;
            version = training::step(target, &batch, &log_s, Rule::dlc()).await?.after;
            training::load(target, version).await?;
        }
    }
    trainer.retain(&[version]).await.at("trainer")?;
    let (first, last) = (sizes[0], sizes[sizes.len() - 1]);
    let floor = target.numeric.tolerance().mean_abs / 20.0;
    let listed: Vec<String> = sizes.iter().map(|size| format!("{size:.1e}")).collect();
    let evidence = format!(
        "mean abs over {LOADED} updates: {} (red above {GROWTH:.0} times the first and {floor:.0e})",
        listed.join(", ")
    );
    let points = (0..).map(f64::from).zip(sizes.iter().copied()).take(sizes.len()).collect();
    let (x, y) = ("updates loaded".to_owned(), "mean abs, nats".to_owned());
    let figure = Figure::Points { title: "size of the numeric term by update".into(), x, y, points };
    Ok(Finding::of(last <= floor.max(GROWTH * first), evidence).with(figure))
}
