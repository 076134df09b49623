//! What a run left in its directory, read back and held against itself.

use lockstep::{
    ledger::{self, Record},
    metrics::StepMetrics,
};
use lockstep_core::{Delta, Rollout, RolloutId, SamplerProfile, rollout::Request};
use std::{collections::BTreeMap, path::Path, sync::Arc};

/// What the ledger says of one plan.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// What was asked, in dispatch order.
    pub(crate) requests: Vec<Request>,
    /// What came, in dispatch order; empty until the plan is sealed.
    pub(crate) rollouts: Vec<Rollout>,
    /// The rewards in the order they came.
    pub(crate) rewards: Vec<(RolloutId, f64)>,
    /// What was trained on.
    pub(crate) consumed: Vec<RolloutId>,
    deltas: BTreeMap<RolloutId, Vec<Delta>>,
}

/// The lines of `metrics.jsonl` and the plans of the ledger; both are empty where the run did not come that far.
///
/// # Panics
/// A line that is not whole, a ledger that does not read, a plan whose consumed ids are not the opened ones, a metrics
/// line whose plan was not sealed, rewarded and consumed.
pub(crate) fn recorded(out: &Path) -> (Vec<StepMetrics>, Vec<Plan>) {
    let metrics = lines(&out.join("metrics.jsonl"));
    let records = if out.join("ledger").exists() {
        ledger::read(&out.join("ledger")).unwrap_or_else(|error| panic!("{error}"))
    } else {
        vec![]
    };
    let plans = plans(records);
    plans.iter().filter(|plan| !plan.consumed.is_empty()).for_each(consumed_what_was_opened);
    for (number, line) in metrics.iter().enumerate() {
        agrees(line, number as u64, &plans[number]);
    }
    (metrics, plans)
}

fn lines(path: &Path) -> Vec<StepMetrics> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    assert!(text.is_empty() || text.ends_with('\n'), "{} ends inside a line", path.display());
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

fn plans(records: Vec<Record>) -> Vec<Plan> {
    let (mut plans, mut profiles) = (Vec::<Plan>::new(), Vec::<Arc<SamplerProfile>>::new());
    for record in records {
        match record {
            Record::Profile(profile) => profiles.push(Arc::new(profile)),
            Record::PlanOpened { plan, requests } => {
                assert_eq!(plan, plans.len() as u64, "plans are opened in order, and once");
                plans.push(Plan { requests, ..Plan::default() });
            }
            Record::Delta(delta) => {
                let profile = profiles[delta.profile as usize].clone();
                let delta = delta.delta(profile).unwrap_or_else(|error| panic!("{error}"));
                plans[delta.rollout.plan as usize].deltas.entry(delta.rollout).or_default().push(delta);
            }
            Record::PlanSealed { plan } => plans[plan as usize].seal(),
            Record::Reward { rollout, reward } => plans[rollout.plan as usize].reward(rollout, reward),
            Record::Consumed { plan, rollouts, before, after } => {
                assert_eq!(after, before.next());
                plans[plan as usize].consumed = rollouts;
            }
            Record::Resync(resync) => assert_eq!(resync.stamp.version(), Some(resync.weights.version)),
            Record::Arrived { rollout, .. } => assert!(plans[rollout.plan as usize].deltas.contains_key(&rollout)),
            Record::Dispatch { .. } | Record::Sent(_) | Record::Resumed { .. } | Record::Synchronisation(_) => {}
            record @ (Record::RewardFailed { .. }
            | Record::PlanReserved { .. }
            | Record::Session(_)
            | Record::Dispatched(_)
            | Record::Misreported { .. }
            | Record::Trained { .. }) => panic!("not of a demo: {record}"),
        }
    }
    plans
}

impl Plan {
    fn seal(&mut self) {
        let deltas = &mut self.deltas;
        let mut fold =
            |request: &Request| Rollout::fold(request.clone(), deltas.remove(&request.id).unwrap_or_default());
        self.rollouts =
            self.requests.iter().map(|request| fold(request).unwrap_or_else(|error| panic!("{error}"))).collect();
        assert!(self.deltas.is_empty(), "tokens of rollouts nobody asked for: {:?}", self.deltas.keys());
    }

    fn reward(&mut self, rollout: RolloutId, reward: f64) {
        assert!(!self.rollouts.is_empty(), "a reward of {rollout} before its plan was sealed");
        self.rewards.push((rollout, reward));
    }
}

fn consumed_what_was_opened(plan: &Plan) {
    let opened: Vec<RolloutId> = plan.requests.iter().map(|request| request.id).collect();
    let rewarded: Vec<RolloutId> = plan.rewards.iter().map(|(rollout, _)| *rollout).collect();
    let arrived: Vec<RolloutId> = plan.rollouts.iter().map(Rollout::id).collect();
    assert_eq!((&arrived, &rewarded, &plan.consumed), (&opened, &opened, &opened));
}

/// A metrics line says of its plan what the ledger says.
fn agrees(line: &StepMetrics, number: u64, plan: &Plan) {
    assert_eq!((line.step, line.plan, line.rollouts), (number + 1, number, plan.consumed.len()));
    let count = plan.rollouts.len() as f64;
    assert_eq!(line.reward, plan.rewards.iter().map(|(_, reward)| reward).sum::<f64>() / count);
    assert_eq!(line.length, plan.rollouts.iter().map(Rollout::len).sum::<usize>() as f64 / count);
    let mut versions = plan.rollouts.iter().flat_map(Rollout::segments).map(|segment| segment.stamp.version());
    assert!(versions.all(|version| version == Some(line.sampler_version)), "step {}", line.step);
}
