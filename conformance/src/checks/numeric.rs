//! The numeric term: `log p_s - log q` at equal versions, and the number format it is the size of.

use crate::{
    check::{Check, FalseAlarm, Fault, Verdict},
    difference::{self, Row},
    draw::{self, Shape},
    faults::sampler as faults,
    obstacle::Obstacle,
    target::Target,
    tolerance::NumericClass,
};
use async_trait::async_trait;

/// `numeric.size`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Size;

const ANSWERS: u32 = 4;

#[async_trait]
impl Check for Size {
    fn id(&self) -> &'static str {
        "numeric.size"
    }

    fn demand(&self) -> &'static str {
        "at equal weights the numeric term log p_s - log q is no larger than the number format the pair declares explains"
    }

    fn cost(&self, target: &Target) -> u64 {
        draw::cost(&target.ask, ANSWERS, target.ask.max_new_tokens)
    }

    fn false_alarm(&self) -> FalseAlarm {
        FalseAlarm { probability: 0.0, why: "a bound on rounding, not a statistical test" }
    }

    fn explain(&self) -> &'static str {
        include_str!("../../explain/numeric_size.md")
    }

    fn cases(&self) -> &'static [&'static str] {
        &["AI-Hypercomputer/maxtext#5231", "verl-project/verl#7519", "NVIDIA/Megatron-LM#7562", "vllm-project/vime#64"]
    }

    fn fault(&self) -> Fault {
        faults::COARSE_LOGITS
    }

    fn extra_faults(&self) -> Vec<Fault> {
        vec![faults::NOISY_LOGITS]
    }

    async fn examine(&self, target: &Target) -> Result<Verdict, Obstacle> {
        let shape = Shape { question: 0x51, answers: ANSWERS, max_new_tokens: target.ask.max_new_tokens };
        let scorer = target.scorer()?;
        let batch = draw::sample(target, shape).await?;
        let scored = draw::score(scorer.as_ref(), &batch, draw::version_of(&batch)?).await?;
        let rows: Vec<Row> =
            difference::rows(&batch, &scored).filter(|row| difference::has_choice(&row.support)).collect();
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
        Ok(Verdict::of(class.is_some_and(|class| class <= target.numeric), evidence))
    }
}
