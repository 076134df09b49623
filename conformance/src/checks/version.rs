//! Fix 4: after new weights are loaded, the label changes and so does the behaviour.

use crate::{
    check::{Check, FalseAlarm, Fault, Verdict},
    difference::{self, Difference},
    draw::{self, Shape},
    faults::version as faults,
    obstacle::{AtPort, Obstacle},
    target::Target,
    training,
};
use async_trait::async_trait;
use lockstep_core::{
    Batch, Evidence, WeightVersion,
    dlc::Rule,
    score::{ScoredAt, select},
};

/// `version.evidence`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Proven;

/// At most this many updates to move the log-probs visibly.
const STEPS: u32 = 8;
/// The change must be this many standard errors of the noise.
const RESOLUTION: f64 = 20.0;
/// Rounding of a log-prob to f32.
const SMALLEST_CHANGE: f64 = 1e-5;
const ANSWERS: u32 = 4;

#[async_trait]
impl Check for Proven {
    fn id(&self) -> &'static str {
        "version.evidence"
    }

    fn demand(&self) -> &'static str {
        "after new weights are loaded every token carries their version, and the log-probs moved to them"
    }

    fn cost(&self, target: &Target) -> u64 {
        2 * draw::cost(&target.ask, ANSWERS, target.ask.max_new_tokens)
    }

    fn false_alarm(&self) -> FalseAlarm {
        FalseAlarm {
            probability: 1e-12,
            why: "the threshold lies ten standard errors of the numeric noise from either answer",
        }
    }

    fn explain(&self) -> &'static str {
        include_str!("../../explain/version_evidence.md")
    }

    fn cases(&self) -> &'static [&'static str] {
        &[
            "GMISWE/tinker-cloud#32",
            "huggingface/trl#5312",
            "inclusionAI/AReaL#1569",
            "vllm-project/vllm#54443",
            "InternLM/lmdeploy#4917",
            "NVIDIA-NeMo/RL#4018",
        ]
    }

    fn fault(&self) -> Fault {
        faults::LABEL_WITHOUT_LOAD
    }

    fn extra_faults(&self) -> Vec<Fault> {
        vec![faults::STALE_LABEL, faults::UNDECLARED]
    }

    async fn examine(&self, target: &Target) -> Result<Verdict, Obstacle> {
        let (trainer, _, _) = (target.trainer()?, target.control()?, target.scorer()?);
        training::needs_snapshots(target)?;
        let probe = draw::sample(target, shape(target, 0x41)).await?;
        if let Some(silent) = undeclared(&probe) {
            return Ok(silent);
        }
        let old = draw::version_of(&probe)?;
        let new = move_weights(target, &probe, old).await?;
        let (published, stamp) = training::load(target, new).await?;
        if stamp.version() != Some(new) {
            let said = stamp.version().map_or_else(|| "nothing".to_owned(), |version| version.to_string());
            return Ok(Verdict::Fail(format!("{new} was loaded, the control plane says {said}")));
        }
        if let Evidence::Digest(digest) = stamp.evidence()
            && *digest != published.digest
        {
            return Ok(Verdict::Fail(format!("{new} has digest {}, the sampler holds {digest}", published.digest)));
        }
        let verdict = behaviour(target, (old, new)).await?;
        trainer.retain(&[new]).await.at("trainer")?;
        Ok(verdict)
    }
}

fn shape(target: &Target, question: u64) -> Shape {
    Shape { question, answers: ANSWERS, max_new_tokens: target.ask.max_new_tokens }
}

fn undeclared(batch: &Batch) -> Option<Verdict> {
    let silent = draw::stamps(batch).filter(|stamp| stamp.version().is_none()).count();
    let all = draw::stamps(batch).count();
    (silent > 0).then(|| Verdict::Fail(format!("{silent} of {all} segments do not say which weights drew them")))
}

/// Takes steps until the log-probs of the probe have moved far enough to tell the versions apart.
async fn move_weights(target: &Target, probe: &Batch, old: WeightVersion) -> Result<WeightVersion, Obstacle> {
    let scorer = target.scorer()?.as_ref();
    let at_old = draw::score(scorer, probe, old).await?;
    let rows: Vec<_> = difference::rows(probe, &at_old).collect();
    let noise = difference::over_supports(rows.iter()).rms();
    let log_s = select(probe, std::slice::from_ref(&at_old))?;
    let mut change = Difference::default();
    for _ in 0..STEPS {
        let new = training::step(target, probe, &log_s, Rule::Uncorrected).await?.after;
        change = difference::between(probe, &at_old, &draw::score(scorer, probe, new).await?);
        let errors = change.rms() * (change.count as f64).sqrt() / noise.max(f64::MIN_POSITIVE);
        if new != old && change.max_abs > SMALLEST_CHANGE && errors > RESOLUTION {
            return Ok(new);
        }
    }
    Err(Obstacle::Unclear(format!(
        "{STEPS} steps moved {} log-probs by rms {:.1e}, max {:.1e}: too little beside a noise of {noise:.1e}",
        change.count,
        change.rms(),
        change.max_abs
    )))
}

/// Whether tokens drawn now carry the new label and follow the new weights.
async fn behaviour(target: &Target, (old, new): (WeightVersion, WeightVersion)) -> Result<Verdict, Obstacle> {
    let scorer = target.scorer()?.as_ref();
    let batch = draw::sample(target, shape(target, 0x42)).await?;
    let other = draw::stamps(&batch).filter(|stamp| stamp.version() != Some(new)).count();
    if other > 0 {
        let all = draw::stamps(&batch).count();
        return Ok(Verdict::Fail(format!("{new} was loaded, {other} of {all} segments drawn since say otherwise")));
    }
    let at_old = draw::score(scorer, &batch, old).await?;
    let at_new = draw::score(scorer, &batch, new).await?;
    let rows: Vec<_> = difference::rows(&batch, &at_new).collect();
    let (residue, change) = (difference::over_supports(rows.iter()), difference::between(&batch, &at_old, &at_new));
    let share = share(&batch, &at_old, &at_new);
    let tolerance = target.numeric.tolerance();
    Ok(Verdict::of(
        (0.5..=1.5).contains(&share) && tolerance.holds(residue.mean_abs(), residue.max_abs),
        format!(
            "labelled {new}: log q moved {:.1} % of the way from {old} (rms {:.1e} over {} entries), log p_s - log q at \
             {new} mean abs {:.1e}, max abs {:.1e}",
            100.0 * share,
            change.rms(),
            change.count,
            residue.mean_abs(),
            residue.max_abs
        ),
    ))
}

/// How much of the change from the old to the new weights the sampler shows: the coefficient of `log p_new - log p_old`
/// in `log q - log p_old`; 0 for the old weights, 1 for the new ones.
fn share(batch: &Batch, at_old: &ScoredAt, at_new: &ScoredAt) -> f64 {
    let (mut shown, mut whole) = (0.0, 0.0);
    for (old, new) in difference::rows(batch, at_old).zip(difference::rows(batch, at_new)) {
        let scores = old.scores.log_p.iter().zip(&new.scores.log_p);
        for (log_q, (log_old, log_new)) in old.support.log_q().iter().zip(scores) {
            shown += (log_q - log_old) * (log_new - log_old);
            whole += (log_new - log_old) * (log_new - log_old);
        }
    }
    shown / whole
}
