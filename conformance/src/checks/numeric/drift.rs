//! The numeric term does not grow along the answer.

use super::{rows, size_of};
use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::question,
    difference,
    draw::{self, Shape},
    faults::report as faults,
    figure,
    obstacle::Obstacle,
    target::Target,
};
use lockstep_core::ports::PortError;

/// Answers are this many times as long as elsewhere.
const LONGER: u32 = 4;
/// Lengths of the prompts of random ids, and prompts of each.
const LENGTHS: [u32; 4] = [8, 24, 56, 104];
const PROMPTS: u32 = 40;
/// Rank correlation with the position, in standard errors, that is no accident.
const ERRORS: f64 = 6.0;
/// Growth from the first third to the last that matters.
const GROWTH: f64 = 2.0;

/// `numeric.drift`.
pub const DRIFT: Check = Check {
    id: "numeric.drift",
    demand: "the numeric term does not grow with the position, in an answer and in a prompt",
    cost: |target| {
        let prompts = u64::from(PROMPTS) * LENGTHS.len() as u64;
        draw::cost(&target.ask, 1, LONGER * target.ask.max_new_tokens) + prompts
    },
    false_alarm: FalseAlarm {
        probability: 2e-9,
        why: "two rank correlations with the position, each red at six standard errors",
    },
    explain: include_str!("../../../explain/numeric_drift.md"),
    cases: &["vllm-project/vime#64", "verl-project/verl#7519", "NVIDIA-NeMo/RL#4018"],
    fault: faults::COARSE_ROTARY,
    extra_faults: &[faults::LATE_NOISE],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let target = question::listing(target);
    let shape = Shape { question: 0xd41f, answers: 1, max_new_tokens: LONGER * target.ask.max_new_tokens };
    let (_, rows) = rows(&target, shape).await?;
    let answers = Trend::of(rows.iter().map(|row| (row.at.position, size_of(row))).collect());
    let largest = difference::over_supports(rows.iter());
    let mut evidence = format!(
        "{} tokens to position {}: {answers}; largest {:.1e} at rollout {} token {}",
        rows.len(),
        answers.last,
        largest.max_abs,
        largest.at.rollout,
        largest.at.position,
    );
    let mut trends = vec![answers];
    if let Some(prompts) = by_length(&target).await? {
        evidence.push_str(&format!("; prompts of {} to {} random ids: {prompts}", LENGTHS[0], prompts.last));
        trends.push(prompts);
    }
    let floor = target.numeric.tolerance().mean_abs / 20.0;
    evidence.push_str(&format!(" (red above {ERRORS:.0} standard errors, {GROWTH:.0} times and {floor:.0e})"));
    let grows = trends.iter().any(|trend| trend.grows(floor));
    Ok(Finding::of(!grows, evidence).with(figure::by_position(&rows, size_of)))
}

/// The term after prompts of random ids, by their length: the same contents everywhere, other positions alone. `None` where nothing
/// can be asked anew, or the sampler refuses such prompts.
async fn by_length(target: &Target) -> Result<Option<Trend>, Obstacle> {
    if target.recorded.is_some() {
        return Ok(None);
    }
    let most = LENGTHS[LENGTHS.len() - 1];
    let mut prompts = question::random_prompts(&target.ask, PROMPTS * LENGTHS.len() as u32, most);
    let lengths = LENGTHS.iter().flat_map(|&length| [length; PROMPTS as usize]);
    prompts.iter_mut().zip(lengths).for_each(|(prompt, length)| prompt.truncate(length as usize));
    let plan = target.ask.plan(&prompts, Shape { question: 0xd420, answers: 1, max_new_tokens: 1 })?;
    let batch = match draw::answer(target, plan).await {
        Err(Obstacle::Port { source: PortError::Refused(_), .. }) => return Ok(None),
        answered => answered?,
    };
    let scored = draw::score(target.scorer()?.as_ref(), &batch, draw::version_of(&batch)?).await?;
    let rows = difference::rows(&batch, &scored).filter(|row| difference::has_choice(&row.support));
    let sizes: Vec<(usize, f64)> = rows.map(|row| (prompts[row.at.rollout].len(), size_of(&row))).collect();
    Ok((!sizes.is_empty()).then(|| Trend::of(sizes)))
}

/// Sizes by position.
#[derive(Debug, Clone, Copy)]
struct Trend {
    /// The last position.
    last: usize,
    /// Mean size in the first third of the positions.
    early: f64,
    /// In the last third.
    late: f64,
    /// Rank correlation with the position, in standard errors.
    errors: f64,
}

impl Trend {
    fn of(sizes: Vec<(usize, f64)>) -> Self {
        let last = sizes.iter().map(|&(position, _)| position).max().unwrap_or(0);
        let mean = |part: &dyn Fn(usize) -> bool| {
            let own: Vec<f64> = sizes.iter().filter(|(position, _)| part(*position)).map(|&(_, size)| size).collect();
            own.iter().sum::<f64>() / own.len().max(1) as f64
        };
        let (early, late) = (mean(&|position| 3 * position <= last), mean(&|position| 3 * position >= 2 * last));
        let errors = rank_correlation(&sizes) * (sizes.len() as f64 - 1.0).max(0.0).sqrt();
        Self { last, early, late, errors }
    }

    fn grows(&self, floor: f64) -> bool {
        self.errors > ERRORS && self.late > GROWTH * self.early && self.late > floor
    }
}

impl std::fmt::Display for Trend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { early, late, errors, .. } = self;
        write!(
            f,
            "mean abs {early:.1e} in the first third, {late:.1e} in the last, rank correlation {errors:.1} standard errors"
        )
    }
}

/// Spearman's rank correlation of size and position, ties sharing their mean rank.
fn rank_correlation(sizes: &[(usize, f64)]) -> f64 {
    let positions = ranks(&sizes.iter().map(|&(position, _)| position as f64).collect::<Vec<_>>());
    let sizes = ranks(&sizes.iter().map(|&(_, size)| size).collect::<Vec<_>>());
    let mean = (sizes.len() as f64 - 1.0) / 2.0;
    let sum =
        |f: &dyn Fn(f64, f64) -> f64| positions.iter().zip(&sizes).map(|(&a, &b)| f(a - mean, b - mean)).sum::<f64>();
    let (ab, aa, bb) = (sum(&|a, b| a * b), sum(&|a, _| a * a), sum(&|_, b| b * b));
    if aa * bb > 0.0 { ab / (aa * bb).sqrt() } else { 0.0 }
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    while start < order.len() {
        let value = values[order[start]];
        let tied = order[start..].iter().take_while(|&&at| values[at] == value).count();
        for &at in &order[start..start + tied] {
            ranks[at] = start as f64 + (tied as f64 - 1.0) / 2.0;
        }
        start += tied;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::ranks;

    #[test]
    fn ties_share_their_mean_rank() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [2.5, 0.0, 2.5, 1.0]);
    }
}
