//! A training step with made-up p_s: lags as large as one likes, without an update.
//!
//! The step is given log-probs that lie a standard normal number from the trainer's own, normalised. What it reports of
//! lag, weights, effective samples and loss follows from them to the last digit.

use super::question;
use crate::{
    check::Verdict,
    difference::{self, Row},
    draw::{self, Shape},
    mix::{keyed, normal},
    obstacle::{AtPort, Obstacle},
    target::Target,
    training,
};
use lockstep_core::{
    Batch, RewardBook, Rollout, WeightVersion,
    dlc::{
        Discrepancy, EssReport, LagRatio, Rule, TokenCorrection,
        ess::DEFAULT_HORIZON,
        loss::{DomainRow, Scale, loss},
        weigh::{Position, WeighError},
    },
    ports::StepReport,
    score::{RolloutLogProbs, RowLogProbs, ScoredAt, SupportLogProbs},
};

/// Rounding of a reported number.
const ROUNDING: f64 = 1e-5;

/// Answers to each prompt.
pub(crate) const ANSWERS: u32 = 2;

/// Right and wrong losses must lie this many slacks apart.
const POWER: f64 = 4.0;

/// Steps taken until they do.
const TRIES: u64 = 3;

/// One token of a step.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    /// Support, and log p_theta over it.
    pub(crate) row: Row,
    /// log p_s over it, as it was handed over.
    pub(crate) log_s: RowLogProbs,
    /// A.
    pub(crate) advantage: f64,
    /// Divisor of the logits.
    pub(crate) temperature: f64,
}

/// A step and what it was made of.
pub(crate) struct Step {
    pub(crate) tokens: Vec<Token>,
    pub(crate) report: StepReport,
    pub(crate) version: WeightVersion,
    pub(crate) answers: usize,
}

/// Tokens [`step`] asks for, at most.
pub(crate) fn cost(target: &Target) -> u64 {
    draw::cost(&target.ask, ANSWERS, target.ask.max_new_tokens)
}

/// Tokens [`decisive`] asks for, at most.
pub(crate) fn cost_decisive(target: &Target) -> u64 {
    TRIES * cost(target)
}

/// One step.
pub(crate) async fn step(target: &Target, question: u64, rule: Rule) -> Result<Step, Obstacle> {
    let target = &question::listing(target);
    let (trainer, scorer) = (target.trainer()?, target.scorer()?.as_ref());
    let batch =
        draw::sample(target, Shape { question, answers: ANSWERS, max_new_tokens: target.ask.max_new_tokens }).await?;
    let version = draw::version_of(&batch)?;
    let now = trainer.version().await.at("trainer")?;
    let at_theta = draw::score(scorer, &batch, now).await?;
    let log_s = tilted(&batch, &at_theta, target.ask.seed);
    let mut book = RewardBook::default();
    for rollout in batch.rollouts().iter().enumerate() {
        book.post(rollout.1.id(), likelihood(&batch, &at_theta, rollout.0))?;
    }
    let scored = batch.clone().with_rewards(&mut book)?;
    let report = training::step_on(target, &scored, &log_s, rule).await?;
    trainer.retain(&[version]).await.at("trainer")?;
    if report.before != now {
        return Err(Obstacle::Unclear(format!("the trainer was at {now}, its step says {}", report.before)));
    }
    let tokens = tokens(&batch, (&at_theta, &log_s), &scored.advantages());
    if !tokens.iter().any(|token| difference::has_choice(&token.row.support)) {
        return Err(Obstacle::Unclear(format!("none of {} tokens had a choice", tokens.len())));
    }
    Ok(Step { tokens, report, version, answers: batch.rollouts().len() })
}

/// A step at which right and wrong losses lie apart, by `distance`, so far that the reported loss decides between them.
pub(crate) async fn decisive(
    target: &Target,
    (question, rule): (u64, Rule),
    distance: impl Fn(&Step) -> Result<f64, Obstacle>,
) -> Result<Step, Obstacle> {
    let (mut widest, needed) = (0.0f64, POWER * slack(target));
    for attempt in 0..TRIES {
        let step = step(target, question + (attempt << 16), rule).await?;
        step.whole()?;
        let found = distance(&step)?;
        if found > needed {
            return Ok(step);
        }
        widest = widest.max(found);
    }
    Err(Obstacle::Unclear(format!(
        "right and wrong losses of {TRIES} steps lie {widest:.1e} apart at most, too little to decide ({needed:.1e} needed)"
    )))
}

/// The tokens of a batch with both sides' log-probs.
pub(crate) fn tokens(
    batch: &Batch,
    (at_theta, log_s): (&ScoredAt, &[RolloutLogProbs]),
    advantages: &[f64],
) -> Vec<Token> {
    let at_s = ScoredAt { version: at_theta.version, rollouts: log_s.to_vec() };
    let pairs = difference::rows(batch, at_theta).zip(difference::rows(batch, &at_s));
    let token = |(row, s): (Row, Row)| Token {
        advantage: advantages.get(row.at.rollout).copied().unwrap_or_default(),
        temperature: batch.rollouts()[row.at.rollout].params().temperature(),
        log_s: s.scores,
        row,
    };
    pairs.map(token).collect()
}

