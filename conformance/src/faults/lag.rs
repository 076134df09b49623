//! Faults of p_s: scored at another version than the one that drew the tokens.

use super::rows::coarser_spacing;
use crate::{check::Fault, mix::unit, target::Target};
use async_trait::async_trait;
use lockstep_core::{
    Batch, ScoredBatch, WeightVersion,
    ports::{
        PortResult, PublishedWeights, Scorer, ScorerCapabilities, StepOptions, StepReport, Trainer, TrainerCapabilities,
    },
    score::{RolloutLogProbs, ScoredAt},
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

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

/// Scores differently each time.
pub const UNREPEATABLE_SCORES: Fault = Fault {
    id: "unrepeatable-scores",
    does: "scores the same batch at the same version differently each time",
    break_target: |mut target: Target| {
        let size = if target.exact_lag { 0.01 } else { 4.0 * target.numeric.tolerance().max_abs };
        target.scorer =
            target.scorer.map(|inner| Arc::new(Unrepeatable { inner, size, calls: AtomicU64::new(0) }) as _);
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

struct Unrepeatable {
    inner: Arc<dyn Scorer>,
    size: f64,
    calls: AtomicU64,
}

#[async_trait]
impl Scorer for Unrepeatable {
    async fn capabilities(&self) -> PortResult<ScorerCapabilities> {
        self.inner.capabilities().await
    }

    async fn score(&self, batch: &Batch, version: WeightVersion) -> PortResult<ScoredAt> {
        let mut scored = self.inner.score(batch, version).await?;
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        for (at, scores) in (0..).zip(scored.rollouts.iter_mut().flatten()) {
            let columns = scores.log_p.iter_mut().chain(&mut scores.log_p_sampled);
            for (entry, log_p) in (0..).zip(columns) {
                *log_p -= (self.size * unit(&[call, at, entry])) as f32;
            }
        }
        Ok(scored)
    }
}
