//! An update in the middle of an answer: two runs of tokens, split where the weights changed.

use super::moved::{self, Shown};
use crate::{
    check::{Check, FalseAlarm, Finding, Verdict},
    checks::question,
    difference::{Place, Row},
    draw::{self, Shape},
    faults::update as faults,
    figure::{Figure, Run},
    obstacle::{AtPort, Obstacle},
    target::Target,
    training,
};
use futures_util::{StreamExt, stream::select_all};
use lockstep_core::{Batch, BatchPlan, Delta, Rollout, WeightVersion, delta::KvHistory, ports::SampleRequest};
use std::{collections::BTreeMap, ops::Range};

/// Answers to each prompt that the weights are moved on.
const PROBED: u32 = 4;
/// Answers are this many times as long as elsewhere, so that one is under way when the update comes.
const LONGER: u32 = 8;
/// Tokens looked at on either side of an end of a run.
const EDGE: usize = 3;
/// The change must be this many standard errors of the noise over the whole answers, and over each edge.
const RESOLUTION: f64 = 150.0;
const EDGE_RESOLUTION: f64 = 40.0;
/// An edge belongs to a version when its log-probs stand within this share of it.
const NEAR: f64 = 0.25;
/// Answers to each prompt during which the weights are replaced: the more, the longer a step of all of them takes.
const UNDER_WAY: u32 = 2;
/// Times an update is tried when every answer was complete before it, or none was begun.
const TRIES: u64 = 6;

/// When an update comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// With the first tokens of any answer.
    First,
    /// With the first tokens of every answer, or the end of one.
    Every,
    /// As soon as the answers are asked for.
    Asked,
}

impl Moment {
    fn of(attempt: u64) -> Self {
        [Self::First, Self::Asked, Self::Every][(attempt % 3) as usize]
    }
}

/// `version.update`.
pub const UPDATE: Check = Check {
    id: "version.update",
    demand: "an update in the middle of an answer splits it at the token from which the new weights drew, on a cache of theirs",
    cost: |target| {
        let tried = TRIES * draw::cost(&target.ask, UNDER_WAY, LONGER * target.ask.max_new_tokens);
        tried + draw::cost(&target.ask, PROBED, target.ask.max_new_tokens)
    },
    false_alarm: FalseAlarm {
        probability: 1e-12,
        why: "the threshold lies ten standard errors of the numeric noise from either answer",
    },
    explain: include_str!("../../../explain/version_update.md"),
    cases: &[
        "vllm-project/vllm#54443",
        "inclusionAI/AReaL#1569",
        "sgl-project/sglang#27886",
        "vllm-project/vllm#57970",
        "NVIDIA-NeMo/labs-molt#124",
    ],
    fault: faults::ADMISSION_LABEL,
    extra_faults: &[faults::RACING_LABEL, faults::BOUNDARY_LATE, faults::STALE_KV],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let (trainer, _, _) = (target.trainer()?, target.control()?, target.scorer()?);
    training::needs_snapshots(target)?;
    let target = question::listing(target);
    training::synchronise(&target).await?;
    let answers = Shape { question: 0x0b, answers: PROBED, max_new_tokens: target.ask.max_new_tokens };
    let probe = draw::sample(&target, answers).await?;
    let old = draw::version_of(&probe)?;
    let new = moved::weights(&target, &probe, (old, RESOLUTION), |_| true).await?;
    let mut finding = Err(Obstacle::Unclear("no update was tried".into()));
    for attempt in 0..TRIES {
        training::load(&target, old).await?;
        let batch = updated(&target, (new, Moment::of(attempt)), shape(&target, 0x0c00 + attempt)).await?;
        finding = judge(&target, &batch, (old, new)).await;
        if finding.is_ok() {
            break;
        }
    }
    training::load(&target, new).await?;
    trainer.retain(&[new]).await.at("trainer")?;
    finding
}

fn shape(target: &Target, question: u64) -> Shape {
    Shape { question, answers: UNDER_WAY, max_new_tokens: LONGER * target.ask.max_new_tokens }
}

