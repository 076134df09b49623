//! The filters keep what the declared order of them keeps.
//!
//! The ids a sampler keeps under top-k alone, with their log-probs, foretell what it keeps when top-p and min-p come on
//! top: so the sampler is held against itself, and needs no trainer. At a temperature below 1 and at one above, because a
//! temperature that comes last makes the nucleus larger at one and smaller at the other.

use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::question::{self, How},
    faults::filters as faults,
    obstacle::Obstacle,
    target::Target,
};
use lockstep_core::{
    Support, TokenId,
    profile::FilterName::{self, MinP, Temperature, TopK, TopP},
    sampling::Truncation,
};

const PROMPTS: u32 = 12;
const LENGTH: u32 = 6;
const TEMPERATURES: [f64; 2] = [0.6, 1.6];
const TOP_P: f64 = 0.8;
const MIN_P: f64 = 0.2;
/// An order explains the sets when this share of them is its own; the rest is rounding at an edge.
const EXPLAINED: f64 = 0.9;
const ORDERS: [[FilterName; 4]; 6] = [
    [TopK, Temperature, TopP, MinP],
    [TopK, Temperature, MinP, TopP],
    [TopK, TopP, Temperature, MinP],
    [TopK, TopP, MinP, Temperature],
    [TopK, MinP, TopP, Temperature],
    [TopK, MinP, Temperature, TopP],
];

/// `distribution.filters`.
pub const FILTERS: Check = Check {
    id: "distribution.filters",
    demand: "temperature, top-k, top-p and min-p are all applied, in the order the engine declares",
    cost: |_| 2 * 4 * u64::from(PROMPTS),
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/distribution_filters.md"),
    cases: &["sgl-project/sglang#36630", "vllm-project/vllm#22387", "Biohub/esm#360"],
    fault: faults::TEMPERATURE_LAST,
    extra_faults: &[faults::MIN_P_IGNORED, faults::TOP_P_IGNORED],
    examine: |target| Box::pin(examine(target)),
};

/// What was kept under some filters, beside what top-k alone kept.
struct Kept {
    temperature: f64,
    top_p: f64,
    min_p: f64,
    listed: Support,
    found: Support,
}

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let declared = target.sampler()?.capabilities().profile.filters.clone();
    let kept = ask(target).await?;
    let share = |order: &[FilterName]| {
        kept.iter().filter(|kept| same(&kept.listed, &kept.found, &kept.foretold(order))).count() as f64
            / kept.len() as f64
    };
    let own = share(&declared);
    let smaller = kept.iter().filter(|kept| !kept.is_wider(&declared)).count();
    let told = format!("{} sets of {} declared as {}", kept.len(), PROMPTS, names(&declared));
    if own >= EXPLAINED {
        return Ok(Finding::of(true, format!("{:.0} % of {told} are what that order keeps", 100.0 * own)));
    }
    if smaller == 0 {
        let note = "the others are larger nuclei: top_p is taken over the whole vocabulary, for which there is no word";
        return Ok(Finding::of(true, format!("{:.0} % of {told} are what that order keeps; {note}", 100.0 * own)));
    }
    let other = ORDERS.iter().find(|order| share(&order[..]) >= EXPLAINED);
    let other = other.map_or_else(|| "no order".to_owned(), |order| names(order));
    Ok(Finding::of(false, format!("{:.0} % of {told} are what that order keeps; {other} explains them", 100.0 * own)))
}

async fn ask(target: &Target) -> Result<Vec<Kept>, Obstacle> {
    let prompts = question::random_prompts(&target.ask, PROMPTS, LENGTH);
    let top_k = question::listed(&target.ask);
    let mut all = Vec::new();
    for (at, temperature) in (0..).zip(TEMPERATURES) {
        let how = |question: u64, top_p, min_p| How {
            question: 0xf100 + 16 * at + question,
            temperature,
            truncation: Truncation { top_k, top_p, min_p },
        };
        let listed = question::first(target, &prompts, how(0, 1.0, 0.0)).await?;
        for (question, (top_p, min_p)) in (1..).zip([(TOP_P, 0.0), (1.0, MIN_P), (TOP_P, MIN_P)]) {
            let found = question::first(target, &prompts, how(question, top_p, min_p)).await?;
            let pairs = listed.iter().cloned().zip(found);
            all.extend(pairs.map(|(listed, found)| Kept { temperature, top_p, min_p, listed, found }));
        }
    }
    Ok(all)
}

fn names(order: &[FilterName]) -> String {
    order.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

impl Kept {
    /// Logits up to a constant, most likely first.
    fn logits(&self) -> Vec<(TokenId, f64)> {
        let known = self.listed.ids().iter().copied().zip(self.listed.log_q());
        let mut entries: Vec<(TokenId, f64)> = known.map(|(id, log_q)| (id, log_q * self.temperature)).collect();
        entries.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        entries
    }

    /// The ids an order of filters keeps of those that top-k keeps.
    fn foretold(&self, order: &[FilterName]) -> Vec<TokenId> {
        let (mut entries, mut divisor) = (self.logits(), 1.0);
        for filter in order {
            match filter {
                Temperature => divisor = self.temperature,
                TopP if self.top_p < 1.0 => entries.truncate(nucleus(&entries, divisor, self.top_p)),
                MinP if self.min_p > 0.0 => {
                    let floor = entries.first().map_or(0.0, |(_, z)| z / divisor + self.min_p.ln());
                    entries.retain(|(_, z)| z / divisor >= floor - 1e-6);
                }
                _ => {}
            }
        }
        entries.into_iter().map(|(id, _)| id).collect()
    }

    /// True where the set is the foretold one, or, with top-p alone, a larger nucleus.
    fn is_wider(&self, order: &[FilterName]) -> bool {
        let foretold = self.foretold(order);
        let larger = self.min_p == 0.0 && foretold.len() < self.found.ids().len();
        let ranked: Vec<TokenId> = self.logits().into_iter().map(|(id, _)| id).take(self.found.ids().len()).collect();
        same(&self.listed, &self.found, &foretold) || (larger && same(&self.listed, &self.found, &ranked))
    }
}

fn nucleus(entries: &[(TokenId, f64)], divisor: f64, top_p: f64) -> usize {
    let max = entries.first().map_or(0.0, |(_, z)| z / divisor);
    let weights: Vec<f64> = entries.iter().map(|(_, z)| (z / divisor - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut before = 0.0;
    let kept = weights.iter().take_while(|weight| {
        let keep = before < top_p * total * (1.0 - 1e-6);
        before += **weight;
        keep
    });
    kept.count().max(1)
}

/// True for sets of the same log-probs: equally likely ids may stand for each other.
fn same(listed: &Support, found: &Support, foretold: &[TokenId]) -> bool {
    let values = |ids: &[TokenId]| -> Option<Vec<f64>> {
        let of = |id: &TokenId| listed.ids().iter().position(|other| other == id).map(|at| listed.log_q()[at]);
        let mut values = ids.iter().map(of).collect::<Option<Vec<f64>>>()?;
        values.sort_by(f64::total_cmp);
        Some(values)
    };
    let (found, foretold) = (values(found.ids()), values(foretold));
    found.zip(foretold).is_some_and(|(found, foretold)| {
        found.len() == foretold.len() && found.iter().zip(&foretold).all(|(a, b)| (a - b).abs() < 1e-4)
    })
}
