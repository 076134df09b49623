//! An answer as it is told: ids, log-probs, versions, columns, taken from its deltas. Knows no dialect.

use super::{
    ask::{Drawn, Extra},
    refusal::Refusal,
};
use crate::wire::columns;
use base64::{Engine, engine::general_purpose::STANDARD};
use lockstep_core::{
    BehaviorDistribution, Delta, Evidence, FinishReason, Stamp, TokenId, behavior::Columns, delta::KvHistory,
    rollout::Request,
};
use serde::Serialize;
use std::sync::Arc;

/// A complete answer.
#[derive(Debug)]
pub struct Told {
    /// Place among the request's answers.
    pub index: usize,
    /// What was asked.
    pub request: Request,
    /// Its deltas.
    pub deltas: Vec<Arc<Delta>>,
    /// Why it ended.
    pub finish: FinishReason,
}

/// The known entries of one support, most probable first.
pub type Head = Vec<(TokenId, f32)>;

/// A span of tokens with one version.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VersionSpan {
    /// The engine's own label, or our name of the version; absent when undeclared.
    pub version: Option<String>,
    /// First token.
    pub start: usize,
    /// One behind the last token.
    pub end: usize,
    /// How the version is known, and on which cache the tokens were drawn.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub ours: Option<Known>,
}

/// What only we say of a span.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Known {
    /// `undeclared`, `label`, `behavioural` or `digest`.
    pub evidence: &'static str,
    /// `fresh`, `recomputed`, `stale` or `ambiguous`.
    pub kv: &'static str,
}

/// Columns of a behaviour in base64, little-endian: as on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Base64Columns {
    /// u32, `[T]`.
    pub tokens: String,
    /// u32, `[T + 1]`.
    pub offsets: String,
    /// u32, `[N]`.
    pub ids: String,
    /// f32, `[N]`; `-inf` where not known.
    pub log_q: String,
    /// Present unless every row is exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rest: Option<Base64Rest>,
}

/// What exact rows do not need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Base64Rest {
    /// u32, `[T]`.
    pub vocabulary: String,
    /// f32, `[T]`.
    pub log_q_sampled: String,
    /// f32, `[T]`.
    pub log_rest: String,
}

/// Our fields of one answer, or of one piece of it.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
pub struct ExtraFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    rollout_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    behavior: Option<Base64Columns>,
}

impl Told {
    /// Waits for the end of an answer.
    ///
    /// # Errors
    /// An answer that broke off.
    pub async fn wait(mut drawn: Drawn) -> Result<Self, Refusal> {
        let mut deltas = Vec::new();
        while let Some(delta) = drawn.next().await? {
            let finish = delta.finish;
            deltas.push(delta);
            if let Some(finish) = finish {
                return Ok(Self { index: drawn.index, request: drawn.request, deltas, finish });
            }
        }
        let id = drawn.request.id;
        Err(Refusal::unavailable(format!("rollout {id} was given up before its end")).keeping(&[id]))
    }

    /// The sampled ids.
    pub fn tokens(&self) -> Vec<TokenId> {
        self.deltas.iter().flat_map(|delta| delta.behavior.tokens().iter().copied()).collect()
    }

    /// Number of sampled tokens.
    pub fn len(&self) -> usize {
        self.deltas.iter().map(|delta| delta.behavior.len()).sum()
    }

    /// True without tokens; a complete answer never is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The stop id that was sampled and was among those asked for; a stop text leaves none.
    pub fn stop_id(&self) -> Option<TokenId> {
        stop_id(self.finish, &self.request)
    }

    /// log q of every sampled token.
    pub fn log_q(&self) -> Vec<f32> {
        self.deltas.iter().flat_map(|delta| log_q(&delta.behavior)).collect()
    }

    /// The `most` most probable known entries at every position.
    pub fn heads(&self, most: usize) -> Vec<Head> {
        self.deltas.iter().flat_map(|delta| heads(&delta.behavior, most)).collect()
    }

    /// Versions by spans; with our evidence beside each when asked for.
    pub fn versions(&self, ours: bool) -> Vec<VersionSpan> {
        versions(&self.deltas, 0, ours)
    }

    /// Our fields, as far as asked for.
    pub fn extra(&self, extra: &Extra) -> ExtraFields {
        let mut fields = ExtraFields::of(&self.request, extra);
        if extra.behavior {
            let mut whole = BehaviorDistribution::default();
            self.deltas.iter().for_each(|delta| whole.extend(&delta.behavior));
            fields.behavior = Some(base64_columns(&whole));
        }
        fields
    }
}