/// Answers during which the new weights were loaded.
async fn updated(target: &Target, (new, moment): (WeightVersion, Moment), shape: Shape) -> Result<Batch, Obstacle> {
    let published = target.trainer()?.publish(new).await.at("trainer")?;
    let mut plan: BatchPlan = target.ask.plan(&target.ask.prompts, shape)?;
    let requests = plan.requests().to_vec();
    // A call for each prompt: an engine that answers one call after the other still has some to begin when the first ends.
    let mut streams = Vec::new();
    for group in requests.chunk_by(|one, next| one.group == next.group) {
        let fresh = group.iter().map(|request| SampleRequest { request: request.clone(), resumed: vec![] }).collect();
        streams.push(target.sampler()?.generate(fresh).await.at("sampler")?);
    }
    let mut stream = select_all(streams);
    let mut deltas = BTreeMap::<_, Vec<Delta>>::new();
    let mut loaded = moment == Moment::Asked;
    if loaded {
        training::give(target, &published).await?;
    }
    while let Some(delta) = stream.next().await {
        let delta = delta.at("sampler")?;
        let ended = delta.finish.is_some();
        deltas.entry(delta.rollout).or_default().push(delta);
        if !loaded && (moment == Moment::First || ended || deltas.len() == requests.len()) {
            training::give(target, &published).await?;
            loaded = true;
        }
    }
    for request in requests {
        let own = deltas.remove(&request.id).unwrap_or_default();
        plan.arrive(Rollout::fold(request, own)?)?;
    }
    Ok(plan.seal()?)
}

/// What the label of a token says, and whether it stands at an edge of its run; where answers were split, in one of those.
type Labels = BTreeMap<(usize, usize), (Option<WeightVersion>, bool)>;

fn labels(batch: &Batch) -> Labels {
    let mut labels = Labels::new();
    let split = batch.rollouts().iter().any(|answer| runs(answer).len() > 1);
    for (rollout, answer) in batch.rollouts().iter().enumerate() {
        let whole = split && runs(answer).len() == 1;
        for (label, start, end) in runs(answer) {
            for position in start..end {
                // In a split answer the ends of the answer itself show nothing of the split.
                let inner = |at: usize| !split || (at > 0 && at < answer.len());
                let edge = (inner(start) && position < start + EDGE) || (inner(end) && position + EDGE >= end);
                let edge = !whole && edge;
                labels.insert((rollout, position), (label, edge));
            }
        }
    }
    labels
}

/// Runs of tokens with one label.
fn runs(answer: &Rollout) -> Vec<(Option<WeightVersion>, usize, usize)> {
    let (mut runs, mut start) = (Vec::<(Option<WeightVersion>, usize, usize)>::new(), 0);
    for segment in answer.segments() {
        let (label, end) = (segment.stamp.version(), start + segment.behavior.len());
        match runs.last_mut() {
            Some(last) if last.0 == label => last.2 = end,
            _ => runs.push((label, start, end)),
        }
        start = end;
    }
    runs
}

async fn judge(
    target: &Target,
    batch: &Batch,
    (old, new): (WeightVersion, WeightVersion),
) -> Result<Finding, Obstacle> {
    let spans = Figure::Spans {
        title: "weights behind each token, by label".into(),
        answers: batch.rollouts().iter().map(|answer| runs(answer).into_iter().map(run).collect()).collect(),
    };
    let kept = batch.rollouts().iter().flat_map(|answer| answer.segments());
    let stale = kept.filter(|segment| segment.kv == KvHistory::Stale).count();
    if stale > 0 {
        let line = format!("{stale} segments say that they were drawn on a cache of older weights");
        return Ok(Finding::of(false, line).with(spans));
    }
    let scorer = target.scorer()?.as_ref();
    let scores = (draw::score(scorer, batch, old).await?, draw::score(scorer, batch, new).await?);
    let split = batch.rollouts().iter().filter(|answer| runs(answer).len() > 1).count();
    let pairs = moved::pairs(batch, (&scores.0, &scores.1)).collect();
    let verdict = Edges { batch, pairs, labels: labels(batch) }.verdict((old, new), split)?;
    Ok(Finding::from(verdict).with(spans))
}

fn run((label, start, end): (Option<WeightVersion>, usize, usize)) -> Run {
    Run { label: label.map_or_else(|| "undeclared".to_owned(), |version| version.to_string()), start, end }
}

struct Edges<'a> {
    batch: &'a Batch,
    /// The rows that leave a choice, at the old weights and at the new ones.
    pairs: Vec<(Row, Row)>,
    labels: Labels,
}

