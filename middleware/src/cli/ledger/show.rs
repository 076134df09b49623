//! `lockstep ledger show`: one rollout in words.

use super::{super::print, DONE, Outcome, watch};
use crate::ledger::{Catalogue, PlanState, Record, Records, StoredRollout, export::kv};
use lockstep_core::{Delta, Evidence, FinishReason, RolloutId, SamplerProfile, Stamp, Support, rollout::Request};
use std::{path::Path, sync::Arc};

/// Entries of a support that are shown.
const SHOWN: usize = 8;

pub(super) async fn run(directory: &Path, id: RolloutId, follow: bool) -> Outcome {
    let mut records = Records::of(directory)?;
    let mut profiles = Vec::new();
    if follow {
        // What the catalogue shows is not told again, but deltas to come name their profile by its place.
        for record in records.by_ref() {
            profiles.extend(record?.profile().cloned().map(Arc::new));
        }
    }
    let catalogue = Catalogue::open(directory)?;
    let Some(rollout) = catalogue.rollout(id)? else {
        return Err(format!("rollout {id} is not in {}", directory.display()).into());
    };
    print(&format!("rollout {id}, {}", state(rollout.state)));
    match &rollout.request {
        Some(request) => asked(request),
        None => print("what was asked is not in this ledger"),
    }
    let mut shown = Shown::default();
    rollout.deltas.iter().for_each(|delta| shown.delta(delta));
    let finished = rollout.deltas.last().is_some_and(|delta| delta.finish.is_some());
    closing(&rollout, shown.tokens);
    if follow && !finished {
        watch(records, |record| shown.follow(id, record, &mut profiles)).await?;
    }
    Ok(DONE)
}

fn state(state: PlanState) -> &'static str {
    match state {
        PlanState::Open => "its plan is open",
        PlanState::Sealed => "its plan is sealed",
        PlanState::Consumed => "its plan is consumed",
    }
}

fn asked(request: &Request) {
    let (params, truncation) = (&request.params, request.params.truncation());
    let prompt: Vec<String> = request.prompt.iter().map(ToString::to_string).collect();
    print(&format!("group {}, prompt of {} tokens (observed): {}", request.group, prompt.len(), prompt.join(" ")));
    print(&format!(
        "temperature {}, top_k {}, top_p {}, min_p {}, seed {}, at most {} tokens",
        params.temperature(),
        truncation.top_k,
        truncation.top_p,
        truncation.min_p,
        params.seed(),
        params.limits().max_new_tokens
    ));
}

fn closing(rollout: &StoredRollout, tokens: usize) {
    let finish = rollout.deltas.last().and_then(|delta| delta.finish);
    print(&match finish {
        Some(FinishReason::Stop(token)) => format!("finished after {tokens} tokens by stop token {token}"),
        Some(FinishReason::StopText) => format!("finished after {tokens} tokens by a stop text"),
        Some(FinishReason::Length) => format!("finished after {tokens} tokens by the token limit"),
        None => format!("not finished after {tokens} tokens"),
    });
    if let Some(reward) = rollout.reward {
        print(&format!("reward {reward}"));
    }
}

/// What was printed so far.
#[derive(Default)]
struct Shown {
    tokens: usize,
    /// Where the last segment's tokens come from.
    segment: Option<(Stamp, &'static str, Arc<SamplerProfile>)>,
}

impl Shown {
    /// True when the rollout is finished.
    fn follow(&mut self, id: RolloutId, record: Record, profiles: &mut Vec<Arc<SamplerProfile>>) -> bool {
        match record {
            Record::Profile(profile) => profiles.push(Arc::new(profile)),
            Record::Delta(delta) if delta.rollout == id && delta.start as usize >= self.tokens => {
                let Some(profile) = profiles.get(delta.profile as usize).cloned() else { return false };
                let Ok(delta) = delta.delta(profile) else { return false };
                self.delta(&delta);
                return delta.finish.is_some();
            }
            _ => {}
        }
        false
    }

    fn delta(&mut self, delta: &Delta) {
        let segment = (delta.stamp.clone(), kv(delta.kv), delta.profile.clone());
        if !delta.behavior.is_empty() && self.segment.as_ref() != Some(&segment) {
            let version = segment.0.version().map_or_else(|| "undeclared".to_owned(), |version| version.to_string());
            print(&format!(
                "sampled from token {} on: version {version} ({}), KV cache {}, {} {}",
                self.tokens,
                evidence(segment.0.evidence()),
                segment.1,
                segment.2.engine,
                segment.2.version
            ));
            self.segment = Some(segment);
        }
        for support in delta.behavior.rows() {
            print(&token(self.tokens, &support));
            self.tokens += 1;
        }
    }
}

fn evidence(evidence: &Evidence) -> String {
    match evidence {
        Evidence::Undeclared => "nobody says".into(),
        Evidence::Label(label) => format!("the engine says {label:?}"),
        Evidence::Behavioural { repeat_noise, change } => {
            format!("it behaves so: repeat noise {repeat_noise}, change {change}")
        }
        Evidence::Digest(digest) => format!("digest {digest}"),
    }
}

fn token(position: usize, support: &Support) -> String {
    let sampled = support.sampled();
    let known = support.ids().iter().zip(support.log_q());
    let mut entries: Vec<String> = known.take(SHOWN).map(|(id, log_q)| format!("{id}:{log_q:.4}")).collect();
    if support.ids().len() > entries.len() {
        entries.push("..".into());
    }
    if let Some(rest) = support.log_rest() {
        entries.push(format!("rest:{rest:.4}"));
    }
    let (ids, entries) = (support.ids().len(), entries.join(" "));
    format!("{position:>6}  token {:>7}  log q {:>9.4}  {ids:>4} ids  {entries}", sampled.token, sampled.log_q)
}
