//! Faults of a training step: what it divides by, what it weighs with, and what it reports of both.

use crate::{
    check::Fault,
    checks::tilted::{Token, mean_loss, tokens},
    target::Target,
};
use async_trait::async_trait;
use lockstep_core::{
    ScoredBatch, WeightVersion,
    dlc::{
        EssReport, LagClip, LagRatio, Rule, TailModel, TokenCorrection, decompose,
        decompose::TokenLogProbs,
        ess::DEFAULT_HORIZON,
        weigh,
        weigh::{Position, WeighError},
        wrong_on_purpose,
    },
    ports::{PortError, PortResult, PublishedWeights, Scorer, StepOptions, StepReport, Trainer, TrainerCapabilities},
    score::{RolloutLogProbs, RowLogProbs},
};
use std::sync::Arc;

/// Counts tokens after masking.
pub const COUNTED_AFTER_MASK: Fault = Fault {
    id: "counted-after-mask",
    does: "divides by the tokens that are left after an answer was masked",
    break_target: |target| {
        reported(target, |report, seen| {
            let first = seen.tokens.iter().filter(|token| token.row.at.rollout == 0).count();
            report.loss *= seen.tokens.len() as f64 / (seen.tokens.len() - first).max(1) as f64;
            Ok(())
        })
    },
};

/// Divides by the padded width.
pub const PADDED_DENOMINATOR: Fault = Fault {
    id: "padded-denominator",
    does: "divides by the width of the padded batch",
    break_target: |target| {
        reported(target, |report, seen| {
            let longest = seen.tokens.iter().map(|token| token.row.at.position + 1).max().unwrap_or(1);
            let padded = seen.answers * longest.next_multiple_of(64);
            report.loss *= seen.tokens.len() as f64 / padded as f64;
            Ok(())
        })
    },
};

/// Miscounts its tokens.
pub const TOKENS_MISCOUNTED: Fault = Fault {
    id: "tokens-miscounted",
    does: "leaves the last token of every answer out of the count",
    break_target: |target| {
        reported(target, |report, seen| {
            report.terms.tokens = report.terms.tokens.saturating_sub(seen.answers);
            Ok(())
        })
    },
};

/// Takes the lag against q.
pub const LAG_AGAINST_Q: Fault = Fault {
    id: "lag-against-q",
    does: "takes the lag against the sampler's log-probs in place of the trainer's at the sampler's weights",
    break_target: |target| {
        reported(target, |report, seen| {
            report_lags(report, &seen.each(|token| token.row.scores.log_p_sampled - token.row.support.sampled().log_q));
            Ok(())
        })
    },
};

/// Reports the lag after the clip.
pub const LAG_CLIPPED: Fault = Fault {
    id: "lag-clipped",
    does: "reports the lag after the clip",
    break_target: |target| {
        reported(target, |report, seen| {
            report_lags(report, &seen.each(|token| token.lag().min(std::f64::consts::LN_2)));
            Ok(())
        })
    },
};

/// Inverts the lag.
pub const LAG_INVERTED: Fault = Fault {
    id: "lag-inverted",
    does: "reports log p_s - log p_theta for the lag",
    break_target: |target| {
        reported(target, |report, _| {
            report.terms.lag.mean = -report.terms.lag.mean;
            Ok(())
        })
    },
};

/// Form C.
pub const CENTRING_UNWEIGHTED: Fault = Fault {
    id: "centring-unweighted",
    does: "weighs the drawn token and not its centring, which corrects the lag twice",
    break_target: |target| {
        weighing(target, |position| wrong_on_purpose::centring_without_the_weight(position, LagClip::default()))
    },
};

/// Form D.
pub const CENTRED_SCORE_WEIGHTED: Fault = Fault {
    id: "centred-score-weighted",
    does: "weighs the whole centred score with the drawn token's ratio",
    break_target: |target| {
        weighing(target, |position| {
            wrong_on_purpose::centring_with_the_drawn_tokens_weight(position, LagClip::default())
        })
    },
};

/// Centres with raw probabilities.
pub const CENTRED_WITH_RAW: Fault = Fault {
    id: "centred-with-raw",
    does: "centres with probabilities over the whole vocabulary, which miss the mass truncation took",
    break_target: |target| weighing(target, centred_with_raw),
};

/// The weights of [`CENTRED_WITH_RAW`], where truncation took a tenth of the mass.
pub(crate) fn centred_with_raw(position: &Position<'_>) -> Result<TokenCorrection, WeighError> {
    let mut correction = weigh(position, &Rule::dlc())?;
    correction.c.iter_mut().for_each(|c| *c *= 0.9);
    Ok(correction)
}

/// The weights of [`NUMERIC_IN_WEIGHT`].
pub(crate) fn numeric_in_weight(position: &Position<'_>) -> Result<TokenCorrection, WeighError> {
    let (support, sampled) = (position.support, position.support.sampled());
    let log_p = support.log_q().to_vec();
    let log_q = RowLogProbs { log_p, log_p_sampled: sampled.log_q, log_rest: support.log_rest() };
    weigh(&Position { log_s: &log_q, ..*position }, &Rule::dlc())
}

/// Puts the numeric term into the weight.
pub const NUMERIC_IN_WEIGHT: Fault = Fault {
    id: "numeric-in-weight",
    does: "weighs with p_theta / q: the numeric term is in the weight",
    break_target: |target| weighing(target, numeric_in_weight),
};

/// Does not clip.
pub const UNCLIPPED: Fault = Fault {
    id: "unclipped",
    does: "does not clip the lag",
    break_target: |target| {
        weighing(target, |position| {
            let lag_clip = LagClip::new(0.0, f64::MAX).unwrap_or_default();
            weigh(position, &Rule::Dlc { lag_clip, tail: TailModel::default() })
        })
    },
};

