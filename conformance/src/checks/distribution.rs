//! Fix 1: the reported distribution is the one tokens are drawn from.

use super::kept::{self, KeptMass};
use crate::{
    check::{Check, FalseAlarm, Fault, Verdict},
    difference::{self, Row},
    draw::{self, Shape},
    faults::sampler as faults,
    frequency::{self, Draws},
    obstacle::Obstacle,
    target::Target,
    tolerance::NumericClass,
};
use async_trait::async_trait;
use lockstep_core::{Batch, Rollout, TokenId, WeightVersion, support::Domain};
use std::collections::BTreeMap;

/// The frequency test is red below this p.
pub const SMALLEST_P: f64 = 1e-6;

/// Largest accepted mean total variation between the reports of one prefix.
pub const LARGEST_SPREAD: f64 = 0.25;

/// Fewer supports than these below top_p show nothing.
const FEWEST_BELOW: usize = 8;

/// `distribution.drawn`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Drawn;

#[async_trait]
impl Check for Drawn {
    fn id(&self) -> &'static str {
        "distribution.drawn"
    }

    fn demand(&self) -> &'static str {
        "the reported support and its log-probs are the distribution each token was drawn from"
    }

    fn cost(&self, target: &Target) -> u64 {
        draw::cost(&target.ask, 2, target.ask.max_new_tokens) + draw::cost(&target.ask, per_prompt(target), 1)
    }

    fn false_alarm(&self) -> FalseAlarm {
        FalseAlarm {
            probability: SMALLEST_P,
            why: "chi-square approximation of the G-test, cells of at least 5 expected draws, red below p = 1e-6",
        }
    }

    fn explain(&self) -> &'static str {
        include_str!("../../explain/distribution_drawn.md")
    }

    fn cases(&self) -> &'static [&'static str] {
        &[
            "huggingface/trl#6789",
            "huggingface/trl#7269",
            "huggingface/trl#4159",
            "sgl-project/sglang#36630",
            "Biohub/esm#360",
            "NVIDIA-NeMo/RL#3497",
        ]
    }

    fn fault(&self) -> Fault {
        faults::WIDE_REPORT
    }

    fn extra_faults(&self) -> Vec<Fault> {
        vec![
            faults::LOG_BASE_10,
            faults::TAIL_CLAIMED,
            faults::CROSSING_DROPPED,
            faults::TEMPERATURE_IGNORED,
            faults::DRAWN_ALONE,
        ]
    }

    async fn examine(&self, target: &Target) -> Result<Verdict, Obstacle> {
        let shape = Shape { question: 0xd1, answers: 2, max_new_tokens: target.ask.max_new_tokens };
        let scorer = target.scorer()?;
        let batch = draw::sample(target, shape).await?;
        let version = draw::version_of(&batch)?;
        let scored = draw::score(scorer.as_ref(), &batch, version).await?;
        let rows: Vec<Row> = difference::rows(&batch, &scored).collect();
        if let Some(fail) = untruncated(target, &rows) {
            return Ok(fail);
        }
        let agreement = agreement(target, &rows);
        let kept = kept_masses(target, &batch, version).await?;
        let frequency = frequency_test(target, &batch).await?;
        let evidence = [agreement.evidence(), kept.evidence(), frequency.evidence()].join("; ");
        Ok(Verdict::of([agreement, kept, frequency].iter().all(Verdict::is_pass), evidence))
    }
}

fn per_prompt(target: &Target) -> u32 {
    (target.ask.draws / target.ask.prompts.len().max(1) as u32).max(1)
}

/// A fail where truncation was asked for, yet q is said to live on the whole vocabulary.
fn untruncated(target: &Target, rows: &[Row]) -> Option<Verdict> {
    let asked = target.ask.truncation;
    let wide = |row: &&Row| matches!(row.support.domain(), Domain::Vocabulary(_));
    let count = rows.iter().filter(wide).count();
    let row = rows.iter().find(wide).filter(|_| !asked.is_none())?;
    let rest = row.support.log_rest().map_or(0.0, f64::exp);
    Some(Verdict::Fail(format!(
        "top_p {} top_k {} min_p {} were asked for, but {count} of {} tokens report a q over the whole vocabulary, the \
         first with {} known ids and a tail of mass {rest:.4}",
        asked.top_p,
        asked.top_k,
        asked.min_p,
        rows.len(),
        row.support.known(),
    )))
}

/// Reported log q against teacher-forced log p_s over the same support.
fn agreement(target: &Target, rows: &[Row]) -> Verdict {
    let found = difference::over_supports(rows.iter());
    let tolerance = target.numeric.tolerance();
    if found.count == 0 {
        return Verdict::Pass(format!("{} tokens, each the only one of its support", rows.len()));
    }
    Verdict::of(
        tolerance.holds(found.mean_abs(), found.max_abs),
        format!(
            "log p_s - log q over {} entries of {} tokens: mean {:.1e}, max abs {:.1e} ({} allows {:.0e})",
            found.count,
            rows.len(),
            found.mean(),
            found.max_abs,
            target.numeric,
            tolerance.max_abs,
        ),
    )
}

