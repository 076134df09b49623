//! Tokens come as often as the report says.

use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::recorded,
    draw::{self, Shape},
    faults::sampler as faults,
    figure::Figure,
    frequency::{self, Draws},
    obstacle::Obstacle,
    target::Target,
};
use lockstep_core::{Batch, Rollout, TokenId};
use std::collections::BTreeMap;

/// The frequency test is red below this p.
pub const SMALLEST_P: f64 = 1e-6;

/// Largest accepted mean total variation between the reports of one prefix.
pub const LARGEST_SPREAD: f64 = 0.25;

/// Cells in the picture.
const CELLS: usize = 24;

/// `distribution.drawn`.
pub const DRAWN: Check = Check {
    id: "distribution.drawn",
    demand: "tokens are drawn as often as the report says",
    cost: |target| {
        draw::cost(&target.ask, 2, target.ask.max_new_tokens) + draw::cost(&target.ask, per_prompt(target), 1)
    },
    false_alarm: FalseAlarm {
        probability: SMALLEST_P,
        why: "chi-square approximation of the G-test, cells of at least 5 expected draws, red below p = 1e-6",
    },
    explain: include_str!("../../../explain/distribution_drawn.md"),
    cases: &["sgl-project/sglang#36630", "deepseek-ai/DeepSpec#31", "huggingface/trl#7269"],
    fault: faults::WIDE_REPORT,
    extra_faults: &[faults::MOST_LIKELY_DRAWN, faults::DRAWN_SHARPER, faults::TAIL_NEVER_DRAWN],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    if let Some(batch) = &target.recorded {
        return recorded::drawn(batch);
    }
    let shape = Shape { question: 0xd1, answers: 2, max_new_tokens: target.ask.max_new_tokens };
    let batch = draw::sample(target, shape).await?;
    frequency_test(target, &batch).await
}

fn per_prompt(target: &Target) -> u32 {
    (target.ask.draws / target.ask.prompts.len().max(1) as u32).max(1)
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
async fn frequency_test(target: &Target, answered: &Batch) -> Result<Finding, Obstacle> {
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
    let evidence = format!(
        "{} draws at {} prefixes: G {:.1} on {} degrees of freedom, p {:.1e}, spread of reports {spread:.3}",
        batch.rollouts().len(),
        prefixes.len(),
        found.statistic,
        found.freedom,
        found.p
    );
    let met = found.p >= SMALLEST_P && spread <= LARGEST_SPREAD;
    Ok(Finding::of(met, evidence).with(cells(&prefixes)))
}

/// The largest cells, with their prefix and their id.
fn cells(prefixes: &[Draws]) -> Figure {
    let named = prefixes.iter().enumerate().flat_map(|(prefix, draws)| {
        let name = move |id: Option<TokenId>| match id {
            Some(id) => format!("prefix {prefix} id {id}"),
            None => format!("prefix {prefix} rest"),
        };
        draws.cells().map(move |(id, cell)| (name(id), cell.expected, cell.observed))
    });
    let mut cells: Vec<(String, f64, f64)> = named.collect();
    cells.sort_by(|a, b| b.1.total_cmp(&a.1));
    cells.truncate(CELLS);
    Figure::Cells { title: "draws expected and seen".into(), cells }
}
