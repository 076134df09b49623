//! Fix 2: the ids that go in are the ids conditioned on, and the ids that come out are the ids trained on.

use crate::{
    check::{Check, FalseAlarm, Finding},
    checks::question,
    difference::{self, Difference, Row},
    draw::{self, Shape},
    faults::tokens as faults,
    obstacle::Obstacle,
    target::{Ask, Target},
};
use lockstep_core::{
    Batch, BehaviorDistribution, Delta, Rollout, Support, TokenId, delta::FinishReason, ports::SampleRequest,
    rollout::Request,
};

/// Prompts of random ids.
const PROMPTS: u32 = 6;
/// Ids in each, and in each text that is resumed.
const IDS: u32 = 12;
/// Tokens sampled after each.
const CONTINUED: u32 = 4;

/// `tokens.identity`.
pub const IDENTITY: Check = Check {
    id: "tokens.identity",
    demand: "ids in are the ids conditioned on and ids out are the ids trained on, also where text would round to other ids",
    cost: |target| {
        let prompts = u64::from(PROMPTS) + target.ask.drifting.len() as u64;
        2 * prompts * u64::from(CONTINUED) + draw::cost(&target.ask, 1, target.ask.max_new_tokens)
    },
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/tokens_identity.md"),
    cases: &[
        "rllm-org/rllm#272",
        "huggingface/trl#5224",
        "verl-project/verl#6719",
        "ai-dynamo/dynamo#8630",
        "microsoft/agent-lightning#44",
        "THUDM/slime#2213",
        "verl-project/verl#6501",
        "NVIDIA-NeMo/labs-molt#20",
        "PrimeIntellect-ai/prime-rl#1334",
    ],
    fault: faults::REENCODED_PROMPT,
    extra_faults: &[
        faults::REENCODED_ANSWER,
        faults::SEAM_MERGED,
        faults::TEMPLATE_REWRITTEN,
        faults::NEWLINE_LOST,
        faults::ID_PREPENDED,
    ],
    examine: |target| Box::pin(examine(target)),
};

async fn examine(target: &Target) -> Result<Finding, Obstacle> {
    target.scorer()?;
    let odd = odd_ids(&target.ask);
    let shape = |question, max_new_tokens| Shape { question, answers: 1, max_new_tokens };
    let answers = draw::sample(target, shape(0x71, target.ask.max_new_tokens)).await?;
    let plan = target.ask.plan(&odd, shape(0x72, CONTINUED))?;
    let prompted = draw::answer(target, plan).await?;
    let mut parts =
        vec![("answers", compare(target, &answers).await?), ("odd prompts", compare(target, &prompted).await?)];
    if target.sampler()?.capabilities().resumes {
        parts.push(("resumed", compare(target, &resumed(target, &odd).await?).await?));
    }
    if let Some((name, _)) = parts.iter().find(|(_, found)| found.count == 0) {
        return Err(Obstacle::Unclear(format!("{name}: no token had a choice, so no log-prob shows its prefix")));
    }
    Ok(judge(target, &parts))
}

fn judge(target: &Target, parts: &[(&str, Difference)]) -> Finding {
    let tolerance = target.numeric.tolerance();
    let line = |(name, found): &(&str, Difference)| {
        format!("{name}: {} entries, mean abs {:.1e}, max abs {:.1e}", found.count, found.mean_abs(), found.max_abs)
    };
    let mut evidence = parts.iter().map(line).collect::<Vec<_>>().join("; ");
    if parts.len() < 3 {
        evidence.push_str("; the sampler does not resume");
    }
    evidence.push_str(&format!(" ({} allows {:.0e})", target.numeric, tolerance.max_abs));
    Finding::of(parts.iter().all(|(_, found)| tolerance.holds(found.mean_abs(), found.max_abs)), evidence)
}

/// Id sequences hardly any tokenizer would have written: random ones, and the target's own.
fn odd_ids(ask: &Ask) -> Vec<Vec<TokenId>> {
    let prompt = ask.prompts.first().cloned().unwrap_or_default();
    let drifting = ask.drifting.iter().map(|ids| [&prompt[..], ids].concat());
    question::random_prompts(ask, PROMPTS, IDS).into_iter().chain(drifting).collect()
}

/// Answers to the first prompt whose first tokens are given.
async fn resumed(target: &Target, given: &[Vec<TokenId>]) -> Result<Batch, Obstacle> {
    let ask = &target.ask;
    let prompt = ask.prompts.first().cloned().unwrap_or_default();
    let longest = given.iter().map(Vec::len).max().unwrap_or(0) as u32;
    let shape = Shape { question: 0x73, answers: 1, max_new_tokens: longest + CONTINUED };
    let mut plan = ask.plan(&vec![prompt; given.len()], shape)?;
    let requests = plan.requests().to_vec();
    let ask = |(request, given): (&Request, &Vec<TokenId>)| SampleRequest {
        request: request.clone(),
        resumed: given.clone(),
    };
    let mut deltas = draw::deltas(target, requests.iter().zip(given).map(ask).collect()).await?;
    for (request, given) in requests.into_iter().zip(given) {
        let mut own = deltas.remove(&request.id).unwrap_or_default();
        if let Some(first) = own.first() {
            own.insert(0, as_delta(first, given));
        }
        plan.arrive(Rollout::fold(request, own)?)?;
    }
    Ok(plan.seal()?)
}

/// Tokens that were given, not drawn: singletons, which say nothing of q.
fn as_delta(like: &Delta, given: &[TokenId]) -> Delta {
    let mut behavior = BehaviorDistribution::default();
    given.iter().for_each(|&token| behavior.push(&Support::singleton(token)));
    Delta { start: 0, behavior, finish: None::<FinishReason>, ..like.clone() }
}

/// Reported log q against the trainer's scores of exactly these ids.
async fn compare(target: &Target, batch: &Batch) -> Result<Difference, Obstacle> {
    let scored = draw::score(target.scorer()?.as_ref(), batch, draw::version_of(batch)?).await?;
    let rows: Vec<Row> = difference::rows(batch, &scored).collect();
    Ok(difference::over_supports(rows.iter()))
}