/// The reward of an answer: its log-likelihood, so that advantages and log-probs go together and no loss is near 0.
fn likelihood(batch: &Batch, at_theta: &ScoredAt, rollout: usize) -> f64 {
    let own = difference::rows(batch, at_theta).filter(|row| row.at.rollout == rollout);
    own.map(|row| row.scores.log_p_sampled).sum()
}

fn tilted(batch: &Batch, at_theta: &ScoredAt, seed: u64) -> Vec<RolloutLogProbs> {
    let mut rows = difference::rows(batch, at_theta);
    let answer = |rollout: &Rollout| -> RolloutLogProbs {
        let segment = |segment: &lockstep_core::Segment| {
            let mut scores = SupportLogProbs::default();
            for row in rows.by_ref().take(segment.behavior.len()) {
                scores.push(&row.support, &tilt(&row, seed));
            }
            scores
        };
        rollout.segments().iter().map(segment).collect()
    };
    batch.rollouts().iter().map(answer).collect()
}

/// log p over the support, every entry moved by a standard normal number, normalised.
fn tilt(row: &Row, seed: u64) -> RowLogProbs {
    if !row.support.is_exact() || row.support.ids().len() < 2 {
        return row.scores.clone();
    }
    let key = keyed(&[seed, 0x711, row.at.rollout as u64, row.at.position as u64]);
    let ids = row.support.ids().iter().zip(&row.scores.log_p);
    let moved: Vec<f64> = ids.map(|(id, log_p)| log_p + normal(&[key, u64::from(id.0)])).collect();
    let max = moved.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_sum = max + moved.iter().map(|log_p| (log_p - max).exp()).sum::<f64>().ln();
    let log_p: Vec<f64> = moved.iter().map(|log_p| (log_p - log_sum).min(0.0)).collect();
    let token = row.support.sampled().token;
    let at = row.support.ids().iter().position(|&id| id == token);
    let log_p_sampled = at.map_or(row.scores.log_p_sampled, |at| log_p[at]);
    RowLogProbs { log_p, log_p_sampled, log_rest: row.scores.log_rest }
}

impl Token {
    /// The position as the correction sees it.
    pub(crate) fn position(&self) -> Position<'_> {
        Position { support: &self.row.support, log_s: &self.log_s, log_theta: &self.row.scores }
    }

    /// Its lag and its numeric term.
    pub(crate) fn terms(&self) -> Result<(LagRatio, Discrepancy), Obstacle> {
        self.position().decompose().map_err(|error| Obstacle::Unclear(error.to_string()))
    }

    /// Its loss under a correction; 0 where the rest of its support is not known.
    pub(crate) fn loss(&self, correction: &TokenCorrection) -> f64 {
        if !self.row.support.is_exact() {
            return 0.0;
        }
        let (log_theta, log_s) = (&self.row.scores.log_p[..], &self.log_s.log_p[..]);
        let known: Vec<usize> = (0..log_theta.len()).collect();
        let token = self.row.support.sampled().token;
        let sampled = self.row.support.ids().iter().position(|&id| id == token).unwrap_or(0);
        let row = DomainRow { log_theta, log_s, known: &known, sampled };
        let scale = Scale { advantage: self.advantage, temperature: self.temperature };
        loss(&row, correction, scale, &mut vec![0.0; log_theta.len()])
    }
}

/// Mean loss of some tokens under a rule for their corrections.
pub(crate) fn mean_loss(
    tokens: &[Token],
    rule: impl Fn(&Position<'_>) -> Result<TokenCorrection, WeighError>,
) -> Result<f64, WeighError> {
    let mut sum = 0.0;
    for token in tokens {
        sum += token.loss(&rule(&token.position())?);
    }
    Ok(sum / tokens.len().max(1) as f64)
}

/// The lags of each answer.
pub(crate) fn lags(tokens: &[Token], answers: usize) -> Result<Vec<Vec<LagRatio>>, Obstacle> {
    let mut lags = vec![vec![]; answers];
    for token in tokens {
        lags[token.row.at.rollout].push(token.terms()?.0);
    }
    Ok(lags)
}

/// ESS of some lags.
pub(crate) fn ess(lags: &[Vec<LagRatio>]) -> Result<EssReport, Obstacle> {
    EssReport::of(lags, DEFAULT_HORIZON).ok_or_else(|| Obstacle::Unclear("no token has a lag".into()))
}

impl Step {
    /// Not applicable where a support is not known whole, so that the loss cannot be foretold.
    pub(crate) fn whole(&self) -> Result<(), Obstacle> {
        let open = self.tokens.iter().filter(|token| !token.row.support.is_exact()).count();
        if open == 0 {
            return Ok(());
        }
        let all = self.tokens.len();
        Err(Obstacle::NotApplicable(format!("{open} of {all} supports are not known whole, so no loss is foretold")))
    }

    /// The reported loss against a foretold one.
    pub(crate) fn judge_loss(&self, expected: f64, target: &Target) -> Verdict {
        let slack = slack(target) * (1.0 + expected.abs());
        Verdict::of(
            (self.report.loss - expected).abs() <= slack,
            format!(
                "loss of {} tokens {:.6}, expected {expected:.6} within {slack:.1e}",
                self.tokens.len(),
                self.report.loss
            ),
        )
    }
}

/// How far a reported number may lie from the foretold one.
pub(crate) fn slack(target: &Target) -> f64 {
    if target.exact_lag { ROUNDING } else { target.numeric.tolerance().mean_abs }
}