impl Edges<'_> {
    fn verdict(&self, (old, new): (WeightVersion, WeightVersion), split: usize) -> Result<Verdict, Obstacle> {
        let foreign = self.labels.values().filter(|(label, _)| *label != Some(old) && *label != Some(new)).count();
        if foreign > 0 {
            let all = self.labels.len();
            return Ok(Verdict::Fail(format!("{foreign} of {all} tokens carry neither {old} nor {new}")));
        }
        let (before, after) = (self.shown(old, None), self.shown(new, None));
        let line = |name: WeightVersion, shown: &Shown| {
            format!("{} entries labelled {name} stand {:.2} of the way", shown.change.count, shown.share)
        };
        let evidence = format!(
            "{split} of {} answers were split at an update; at the ends of their runs {}, {} from {old} to {new}",
            self.batch.rollouts().len(),
            line(old, &before),
            line(new, &after)
        );
        let noise = self.noise();
        let clear = |shown: &Shown| moved::errors(&shown.change, noise) > EDGE_RESOLUTION;
        let off = |shown: &Shown, share: f64| clear(shown) && (shown.share - share).abs() > NEAR;
        // Of each answer by itself too: where one alone was under way, the others hide it.
        let alone = |at| off(&self.shown(old, Some(at)), 0.0) || off(&self.shown(new, Some(at)), 1.0);
        let hidden = |(label, end): &(WeightVersion, Shown)| off(end, if *label == old { 0.0 } else { 1.0 });
        let answers = 0..self.batch.rollouts().len();
        let hidden = answers.clone().find_map(|at| Some((at, self.ends(at).into_iter().find(hidden)?)));
        let wrong = hidden.is_some() || off(&before, 0.0) || off(&after, 1.0) || answers.clone().any(alone);
        let hidden = hidden.map(|(at, (label, end))| format!("; of answer {at} an end, {}", line(label, &end)));
        let evidence = evidence + &hidden.unwrap_or_default();
        match (wrong, split, clear(&before) && clear(&after)) {
            (true, _, _) => Ok(Verdict::Fail(evidence)),
            (false, 0, _) => {
                Err(Obstacle::Unclear(format!("{evidence}: no answer was under way when the weights came")))
            }
            (false, _, false) => {
                Err(Obstacle::Unclear(format!("{evidence}: too little beside a noise of {noise:.1e}")))
            }
            (false, _, true) => Ok(Verdict::Pass(evidence)),
        }
    }

    fn label(&self, at: Place) -> (Option<WeightVersion>, bool) {
        self.labels.get(&(at.rollout, at.position)).copied().unwrap_or((None, false))
    }

    /// The edges of one answer, or of all.
    fn shown(&self, version: WeightVersion, answer: Option<usize>) -> Shown {
        let own = |at: Place| answer.is_none_or(|answer| at.rollout == answer);
        Shown::over(self.pairs.iter().filter(|(row, _)| own(row.at) && self.label(row.at) == (Some(version), true)))
    }

    /// The ends of an answer with one label, of several lengths: an update within it that the label hides was before or
    /// after one of them, wherever it was.
    fn ends(&self, answer: usize) -> Vec<(WeightVersion, Shown)> {
        let [(Some(label), _, length)] = runs(&self.batch.rollouts()[answer])[..] else { return Vec::new() };
        let own: Vec<&(Row, Row)> = self.pairs.iter().filter(|(row, _)| row.at.rollout == answer).collect();
        let sizes = std::iter::successors(Some(EDGE), |size| Some(2 * size)).take_while(|&size| size < length);
        let within = |range: Range<usize>| {
            let inside = own.iter().copied().filter(|(row, _)| range.contains(&row.at.position));
            (label, Shown::over(inside))
        };
        sizes.flat_map(|size| [within(0..size), within(length - size..length)]).collect()
    }

    /// Size of the numeric term where each token is scored at its own label, half of the tokens left out: those that are
    /// furthest from it, so that a wrong label is not taken for noise.
    fn noise(&self) -> f64 {
        let mut sizes: Vec<f64> = Vec::new();
        for (old, new) in &self.pairs {
            let residue = |row: &Row| row.scores.log_p_sampled - row.support.sampled().log_q;
            sizes.push(residue(old).abs().min(residue(new).abs()));
        }
        sizes.sort_by(f64::total_cmp);
        sizes.truncate(sizes.len().div_ceil(2));
        2.0 * (sizes.iter().map(|size| size * size).sum::<f64>() / sizes.len().max(1) as f64).sqrt()
    }
}
