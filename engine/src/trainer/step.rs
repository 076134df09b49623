//! One update: forward, `(w, c)` from its own log-probs, backward, clip, AdamW. Nothing is written before everything that
//! can be refused has been looked at.

use super::passes::{self, At, Micro};
use super::{Qwen3Trainer, ids};
use crate::Qwen3;
use crate::head::{self, Side, Sides, Weighed, head_name};
use crate::optimiser::Gradients;
use crate::train_error::{TrainError, TrainResult};
use candle_core::Tensor;
use lockstep_core::dlc::statistics::{RatioShape, Statistics, TermReport};
use lockstep_core::dlc::weigh::Position;
use lockstep_core::dlc::{Discrepancy, EssReport, LagRatio, Rule, weigh};
use lockstep_core::plan::Batch;
use lockstep_core::ports::{StepOptions, StepReport};
use lockstep_core::reward::ScoredBatch;
use lockstep_core::rivals::{self, Prepared};
use lockstep_core::score::{RolloutLogProbs, RowLogProbs, versions};
use lockstep_core::version::WeightVersion;
use std::collections::BTreeMap;

/// What a step is given, checked.
struct Step<'a> {
    batch: &'a Batch,
    log_s: &'a [RolloutLogProbs],
    advantages: Vec<f64>,
    tokens: f64,
    prepared: Option<Prepared>,
    options: &'a StepOptions,
}

/// What the forward saw of one token.
struct Seen {
    log_theta: RowLogProbs,
    lag: LagRatio,
    numeric: Discrepancy,
}

/// Some rollouts, gone through forward and backward.
struct Pass {
    micro: Micro,
    log_s: Vec<RowLogProbs>,
    loss: f64,
    seen: Vec<Seen>,
    gradients: Gradients,
}

/// What the whole batch showed.
struct Tally {
    loss: f64,
    terms: Statistics,
    lags: Vec<Vec<LagRatio>>,
    numeric: Vec<Discrepancy>,
}

impl Qwen3Trainer {
    /// One update with the mean over all sampled tokens of the batch of
    ///
    /// ```text
    /// -A [ sg(w_a) log p_a - sum_v sg(c_v) log p_v ]        A = R - mean R of the group
    /// ```
    ///
    /// `log_s` are the scores at the version that drew each segment. The weights before the update stay as a snapshot.
    ///
    /// # Errors
    /// An undeclared version, scores of another batch, an advantage, a ratio, a loss or a gradient that is no finite
    /// number; with a tail on p_s also a version that is not live. Weights, moments and version are then as they were.
    pub fn step(
        &mut self,
        scored: &ScoredBatch,
        log_s: &[RolloutLogProbs],
        options: &StepOptions,
    ) -> TrainResult<StepReport> {
        let step = self.prepared(Step::new(scored, log_s, options)?)?;
        let (tally, gradients) = self.differentiate(&step)?;
        if !tally.loss.is_finite() {
            return Err(TrainError::Loss(tally.loss));
        }
        gradients.norm()?;
        let copy = self.model.with_weights(self.model.weights().snapshot()?)?;
        let gradient_norm = self.update(&gradients, step.rate())?;
        let before = self.version;
        self.snapshots.insert(before, copy);
        self.version = before.next();
        let ess = step.ess(&tally.lags);
        let shape = RatioShape::of(&tally.lags, &tally.numeric, options.horizon);
        Ok(StepReport {
            before,
            after: self.version,
            loss: tally.loss,
            gradient_norm,
            terms: TermReport { shape, ..tally.terms.report() },
            ess,
        })
    }

    /// The gradient a step would take, without taking it.
    ///
    /// # Errors
    /// As [`Qwen3Trainer::step`].
    pub fn gradient_of(
        &self,
        scored: &ScoredBatch,
        log_s: &[RolloutLogProbs],
        options: &StepOptions,
    ) -> TrainResult<(f64, Gradients)> {
        let (tally, gradients) = self.differentiate(&self.prepared(Step::new(scored, log_s, options)?)?)?;
        Ok((tally.loss, gradients))
    }

