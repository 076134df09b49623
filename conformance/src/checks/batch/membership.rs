//! Fix 3: what was dispatched together is trained on together.

use crate::{
    check::{Check, FalseAlarm, Finding, Verdict},
    faults::queue as faults,
    obstacle::{AtPort, Obstacle},
    target::Target,
};
use lockstep_core::{RolloutId, ports::QueueEntry};
use std::collections::BTreeMap;

/// `batch.membership`.
pub const MEMBERSHIP: Check = Check {
    id: "batch.membership",
    demand: "every batch trained on is one dispatched plan, whole, once, in dispatch order, whatever its lengths and rewards",
    cost: |_| 0,
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/batch_membership.md"),
    cases: &[
        "thinking-machines-lab/tinker-cookbook#822",
        "NVIDIA-NeMo/RL#3665",
        "PrimeIntellect-ai/prime-rl#2960",
        "areal-project/AReaL#450",
        "verl-project/verl-recipe#125",
        "THUDM/slime#2092",
    ],
    fault: faults::FIRST_FINISHED,
    extra_faults: &[
        faults::AGED_OUT,
        faults::FILTERED,
        faults::TRAINED_TWICE,
        faults::CUT_SHORT,
        faults::GROUP_CANCELLED,
        faults::RESAMPLED,
    ],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let queue = target.queue()?;
    let generated = queue.generated().await.at("queue")?;
    let consumed = queue.consumed().await.at("queue")?;
    if consumed.iter().all(Vec::is_empty) {
        let reason = format!("{} rollouts were generated, none was trained on", generated.len());
        return Err(Obstacle::Unclear(reason));
    }
    Ok(judge(&by_plan(&generated), &consumed).into())
}

/// The plans in dispatch order, each with its rollouts in dispatch order.
fn by_plan(generated: &[QueueEntry]) -> Vec<Vec<QueueEntry>> {
    let mut places = BTreeMap::new();
    let mut plans = Vec::<Vec<QueueEntry>>::new();
    for entry in generated {
        let place = *places.entry(entry.rollout.plan).or_insert(plans.len());
        if place == plans.len() {
            plans.push(vec![]);
        }
        plans[place].push(*entry);
    }
    plans
}

fn judge(plans: &[Vec<QueueEntry>], consumed: &[Vec<QueueEntry>]) -> Verdict {
    let trained: usize = consumed.iter().map(Vec::len).sum();
    let (made, used) =
        (mean_length(plans.iter().take(consumed.len()).flatten()), mean_length(consumed.iter().flatten()));
    let sizes = format!(
        "{} batches of {} plans, {trained} rollouts, mean length dispatched {made:.2}, trained {used:.2}",
        consumed.len(),
        plans.len()
    );
    let broken: Vec<String> =
        consumed.iter().enumerate().filter_map(|(at, batch)| broken(at, batch, plans.get(at))).collect();
    match broken.first() {
        None => Verdict::Pass(sizes),
        Some(first) => Verdict::Fail(format!("{first}; {} of {sizes} are not their plan", broken.len())),
    }
}

/// How a batch differs from its plan.
fn broken(at: usize, batch: &[QueueEntry], plan: Option<&Vec<QueueEntry>>) -> Option<String> {
    let Some(plan) = plan else { return Some(format!("batch {at} has no plan")) };
    if batch == &plan[..] {
        return None;
    }
    let ids = |entries: &[QueueEntry]| entries.iter().map(|entry| entry.rollout).collect::<Vec<RolloutId>>();
    let (trained, planned) = (ids(batch), ids(plan));
    let missing: Vec<&QueueEntry> = plan.iter().filter(|entry| !trained.contains(&entry.rollout)).collect();
    let foreign = trained.iter().filter(|id| !planned.contains(id)).count();
    if let Some(first) = missing.first() {
        let length = missing.iter().map(|entry| entry.length).max().unwrap_or(0);
        return Some(format!(
            "batch {at} lacks {} of {} rollouts of its plan, the first is {}, the longest has {length} tokens; {foreign} \
             are of another",
            missing.len(),
            plan.len(),
            first.rollout
        ));
    }
    if trained.len() != planned.len() {
        return Some(format!("batch {at} has {} entries for {} rollouts", trained.len(), planned.len()));
    }
    let other = batch.iter().zip(plan).find(|(trained, planned)| trained != planned);
    other.map(|(trained, planned)| {
        let (id, length) = (trained.rollout, trained.length);
        format!(
            "batch {at} has {id} of length {length} where {} of length {} was dispatched",
            planned.rollout, planned.length
        )
    })
}

fn mean_length<'a>(entries: impl Iterator<Item = &'a QueueEntry>) -> f64 {
    let (sum, count) = entries.fold((0.0, 0.0), |(sum, count), entry| (sum + f64::from(entry.length), count + 1.0));
    if count == 0.0 { 0.0 } else { sum / count }
}
