//! The lag term: exactly zero at equal versions, and taken against the version that drew the tokens ever after.

use crate::{
    check::{Check, FalseAlarm, Finding, Verdict},
    difference::{self, Difference},
    draw::{self, Shape},
    faults::lag as faults,
    obstacle::{AtPort, Obstacle},
    target::Target,
    training,
};
use lockstep_core::{
    Batch,
    dlc::{EssReport, LagRatio, Rule, decompose, decompose::TokenLogProbs, ess::DEFAULT_HORIZON},
    ports::StepReport,
    score::{ScoredAt, select},
};

const ANSWERS: u32 = 4;
/// At most this many updates to move the log-probs visibly.
const STEPS: u32 = 8;
/// Largest accepted distance of a reported ESS from that of the same lags.
const ESS_ATOL: f64 = 0.02;
/// Rounding of a log-prob to f32; a change below it is none.
const SMALLEST_CHANGE: f64 = 1e-5;

/// `lag.zero`.
pub const ZERO: Check = Check {
    id: "lag.zero",
    demand: "the lag is zero at equal versions, and after an update it is measured against the version that drew the tokens",
    cost: |target| draw::cost(&target.ask, ANSWERS, target.ask.max_new_tokens),
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/lag_zero.md"),
    cases: &["inclusionAI/AReaL#201", "radixark/miles#1829", "THUDM/slime#179"],
    fault: faults::SCORED_NOW,
    extra_faults: &[faults::RATIO_OF_ONE, faults::ROUNDED_SNAPSHOT, faults::UNREPEATABLE_SCORES],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let (trainer, scorer) = (target.trainer()?, target.scorer()?.as_ref());
    training::needs_snapshots(target)?;
    let now = training::synchronise(target).await?;
    let shape = Shape { question: 0x1a, answers: ANSWERS, max_new_tokens: target.ask.max_new_tokens };
    let batch = draw::sample(target, shape).await?;
    let version = draw::version_of(&batch)?;
    if version != now {
        let reason = format!("the sampler draws at {version}, the trainer is at {now}, and nothing makes them equal");
        return Err(Obstacle::Unclear(reason));
    }
    let first = draw::score(scorer, &batch, version).await?;
    let again = draw::score(scorer, &batch, version).await?;
    let log_s = select(&batch, std::slice::from_ref(&first))?;
    let fresh = training::step(target, &batch, &log_s, Rule::dlc()).await?;
    let after = draw::score(scorer, &batch, version).await?;
    let log_s = select(&batch, std::slice::from_ref(&after))?;
    let mut moved = draw::score(scorer, &batch, fresh.after).await?;
    let mut stale = training::step(target, &batch, &log_s, Rule::dlc()).await?;
    for _ in 2..STEPS {
        if Lags::of(&batch, &first, &moved)?.sizes.max_abs > visible(target) {
            break;
        }
        moved = draw::score(scorer, &batch, stale.after).await?;
        stale = training::step(target, &batch, &log_s, Rule::dlc()).await?;
    }
    trainer.retain(&[version]).await.at("trainer")?;
    let found = Findings { batch: &batch, scores: [&first, &again, &after, &moved], fresh: &fresh, stale: &stale };
    found.judge(target).map(Finding::from)
}

/// What was measured.
struct Findings<'a> {
    batch: &'a Batch,
    /// At the stamped version twice, there once more after an update, and at the version after it.
    scores: [&'a ScoredAt; 4],
    /// The step at equal versions.
    fresh: &'a StepReport,
    /// The step one update later, on the same batch.
    stale: &'a StepReport,
}

impl Findings<'_> {
    fn judge(&self, target: &Target) -> Result<Verdict, Obstacle> {
        let [first, again, after, moved] = self.scores;
        let noise = difference::between(self.batch, first, again).max_abs;
        let drift = difference::between(self.batch, first, after).max_abs;
        let allowed = allowed(target);
        let zero = self.fresh.terms.lag.max_abs;
        let (lag, expected) = (self.stale.terms.lag, Lags::of(self.batch, first, moved)?);
        let change = expected.sizes.max_abs;
        let equal = zero <= allowed && noise <= allowed;
        if equal && drift <= allowed && change <= visible(target) {
            let steps = format!("{} to {}", self.fresh.before, self.stale.before);
            let reason = format!("updates from {steps} moved no token by more than {change:.1e}, noise {noise:.1e}");
            return Err(Obstacle::Unclear(reason));
        }
        let slack = SMALLEST_CHANGE + 2.0 * allowed;
        let near = lag.max_abs > 0.0 && (lag.max_abs - change).abs() <= slack;
        let ess = self.ess(&expected);
        let evidence = format!(
            "equal versions: lag max abs {zero:.1e}, repeat noise {noise:.1e} (allowed {allowed:.1e}); {} scored again \
             after the update: moved {drift:.1e}; stale batch: lag mean {:.2e}, max abs {:.2e}, expected {:.2e} and \
             {change:.2e}; ESS {}",
            first.version,
            lag.mean,
            lag.max_abs,
            expected.sizes.mean(),
            ess.evidence(),
        );
        Ok(Verdict::of(equal && drift <= allowed && near && ess.is_pass(), evidence))
    }

    /// The reported ESS of the stale step against the one of the same lags.
    fn ess(&self, expected: &Lags) -> Verdict {
        let version = self.scores[0].version;
        let found = self.stale.ess_at(version);
        let Some((found, expected)) = found.zip(EssReport::of(&expected.by_answer, DEFAULT_HORIZON)) else {
            return Verdict::Fail(format!("not reported for {version}"));
        };
        let pairs = [(found.token, expected.token), (found.sequence, expected.sequence)];
        Verdict::of(
            pairs.iter().all(|(found, expected)| (found - expected).abs() <= ESS_ATOL),
            format!(
                "token {:.4}, sequence {:.4}, expected {:.4} and {:.4}",
                found.token, found.sequence, expected.token, expected.sequence
            ),
        )
    }
}

/// 0 where the trainer repeats itself bit by bit, else what its number format explains.
fn allowed(target: &Target) -> f64 {
    if target.exact_lag { 0.0 } else { target.numeric.tolerance().max_abs }
}

/// A change of log-probs that is large enough to be told from none.
fn visible(target: &Target) -> f64 {
    SMALLEST_CHANGE.max(4.0 * allowed(target))
}

/// The lag the stale step should report, from the scores.
struct Lags {
    sizes: Difference,
    by_answer: Vec<Vec<LagRatio>>,
}

impl Lags {
    fn of(batch: &Batch, at_s: &ScoredAt, at_theta: &ScoredAt) -> Result<Self, Obstacle> {
        let mut found = Self { sizes: Difference::default(), by_answer: vec![vec![]; batch.rollouts().len()] };
        for (s, theta) in difference::rows(batch, at_s).zip(difference::rows(batch, at_theta)) {
            let (log_s, log_theta) = (s.scores.log_p_sampled, theta.scores.log_p_sampled);
            let (lag, _) = decompose(TokenLogProbs { log_theta, log_s, sampled: s.support.sampled() })
                .map_err(|error| Obstacle::Unclear(error.to_string()))?;
            found.sizes.push(lag.log(), s.at);
            found.by_answer[s.at.rollout].push(lag);
        }
        Ok(found)
    }
}