/// Inverts the ratio.
pub const RATIO_INVERTED: Fault = Fault {
    id: "ratio-inverted",
    does: "weighs with p_s / p_theta",
    break_target: |target| {
        weighing(target, |position| {
            let Position { log_s, log_theta, .. } = *position;
            weigh(&Position { log_s: log_theta, log_theta: log_s, ..*position }, &Rule::dlc())
        })
    },
};

/// Clips before it counts.
pub const ESS_AFTER_CLIP: Fault = Fault {
    id: "ess-after-clip",
    does: "takes the effective sample size of clipped ratios, which can hardly fall",
    break_target: |target| {
        reported(target, |report, seen| {
            let clipped = |token: &Token| token.row.scores.log_p_sampled - token.lag().min(std::f64::consts::LN_2);
            report_ess(report, &seen.lags(clipped)?);
            Ok(())
        })
    },
};

/// Takes the ratio against q.
pub const ESS_AGAINST_Q: Fault = Fault {
    id: "ess-against-q",
    does: "takes the effective sample size of ratios against q, numeric term and all",
    break_target: |target| {
        reported(target, |report, seen| {
            report_ess(report, &seen.lags(|token| token.row.support.sampled().log_q)?);
            Ok(())
        })
    },
};

/// Reports one level for another.
pub const ESS_TOKEN_FOR_SEQUENCE: Fault = Fault {
    id: "ess-token-for-sequence",
    does: "reports the effective sample size of tokens for that of answers",
    break_target: |target| {
        reported(target, |report, _| {
            report.ess.iter_mut().for_each(|(_, ess)| ess.sequence = ess.token);
            Ok(())
        })
    },
};

/// Reports how many samples count, not which share of them.
pub const ESS_AS_COUNT: Fault = Fault {
    id: "ess-as-count",
    does: "reports the number of effective samples where their share is meant, so that no threshold below 1 is reached",
    break_target: |target| {
        reported(target, |report, _| {
            for (_, ess) in &mut report.ess {
                ess.token *= ess.tokens as f64;
                ess.sequence *= ess.sequences as f64;
            }
            Ok(())
        })
    },
};

/// What a step was made of.
struct Seen {
    tokens: Vec<Token>,
    answers: usize,
}

impl Token {
    fn lag(&self) -> f64 {
        self.row.scores.log_p_sampled - self.log_s.log_p_sampled
    }
}

impl Seen {
    fn each(&self, value: impl Fn(&Token) -> f64) -> Vec<f64> {
        self.tokens.iter().map(value).collect()
    }

    /// Lags against another log p_s of the drawn tokens.
    fn lags(&self, log_s: impl Fn(&Token) -> f64) -> PortResult<Vec<Vec<LagRatio>>> {
        let mut lags = vec![vec![]; self.answers];
        for token in &self.tokens {
            let (log_theta, sampled) = (token.row.scores.log_p_sampled, token.row.support.sampled());
            let ratio = decompose(TokenLogProbs { log_theta, log_s: log_s(token), sampled });
            lags[token.row.at.rollout].push(ratio.map_err(|error| PortError::Failed(error.to_string()))?.0);
        }
        Ok(lags)
    }
}

fn report_lags(report: &mut StepReport, lags: &[f64]) {
    report.terms.lag.mean = lags.iter().sum::<f64>() / lags.len().max(1) as f64;
    report.terms.lag.max_abs = lags.iter().map(|lag| lag.abs()).fold(0.0, f64::max);
}

fn report_ess(report: &mut StepReport, lags: &[Vec<LagRatio>]) {
    for (_, ess) in &mut report.ess {
        *ess = EssReport::of(lags, DEFAULT_HORIZON).unwrap_or(*ess);
    }
}

type Weigh = fn(&Position<'_>) -> Result<TokenCorrection, WeighError>;
type Report = dyn Fn(&mut StepReport, &Seen) -> PortResult<()> + Send + Sync;

struct Reported {
    inner: Arc<dyn Trainer>,
    scorer: Arc<dyn Scorer>,
    report: Arc<Report>,
}

#[async_trait]
impl Trainer for Reported {
    fn capabilities(&self) -> TrainerCapabilities {
        self.inner.capabilities()
    }

    async fn step(
        &self,
        batch: &ScoredBatch,
        log_s: &[RolloutLogProbs],
        options: &StepOptions,
    ) -> PortResult<StepReport> {
        let at_theta = self.scorer.score(batch.batch(), self.inner.version().await?).await?;
        let tokens = tokens(batch.batch(), (&at_theta, log_s), &batch.advantages());
        let mut report = self.inner.step(batch, log_s, options).await?;
        (self.report)(&mut report, &Seen { tokens, answers: batch.batch().rollouts().len() })?;
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

fn reported(
    mut target: Target,
    report: impl Fn(&mut StepReport, &Seen) -> PortResult<()> + Send + Sync + 'static,
) -> Target {
    let (scorer, report) = (target.scorer.clone(), Arc::new(report));
    let wrap = |(inner, scorer)| Arc::new(Reported { inner, scorer, report }) as _;
    target.trainer =
        target.trainer.map(|inner| scorer.map_or_else(|| inner.clone(), |scorer| wrap((inner.clone(), scorer))));
    target
}

fn weighing(target: Target, rule: Weigh) -> Target {
    reported(target, move |report, seen| {
        report.loss = mean_loss(&seen.tokens, rule).map_err(|error| PortError::Failed(error.to_string()))?;
        Ok(())
    })
}
