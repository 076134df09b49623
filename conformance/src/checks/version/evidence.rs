//! Fix 4: after new weights are loaded, the label changes and so does the behaviour.

use super::moved;
use crate::{
    check::{Check, FalseAlarm, Finding, Verdict},
    checks::recorded,
    draw::{self, Shape},
    faults::version as faults,
    obstacle::{AtPort, Obstacle},
    target::Target,
    training,
};
use lockstep_core::{Batch, Evidence, WeightVersion};

/// The change must be this many standard errors of the noise.
const RESOLUTION: f64 = 20.0;
const ANSWERS: u32 = 4;

/// `version.evidence`.
pub const EVIDENCE: Check = Check {
    id: "version.evidence",
    demand: "after new weights are loaded every token carries their version, and the log-probs moved to them",
    cost: |target| 2 * draw::cost(&target.ask, ANSWERS, target.ask.max_new_tokens),
    false_alarm: FalseAlarm {
        probability: 1e-12,
        why: "the threshold lies ten standard errors of the numeric noise from either answer",
    },
    explain: include_str!("../../../explain/version_evidence.md"),
    cases: &[
        "GMISWE/tinker-cloud#32",
        "huggingface/trl#5312",
        "inclusionAI/AReaL#1569",
        "vllm-project/vllm#54443",
        "THUDM/slime#2092",
    ],
    fault: faults::LABEL_WITHOUT_LOAD,
    extra_faults: &[faults::STALE_LABEL, faults::UNDECLARED, faults::HEAD_NOT_UPDATED],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    if let Some(batch) = &target.recorded {
        return recorded::versions(batch);
    }
    let (trainer, _, _) = (target.trainer()?, target.control()?, target.scorer()?);
    training::needs_snapshots(target)?;
    let probe = draw::sample(target, shape(target, 0x41)).await?;
    if let Some(silent) = undeclared(&probe) {
        return Ok(silent.into());
    }
    let old = draw::version_of(&probe)?;
    let new = moved::weights(target, &probe, (old, RESOLUTION), |_| true).await?;
    let (published, stamp) = training::load(target, new).await?;
    if stamp.version() != Some(new) {
        let said = stamp.version().map_or_else(|| "nothing".to_owned(), |version| version.to_string());
        return Ok(Finding::of(false, format!("{new} was loaded, the control plane says {said}")));
    }
    if let Evidence::Digest(digest) = stamp.evidence()
        && let Some(published) = published.digest
        && *digest != published
    {
        return Ok(Finding::of(false, format!("{new} has digest {published}, the sampler holds {digest}")));
    }
    let verdict = behaviour(target, (old, new)).await?;
    trainer.retain(&[new]).await.at("trainer")?;
    Ok(verdict.into())
}

fn shape(target: &Target, question: u64) -> Shape {
    Shape { question, answers: ANSWERS, max_new_tokens: target.ask.max_new_tokens }
}

fn undeclared(batch: &Batch) -> Option<Verdict> {
    let silent = draw::stamps(batch).filter(|stamp| stamp.version().is_none()).count();
    let all = draw::stamps(batch).count();
    (silent > 0).then(|| Verdict::Fail(format!("{silent} of {all} segments do not say which weights drew them")))
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
    let shown = moved::Shown::of(&batch, (&at_old, &at_new), |_| true);
    let tolerance = target.numeric.tolerance();
    Ok(Verdict::of(
        (0.5..=1.5).contains(&shown.share) && tolerance.holds(shown.residue.mean_abs(), shown.residue.max_abs),
        format!(
            "labelled {new}: log q moved {:.1} % of the way from {old} (rms {:.1e} over {} entries), log p_s - log q at \
             {new} mean abs {:.1e}, max abs {:.1e}",
            100.0 * shown.share,
            shown.change.rms(),
            shown.change.count,
            shown.residue.mean_abs(),
            shown.residue.max_abs
        ),
    ))
}
