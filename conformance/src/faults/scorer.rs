//! Faults of p: scored at another temperature, or over another set.

use crate::{check::Fault, target::Target};
use async_trait::async_trait;
use lockstep_core::{
    Batch, Rollout, Support, WeightVersion,
    ports::{PortResult, Scorer, ScorerCapabilities},
    score::{RolloutLogProbs, RowLogProbs, ScoredAt, SupportLogProbs},
};
use std::sync::Arc;

/// Scores at temperature 1.
pub const SCORED_AT_ONE: Fault = Fault {
    id: "scored-at-one",
    does: "scores at temperature 1 whatever the answers were drawn at",
    break_target: |target| rescoring(target, normalised),
};

/// Divides twice.
pub const SCORED_TWICE_TEMPERED: Fault = Fault {
    id: "scored-twice-tempered",
    does: "divides the trainer's logits by the temperature twice",
    break_target: |target| rescoring(target, |log_p, temperature| normalised(log_p, 1.0 / temperature)),
};

/// Divides log-probs.
pub const TEMPERED_AFTER_SOFTMAX: Fault = Fault {
    id: "tempered-after-softmax",
    does: "divides log-probs by the temperature, after the softmax, and does not normalise them",
    break_target: |target| {
        rescoring(target, |log_p, temperature| {
            normalised(log_p, temperature).iter().map(|log_p| log_p / temperature).collect()
        })
    },
};

/// Scores over the vocabulary.
pub const SCORED_OVER_VOCABULARY: Fault = Fault {
    id: "scored-over-vocabulary",
    does: "scores over the whole vocabulary where a kept set was drawn from",
    break_target: |target| rescoring(target, |log_p, _| log_p.iter().map(|log_p| log_p + 0.9f64.ln()).collect()),
};

/// Scores over a nucleus of its own.
pub const OWN_NUCLEUS: Fault = Fault {
    id: "own-nucleus",
    does: "recomputes the nucleus with its own probabilities: kept ids outside of it have none",
    break_target: |target| {
        rescoring(target, |log_p, _| {
            let most = log_p.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let least = log_p.iter().copied().fold(f64::INFINITY, f64::min);
            let cut = |log_p: &f64| if *log_p == least && least < most { -9999.0 } else { *log_p };
            log_p.iter().map(cut).collect()
        })
    },
};

/// Log-probs of an exact row and its temperature, to log-probs.
type Rescore = fn(&[f64], f64) -> Vec<f64>;

struct Rescored {
    inner: Arc<dyn Scorer>,
    rescore: Rescore,
}

impl Rescored {
    fn row(&self, (support, row): (&Support, RowLogProbs), temperature: f64) -> RowLogProbs {
        if !support.is_exact() || support.ids().len() < 2 {
            return row;
        }
        let log_p = (self.rescore)(&row.log_p, temperature);
        let at = support.ids().iter().position(|&id| id == support.sampled().token);
        let log_p_sampled = at.map_or(row.log_p_sampled, |at| log_p[at]);
        RowLogProbs { log_p, log_p_sampled, ..row }
    }

    fn rollout(&self, rollout: &Rollout, scores: &RolloutLogProbs) -> RolloutLogProbs {
        let temperature = rollout.params().temperature();
        let segments = rollout.segments().iter().zip(scores);
        let rescored = segments.map(|(segment, scores)| {
            let mut out = SupportLogProbs::default();
            for (position, support) in segment.behavior.rows().enumerate() {
                let row = scores.row(&segment.behavior, position);
                out.push(&support, &self.row((&support, row), temperature));
            }
            out
        });
        rescored.collect()
    }
}

#[async_trait]
impl Scorer for Rescored {
    async fn capabilities(&self) -> PortResult<ScorerCapabilities> {
        self.inner.capabilities().await
    }

    async fn score(&self, batch: &Batch, version: WeightVersion) -> PortResult<ScoredAt> {
        let scored = self.inner.score(batch, version).await?;
        let pairs = batch.rollouts().iter().zip(&scored.rollouts);
        Ok(ScoredAt { rollouts: pairs.map(|(rollout, scores)| self.rollout(rollout, scores)).collect(), ..scored })
    }
}

fn rescoring(mut target: Target, rescore: Rescore) -> Target {
    target.scorer = target.scorer.map(|inner| Arc::new(Rescored { inner, rescore }) as _);
    target
}

/// `log softmax(factor log p)`.
fn normalised(log_p: &[f64], factor: f64) -> Vec<f64> {
    let scaled: Vec<f64> = log_p.iter().map(|log_p| factor * log_p).collect();
    let max = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_sum = max + scaled.iter().map(|z| (z - max).exp()).sum::<f64>().ln();
    scaled.iter().map(|z| (z - log_sum).min(0.0)).collect()
}