    /// One update at `rate` times the learning rate, which is as it was afterwards.
    fn update(&mut self, gradients: &Gradients, rate: f64) -> TrainResult<f64> {
        let rule = self.optimiser.rule;
        self.optimiser.rule.lr *= rate;
        let norm = self.optimiser.update(self.model.weights(), gradients);
        self.optimiser.rule = rule;
        norm
    }

    /// Looks at the whole batch where the rule weighs a token by more than its own position: one more forward then gives
    /// log p_theta, the same one to the last bit.
    fn prepared<'a>(&self, mut step: Step<'a>) -> TrainResult<Step<'a>> {
        let Rule::Method(method) = step.options.rule else { return Ok(step) };
        let own = match method.needs_batch() {
            true => Some(self.score(step.batch, self.version)?.rollouts),
            false => None,
        };
        // Without a look at theta the weights are not read; the counts behind the coefficients are the same.
        let batch = step.columns(own.as_deref().unwrap_or(step.log_s))?;
        step.prepared = Some(method.prepare(&batch).map_err(TrainError::Method)?);
        Ok(step)
    }

    fn differentiate(&self, step: &Step<'_>) -> TrainResult<(Tally, Gradients)> {
        let mut gradients = Gradients::zeros(self.model.weights());
        let lags = vec![Vec::new(); step.batch.rollouts().len()];
        let mut tally = Tally { loss: 0.0, terms: Statistics::default(), lags, numeric: Vec::new() };
        let ranges = passes::ranges(step.batch, self.settings.tokens_per_pass);
        self.lanes.run(
            &ranges,
            |range| self.pass(step, range),
            |pass| {
                gradients.merge(&pass.gradients)?;
                tally.loss += pass.loss;
                for index in 0..pass.seen.len() {
                    tally.add(step, &pass, index);
                }
                Ok(())
            },
        )?;
        Ok((tally, gradients))
    }

    /// Forward and backward of some rollouts.
    fn pass(&self, step: &Step<'_>, (start, end): (usize, usize)) -> TrainResult<Pass> {
        let mut micro = Micro::new(step.batch, start..end)?;
        let older = self.older_sides(step, &mut micro)?;
        let log_s: Vec<RowLogProbs> = micro.at.iter().map(|at| step.log_s(*at)).collect();
        let objective = |index: usize, log_theta| step.weigh(&micro, index, (log_theta, &log_s[index]));
        let tokens = Tokens { rows: &micro.ids, asked: &micro.asked, older: &older };
        let mut gradients = Gradients::zeros(self.model.weights());
        let bytes = self.settings.logits_bytes;
        let (loss, seen) = backward(&self.model, bytes, (&tokens, objective), &mut gradients)?;
        Ok(Pass { micro, log_s, loss, seen, gradients })
    }

    /// The forwards under the sampler's weights, where the rule needs p_s on entries that are not known. The step's own
    /// forward serves where those are the weights now.
    fn older_sides(&self, step: &Step<'_>, micro: &mut Micro) -> TrainResult<Vec<Option<Side>>> {
        if !step.options.rule.dense_tail() {
            return Ok(Vec::new());
        }
        let partial = micro.asked.iter().zip(&micro.at).filter(|(asked, _)| !asked.support.is_exact());
        let mut versions: Vec<WeightVersion> = partial.filter_map(|(_, at)| step.version(*at)).collect();
        versions.sort_unstable();
        versions.dedup();
        let side = |version: &WeightVersion| match *version == self.version {
            true => Ok(None),
            false => self.side(self.at(*version)?, micro).map(Some),
        };
        let sides = versions.iter().map(side).collect::<TrainResult<_>>()?;
        for (asked, at) in micro.asked.iter_mut().zip(&micro.at).filter(|(asked, _)| !asked.support.is_exact()) {
            asked.sampler = step.version(*at).and_then(|version| versions.binary_search(&version).ok());
        }
        Ok(sides)
    }
}

