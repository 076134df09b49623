//! Faults of p_s: scored at another version than the one that drew the tokens.

use super::rows::coarser_spacing;
use crate::{check::Fault, target::Target};
use async_trait::async_trait;
use lockstep_core::{
    Batch, ScoredBatch, WeightVersion,
    ports::{
        PortResult, PublishedWeights, Scorer, ScorerCapabilities, StepOptions, StepReport, Trainer, TrainerCapabilities,
    },
    score::{RolloutLogProbs, ScoredAt},
};
use std::sync::Arc;

/// Scores at the current weights, whatever version is asked for.
pub const SCORED_NOW: Fault = Fault {
    id: "scored-now",
    does: "scores at the trainer's current weights whatever version it is asked for",
    break_target: |mut target| {
        let trainer = target.trainer.clone();
        let wrap = |(inner, trainer)| Arc::new(ScoredNow { inner, trainer }) as _;
        target.scorer =
            target.scorer.map(|inner| trainer.map_or_else(|| inner.clone(), |now| wrap((inner.clone(), now))));
        target
    },
};

/// Recomputes the denominator with the current weights.
pub const RATIO_OF_ONE: Fault = Fault {
    id: "ratio-of-one",
    does: "recomputes the denominator of the lag ratio at the current weights, so that every ratio is 1",
    break_target: |mut target| {
        let scorer = target.scorer.clone();
        let wrap = |(inner, scorer)| Arc::new(RatioOfOne { inner, scorer }) as _;
        target.trainer =
            target.trainer.map(|inner| scorer.map_or_else(|| inner.clone(), |own| wrap((inner.clone(), own))));
        target
    },
};

/// Reports how many samples count, not which share of them.
pub const ESS_AS_COUNT: Fault = Fault {
    id: "ess-as-count",
    does: "reports the number of effective samples where their share is meant, so that no threshold below 1 is reached",
    break_target: |mut target| {
        target.trainer = target.trainer.map(|inner| Arc::new(EssAsCount { inner }) as _);
        target
    },
};

/// Keeps snapshots in a coarser format.
pub const ROUNDED_SNAPSHOT: Fault = Fault {
    id: "rounded-snapshot",
    does: "keeps its snapshots one number format coarser than it trains in",
    break_target: |mut target: Target| {
        let spacing = coarser_spacing(target.numeric);
        target.scorer = target.scorer.map(|inner| Arc::new(Rounded { inner, spacing }) as _);
        target
    },
};

struct ScoredNow {
    inner: Arc<dyn Scorer>,
    trainer: Arc<dyn Trainer>,
}

#[async_trait]
impl Scorer for ScoredNow {
    async fn capabilities(&self) -> PortResult<ScorerCapabilities> {
        self.inner.capabilities().await
    }

    async fn score(&self, batch: &Batch, version: WeightVersion) -> PortResult<ScoredAt> {
        let now = self.trainer.version().await?;
        let scored = self.inner.score(batch, now).await?;
        Ok(ScoredAt { version, ..scored })
    }
}

struct Rounded {
    inner: Arc<dyn Scorer>,
    spacing: f64,
}

#[async_trait]
impl Scorer for Rounded {
    async fn capabilities(&self) -> PortResult<ScorerCapabilities> {
        self.inner.capabilities().await
    }

    async fn score(&self, batch: &Batch, version: WeightVersion) -> PortResult<ScoredAt> {
        let mut scored = self.inner.score(batch, version).await?;
        let spacing = self.spacing;
        let round = |log_p: &mut f32| {
            let rounded = (f64::from(*log_p) / spacing).floor() * spacing;
            *log_p = rounded as f32;
        };
        for scores in scored.rollouts.iter_mut().flatten() {
            scores.log_p.iter_mut().for_each(round);
            scores.log_p_sampled.iter_mut().for_each(round);
        }
        Ok(scored)
    }
}

struct RatioOfOne {
    inner: Arc<dyn Trainer>,
    scorer: Arc<dyn Scorer>,
}

#[async_trait]
impl Trainer for RatioOfOne {
    fn capabilities(&self) -> TrainerCapabilities {
        self.inner.capabilities()
    }

    async fn step(&self, batch: &ScoredBatch, _: &[RolloutLogProbs], options: &StepOptions) -> PortResult<StepReport> {
        let now = self.scorer.score(batch.batch(), self.inner.version().await?).await?;
        self.inner.step(batch, &now.rollouts, options).await
    }

    async fn version(&self) -> PortResult<WeightVersion> {
        self.inner.version().await
    }

    async fn publish(&self, version: WeightVersion) -> PortResult<PublishedWeights> {
        self.inner.publish(version).await
    }

    async fn retain(&self, live: &[WeightVersion]) -> PortResult<()> {
        self.inner.retain(live).await
    }
}

struct EssAsCount {
    inner: Arc<dyn Trainer>,
}

#[async_trait]
impl Trainer for EssAsCount {
    fn capabilities(&self) -> TrainerCapabilities {
        self.inner.capabilities()
    }

    async fn step(
        &self,
        batch: &ScoredBatch,
        log_s: &[RolloutLogProbs],
        options: &StepOptions,
    ) -> PortResult<StepReport> {
        let mut report = self.inner.step(batch, log_s, options).await?;
        for (_, ess) in &mut report.ess {
            ess.token *= ess.tokens as f64;
            ess.sequence *= ess.sequences as f64;
        }
        Ok(report)
    }

    async fn version(&self) -> PortResult<WeightVersion> {
        self.inner.version().await
    }

    async fn publish(&self, version: WeightVersion) -> PortResult<PublishedWeights> {
        self.inner.publish(version).await
    }

    async fn retain(&self, live: &[WeightVersion]) -> PortResult<()> {
        self.inner.retain(live).await
    }
}