/// The stop id an answer ended with, if it was one of those asked for.
pub fn stop_id(finish: FinishReason, request: &Request) -> Option<TokenId> {
    match finish {
        FinishReason::Stop(id) if request.params.limits().stop.contains(&id) => Some(id),
        _ => None,
    }
}

/// OpenAI's word for why an answer ended.
pub fn finish_word(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop(_) | FinishReason::StopText => "stop",
        FinishReason::Length => "length",
    }
}

impl ExtraFields {
    /// The rollout's name, when asked for.
    pub fn of(request: &Request, extra: &Extra) -> Self {
        Self { rollout_id: extra.rollout_id.then(|| request.id.to_string()), behavior: None }
    }

    /// The same of one delta.
    pub fn of_delta(request: &Request, delta: &Delta, extra: &Extra) -> Self {
        let behavior = extra.behavior.then(|| base64_columns(&delta.behavior));
        Self { behavior, ..Self::of(request, extra) }
    }
}

/// Versions of some deltas by spans, the first token at `start`.
pub fn versions(deltas: &[Arc<Delta>], start: usize, ours: bool) -> Vec<VersionSpan> {
    let mut spans: Vec<VersionSpan> = Vec::new();
    let mut at = start;
    for delta in deltas {
        let (from, to) = (at, at + delta.behavior.len());
        at = to;
        let known = Known { evidence: evidence(&delta.stamp), kv: kv(delta.kv) };
        let span = VersionSpan { version: label(&delta.stamp), start: from, end: to, ours: ours.then_some(known) };
        match spans.last_mut() {
            Some(last) if last.version == span.version && last.ours == span.ours => last.end = to,
            _ if from == to => {}
            _ => spans.push(span),
        }
    }
    spans
}

/// The engine's own label where it gave one, else our name of the version.
pub fn label(stamp: &Stamp) -> Option<String> {
    match (stamp.evidence(), stamp.version()) {
        (Evidence::Label(label), _) => Some(label.clone()),
        (_, version) => version.map(|version| version.to_string()),
    }
}

fn evidence(stamp: &Stamp) -> &'static str {
    match stamp.evidence() {
        Evidence::Undeclared => "undeclared",
        Evidence::Label(_) => "label",
        Evidence::Behavioural { .. } => "behavioural",
        Evidence::Digest(_) => "digest",
    }
}

fn kv(history: KvHistory) -> &'static str {
    match history {
        KvHistory::Fresh => "fresh",
        KvHistory::Recomputed => "recomputed",
        KvHistory::Stale => "stale",
        KvHistory::Ambiguous => "ambiguous",
    }
}

/// log q of the sampled tokens; exact rows have it among their entries, singletons are certain.
pub fn log_q(behavior: &BehaviorDistribution) -> impl Iterator<Item = f32> + '_ {
    let Columns { tokens, offsets, ids, log_q, rest } = behavior.columns();
    tokens.iter().enumerate().map(move |(row, token)| {
        if let Some(rest) = rest {
            return rest.log_q_sampled[row];
        }
        let (from, to) = (offsets[row] as usize, offsets[row + 1] as usize);
        let at = ids[from..to].iter().position(|id| id == token);
        at.map_or(0.0, |at| log_q[from + at])
    })
}

/// The most probable known entries of every row.
pub fn heads(behavior: &BehaviorDistribution, most: usize) -> impl Iterator<Item = Head> + '_ {
    let Columns { tokens, offsets, ids, log_q, .. } = behavior.columns();
    tokens.iter().enumerate().map(move |(row, &token)| {
        let (from, to) = (offsets[row] as usize, offsets[row + 1] as usize);
        if from == to {
            return vec![(token, 0.0); most.min(1)];
        }
        let entries = ids[from..to].iter().copied().zip(log_q[from..to].iter().copied());
        let mut known: Head = entries.filter(|(_, log_q)| log_q.is_finite()).collect();
        known.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        known.truncate(most);
        known
    })
}

/// Columns in base64.
pub fn base64_columns(behavior: &BehaviorDistribution) -> Base64Columns {
    let Columns { tokens, offsets, ids, log_q, rest } = behavior.columns();
    let encode = |bytes: Vec<u8>| STANDARD.encode(bytes);
    Base64Columns {
        tokens: encode(columns::from_ids(tokens)),
        offsets: encode(columns::from_u32(offsets)),
        ids: encode(columns::from_ids(ids)),
        log_q: encode(columns::from_f32(log_q)),
        rest: rest.as_ref().map(|rest| Base64Rest {
            vocabulary: encode(columns::from_u32(&rest.vocabulary)),
            log_q_sampled: encode(columns::from_f32(&rest.log_q_sampled)),
            log_rest: encode(columns::from_f32(&rest.log_rest)),
        }),
    }
}