impl<'a> Step<'a> {
    fn new(scored: &'a ScoredBatch, log_s: &'a [RolloutLogProbs], options: &'a StepOptions) -> TrainResult<Self> {
        let batch = scored.batch();
        versions(batch)?;
        check_scores(batch, log_s)?;
        let advantages = scored.advantages();
        for (rollout, &advantage) in batch.rollouts().iter().zip(&advantages) {
            if !advantage.is_finite() {
                return Err(TrainError::Advantage { rollout: rollout.id(), advantage });
            }
        }
        let tokens = batch.tokens() as f64;
        Ok(Self { batch, log_s, advantages, tokens, prepared: None, options })
    }

    /// Factor of the learning rate.
    fn rate(&self) -> f64 {
        self.prepared.as_ref().map_or(1.0, |prepared| prepared.rate)
    }

    /// The drawn tokens of the batch as the rivals read them, under `log_theta`.
    fn columns(&self, log_theta: &[RolloutLogProbs]) -> TrainResult<rivals::Batch> {
        let of = |scores: &RolloutLogProbs| -> Vec<f64> {
            scores.iter().flat_map(|segment| &segment.log_p_sampled).map(|&log_p| f64::from(log_p)).collect()
        };
        let rollouts = self.batch.rollouts().iter().zip(log_theta).zip(self.log_s).zip(&self.advantages);
        let columns: Vec<_> = rollouts
            .map(|(((rollout, theta), s), &advantage)| {
                let rows = rollout.segments().iter().flat_map(|segment| segment.behavior.rows());
                let log_q: Vec<f64> = rows.map(|support| support.sampled().log_q).collect();
                let n = log_q.len();
                (of(theta), of(s), log_q, vec![advantage; n], vec![true; n])
            })
            .collect();
        let sequences: Vec<rivals::Sequence<'_>> = columns
            .iter()
            .map(|(log_theta, log_s, log_q, advantages, mask)| rivals::Sequence {
                log_theta,
                log_s,
                log_q,
                advantages,
                mask,
            })
            .collect();
        rivals::Batch::new(&sequences).map_err(|error| TrainError::Method(error.into()))
    }

    /// Index of a token in its answer.
    fn token(&self, at: At) -> usize {
        let before = &self.batch.rollouts()[at.rollout].segments()[..at.segment];
        before.iter().map(|segment| segment.behavior.len()).sum::<usize>() + at.position
    }

    fn version(&self, at: At) -> Option<WeightVersion> {
        self.batch.rollouts()[at.rollout].segments()[at.segment].stamp.version()
    }

    fn log_s(&self, at: At) -> RowLogProbs {
        let behavior = &self.batch.rollouts()[at.rollout].segments()[at.segment].behavior;
        self.log_s[at.rollout][at.segment].row(behavior, at.position)
    }

    /// `(w, c)` of one token, with the share of the batch's mean that it has.
    fn weigh(
        &self,
        micro: &Micro,
        index: usize,
        (log_theta, log_s): (RowLogProbs, &RowLogProbs),
    ) -> TrainResult<Weighed<Seen>> {
        let asked = &micro.asked[index];
        let position = Position { support: &asked.support, log_s, log_theta: &log_theta };
        let place = asked.place;
        let at = micro.at[index];
        let advantage = self.advantages[at.rollout];
        let (correction, share) = match (self.options.rule, &self.prepared) {
            (Rule::Method(method), Some(prepared)) => {
                let token = self.token(at);
                let weight = prepared.w.as_ref().map(|w| w[at.rollout][token]);
                let correction = method.weigh(&position, advantage, weight);
                let correction = correction.map_err(|source| TrainError::Correct { place, source })?;
                (correction, prepared.coefficients[at.rollout][token])
            }
            (rule, _) => {
                let correction = weigh(&position, &rule);
                (correction.map_err(|source| TrainError::Weigh { place, source })?, self.tokens.recip())
            }
        };
        let (lag, numeric) = position.decompose().map_err(TrainError::ratio(asked.place))?;
        Ok(Weighed { correction, advantage: advantage * share, seen: Seen { log_theta, lag, numeric } })
    }

