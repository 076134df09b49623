//! The numeric term: `log p_s - log q` at equal versions, and the number format it is the size of.

use crate::{
    check::{Check, FalseAlarm, Finding},
    difference::{self, Row},
    draw::{self, Shape},
    faults::report as faults,
    figure,
    obstacle::Obstacle,
    target::Target,
    tolerance::NumericClass,
};

const ANSWERS: u32 = 4;

/// `numeric.size`.
pub const SIZE: Check = Check {
    id: "numeric.size",
    demand: "at equal weights the numeric term log p_s - log q is no larger than the number format the pair declares explains",
    cost: |target| draw::cost(&target.ask, ANSWERS, target.ask.max_new_tokens),
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/numeric_size.md"),
    cases: &[
        "AI-Hypercomputer/maxtext#5231",
        "verl-project/verl#7519",
        "NVIDIA/Megatron-LM#7562",
        "vllm-project/vime#64",
    ],
    fault: faults::COARSE_LOGITS,
    extra_faults: &[faults::NOISY_LOGITS],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let shape = Shape { question: 0x51, answers: ANSWERS, max_new_tokens: target.ask.max_new_tokens };
    let scorer = target.scorer()?;
    let batch = draw::taken(target, shape).await?;
    let scored = draw::score(scorer.as_ref(), &batch, draw::version_of(&batch)?).await?;
    let rows: Vec<Row> = difference::rows(&batch, &scored).filter(|row| difference::has_choice(&row.support)).collect();
    if rows.is_empty() {
        return Err(Obstacle::Unclear(format!("none of {} tokens had a choice", batch.tokens())));
    }
    let found = difference::of_sampled(rows.iter());
    let (mean_abs, max_abs) = (found.mean_abs(), found.max_abs);
    let class = NumericClass::of(mean_abs, max_abs);
    let name = class.map_or_else(|| "beyond int4".to_owned(), |class| class.to_string());
    let evidence = format!(
        "{} of {} tokens with a choice: mean {:.1e}, mean abs {mean_abs:.1e}, max abs {max_abs:.1e} at rollout {} \
         token {}: class {name}, declared {}",
        rows.len(),
        batch.tokens(),
        found.mean(),
        found.at.rollout,
        found.at.position,
        target.numeric,
    );
    let mut finding = Finding::of(class.is_some_and(|class| class <= target.numeric), evidence);
    finding.figures.extend(figure::numeric(&rows));
    Ok(finding)
}