/// Masses of the kept sets against top_p. Two rules: each within the slack of the declared format; and, where rounding
/// is small beside the mass of one id, not most of them below top_p, which they are when the crossing id is left out.
async fn kept_masses(target: &Target, batch: &Batch, version: WeightVersion) -> Result<Verdict, Obstacle> {
    let asked = target.ask.truncation;
    let top_p_alone = asked.top_p < 1.0 && asked.top_k == 0 && asked.min_p == 0.0;
    if !top_p_alone {
        return Ok(Verdict::Pass("kept mass not held against top_p, which is not the only filter".into()));
    }
    let masses = kept::masses(target, batch, version).await?;
    let slack = target.numeric.mass();
    let count = |rule: &dyn Fn(&KeptMass) -> bool| masses.iter().filter(|kept| rule(kept)).count();
    let small = count(&|kept| kept.mass < asked.top_p - slack);
    let large = count(&|kept| kept.mass - kept.smallest >= asked.top_p + slack);
    let below = count(&|kept| kept.mass < asked.top_p);
    let full = count(&|kept| kept.mass >= asked.top_p && kept.smallest < kept.mass);
    let most_below = target.numeric <= NumericClass::Bf16 && below > full.max(FEWEST_BELOW);
    let least = masses.iter().map(|kept: &KeptMass| kept.mass).fold(1.0, f64::min);
    Ok(Verdict::of(
        small + large == 0 && !most_below,
        format!(
            "kept mass at least {least:.4} of top_p {}, {below} of {} supports below it, {small} too small, {large} too \
             large",
            asked.top_p,
            masses.len()
        ),
    ))
}

/// Of each group of answers a prefix at which a draw has a choice, where any has: where two answers part, whatever was
/// reported there, else where the most ids were kept.
fn open_prefixes(batch: &Batch) -> Vec<Vec<TokenId>> {
    let mut groups = BTreeMap::<u32, Vec<&Rollout>>::new();
    batch.rollouts().iter().for_each(|rollout| groups.entry(rollout.group()).or_default().push(rollout));
    groups.values().map(|answers| parting(answers).unwrap_or_else(|| widest(answers))).collect()
}

/// Prompt and common tokens of the first two answers that go on differently.
fn parting(answers: &[&Rollout]) -> Option<Vec<TokenId>> {
    let first: Vec<TokenId> = answers.first()?.sampled().collect();
    answers.iter().skip(1).find_map(|other| {
        let common = first.iter().zip(other.sampled()).take_while(|(one, two)| *one == two).count();
        let parted = common < first.len() && common < other.len();
        parted.then(|| [other.prompt(), &first[..common]].concat())
    })
}

/// Prompt and tokens before the largest support.
fn widest(answers: &[&Rollout]) -> Vec<TokenId> {
    let positions = answers.iter().flat_map(|answer| {
        let rows = answer.segments().iter().flat_map(|segment| segment.behavior.rows());
        rows.enumerate().map(move |(at, support)| (support.ids().len(), *answer, at))
    });
    let widest = positions.reduce(|best, next| if next.0 > best.0 { next } else { best });
    widest.map_or_else(Vec::new, |(_, answer, at)| {
        answer.prompt().iter().copied().chain(answer.sampled().take(at)).collect()
    })
}

/// Draws at fixed prefixes against what was reported for them.
async fn frequency_test(target: &Target, answered: &Batch) -> Result<Verdict, Obstacle> {
    let answers = per_prompt(target);
    let prompts = open_prefixes(answered);
    let plan = target.ask.plan(&prompts, Shape { question: 0xd2, answers, max_new_tokens: 1 })?;
    let batch = draw::answer(target, plan).await?;
    let mut prefixes = vec![Draws::default(); prompts.len()];
    for rollout in batch.rollouts() {
        let first = rollout.segments().first().and_then(|segment| segment.behavior.rows().next());
        let first = first.ok_or_else(|| Obstacle::Unclear(format!("rollout {} has no token", rollout.id())))?;
        prefixes[rollout.group() as usize].push(&first);
    }
    let found = frequency::g_test(&prefixes);
    let spread = prefixes.iter().map(Draws::spread).fold(0.0, f64::max);
    if found.freedom == 0 && spread <= LARGEST_SPREAD {
        let reason = format!("all {} prefixes leave one token to draw, so frequencies show nothing", prefixes.len());
        return Err(Obstacle::Unclear(reason));
    }
    Ok(Verdict::of(
        found.p >= SMALLEST_P && spread <= LARGEST_SPREAD,
        format!(
            "{} draws at {} prefixes: G {:.1} on {} degrees of freedom, p {:.1e}, spread of reports {spread:.3}",
            batch.rollouts().len(),
            prefixes.len(),
            found.statistic,
            found.freedom,
            found.p
        ),
    ))
}