    /// ESS of the answers drawn at one version, by version; an answer of several versions is in none.
    fn ess(&self, lags: &[Vec<LagRatio>]) -> Vec<(WeightVersion, EssReport)> {
        let mut by_version = BTreeMap::<WeightVersion, Vec<Vec<LagRatio>>>::new();
        for (rollout, lags) in self.batch.rollouts().iter().zip(lags) {
            let mut versions = rollout.segments().iter().map(|segment| segment.stamp.version());
            if let Some(Some(first)) = versions.next()
                && versions.all(|version| version == Some(first))
            {
                by_version.entry(first).or_default().push(lags.clone());
            }
        }
        let horizon = self.options.horizon;
        by_version.into_iter().filter_map(|(version, lags)| Some((version, EssReport::of(&lags, horizon)?))).collect()
    }
}

impl Tally {
    fn add(&mut self, step: &Step<'_>, pass: &Pass, index: usize) {
        let (micro, log_s) = (&pass.micro, &pass.log_s[index]);
        let Seen { log_theta, lag, numeric } = &pass.seen[index];
        self.terms.push(&Position { support: &micro.asked[index].support, log_s, log_theta }, *lag, *numeric);
        if step.options.rule.lag_clip().is_some_and(|clip| clip.is_active(*lag)) {
            self.terms.count_clipped();
        }
        self.lags[micro.at[index].rollout].push(*lag);
        self.numeric.push(*numeric);
    }
}

fn check_scores(batch: &Batch, log_s: &[RolloutLogProbs]) -> TrainResult<()> {
    let count = |what, found, expected, owner: String| match found == expected {
        true => Ok(()),
        false => Err(TrainError::Scored { what, found, expected, owner }),
    };
    count("rollouts", log_s.len(), batch.rollouts().len(), "batch".into())?;
    for (rollout, scores) in batch.rollouts().iter().zip(log_s) {
        let id = rollout.id();
        count("segments", scores.len(), rollout.segments().len(), format!("rollout {id}"))?;
        for (segment, (part, scores)) in rollout.segments().iter().zip(scores).enumerate() {
            let wrong = |source| TrainError::Score { rollout: id, segment, source };
            scores.check(&part.behavior).map_err(wrong)?;
        }
    }
    Ok(())
}

/// Rows that go through the model, the positions whose loss is asked for, and the sampler's sides for them: `None` is the
/// side of the forward itself.
pub(crate) struct Tokens<'a> {
    pub(crate) rows: &'a [Vec<u32>],
    pub(crate) asked: &'a [head::Asked],
    pub(crate) older: &'a [Option<Side>],
}

/// Adds the gradient of the summed losses: the head's own by [`head::backward`], everything below it by candle.
pub(crate) fn backward<X: Send + Sync>(
    model: &Qwen3,
    logits_bytes: usize,
    (tokens, objective): (&Tokens<'_>, impl Fn(usize, RowLogProbs) -> TrainResult<Weighed<X>> + Sync),
    gradients: &mut Gradients,
) -> TrainResult<(f64, Vec<X>)> {
    let name = head_name(model.config().tied);
    let hidden: Tensor = model.hidden_packed(&ids(tokens.rows), crate::Pass::Train)?;
    let now = Side::new(model, &hidden, logits_bytes)?;
    let sampler: Vec<Side> = tokens.older.iter().map(|side| side.as_ref().unwrap_or(&now).clone()).collect();
    let sides = Sides { now: &now, sampler: &sampler };
    let head = head::backward(sides, tokens.asked, objective, gradients.one_mut(name)?)?;
    if let Some(of_hidden) = &head.hidden {
        let below = head::loss_of(&hidden, head.loss, of_hidden)?.backward()?;
        gradients.add(model.weights(), &below, if model.config().tied { "" } else { name })?;
    }
    Ok((head.loss, head.seen))
}
