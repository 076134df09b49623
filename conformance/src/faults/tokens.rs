//! Faults of ids: text between sampler and trainer.

use super::tampered::{At, reporting};
use crate::{check::Fault, mix::keyed, target::Target};
use async_trait::async_trait;
use futures_util::StreamExt;
use lockstep_core::{
    Delta, RolloutId, SamplingParams, Support, TokenId,
    ports::{DeltaStream, PortError, PortResult, SampleRequest, Sampler, SamplerCapabilities},
    rollout::Request,
    sampling::Limits,
    support::SupportError,
};
use std::{collections::BTreeMap, sync::Arc};

/// Conditions on re-encoded ids.
pub const REENCODED_PROMPT: Fault = Fault {
    id: "reencoded-prompt",
    does: "turns the ids it is given into text and back: about half of all pairs become one other id",
    break_target: |target| reencoding(target, |given, _, table| merged(given, table)),
};

/// Merges ids where two turns meet.
pub const SEAM_MERGED: Fault = Fault {
    id: "seam-merged",
    does: "joins texts before encoding them: the last two ids it is given become one other",
    break_target: |target| {
        reencoding(target, |given, _, table| match given {
            [start @ .., a, b] => [start, &[table.joined(*a, *b)]].concat(),
            _ => given.to_vec(),
        })
    },
};

/// Renders the history anew.
pub const TEMPLATE_REWRITTEN: Fault = Fault {
    id: "template-rewritten",
    does: "renders the conversation anew: two ids in the middle of it become others",
    break_target: |target| {
        reencoding(target, |given, part, table| {
            let (mut ids, middle) = (given.to_vec(), given.len() / 2);
            if part == Part::Prompt && middle + 1 < ids.len() {
                (ids[middle], ids[middle + 1]) = (table.joined(ids[middle], ids[middle + 1]), ids[middle]);
            }
            ids
        })
    },
};

/// Loses an id between turns.
pub const NEWLINE_LOST: Fault = Fault {
    id: "newline-lost",
    does: "loses the id before the last one, as a newline between turns is",
    break_target: |target| {
        reencoding(target, |given, part, _| match given {
            [start @ .., _, last] if part == Part::Prompt => [start, &[*last]].concat(),
            _ => given.to_vec(),
        })
    },
};

/// Adds an id of its own.
pub const ID_PREPENDED: Fault = Fault {
    id: "id-prepended",
    does: "puts a beginning-of-text id of its own before the ids it is given",
    break_target: |target| {
        reencoding(target, |given, part, _| match part {
            Part::Prompt => [&[TokenId(1)], given].concat(),
            Part::Resumed => given.to_vec(),
        })
    },
};

/// Keeps an id that has no token.
pub const PADDED_ID: Fault = Fault {
    id: "padded-id",
    does: "keeps, and now and then draws, an id from the padding of the vocabulary",
    break_target: |target| {
        let beyond = TokenId(target.ask.defined() + 3);
        reporting(target, move |support, _| {
            let Some(&last) = support.ids().last().filter(|_| support.is_exact()) else { return Ok(support.clone()) };
            let rename = |id: TokenId| if id == last { beyond } else { id };
            let ids = support.ids().iter().copied().map(rename).collect();
            Support::exact(rename(support.sampled().token), ids, support.log_q().to_vec())
        })
    },
};

/// Reports re-encoded answers.
pub const REENCODED_ANSWER: Fault = Fault {
    id: "reencoded-answer",
    does: "reports the ids of the re-encoded answer: some tokens become another id of their support",
    break_target: |target| reporting(target, renamed),
};

/// A made-up tokenizer over a vocabulary.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    vocabulary: u32,
}

impl Table {
    fn merges(self, a: TokenId, b: TokenId) -> bool {
        keyed(&[u64::from(a.0), u64::from(b.0)]).is_multiple_of(2)
    }

    /// The id of the text of two.
    fn joined(self, a: TokenId, b: TokenId) -> TokenId {
        let key = keyed(&[u64::from(b.0), u64::from(a.0)]);
        TokenId((key % u64::from(self.vocabulary.max(1))) as u32)
    }
}

fn merged(given: &[TokenId], table: Table) -> Vec<TokenId> {
    let (mut out, mut at) = (Vec::with_capacity(given.len()), 0);
    while at < given.len() {
        match given.get(at + 1) {
            Some(&next) if table.merges(given[at], next) => {
                out.push(table.joined(given[at], next));
                at += 2;
            }
            _ => {
                out.push(given[at]);
                at += 1;
            }
        }
    }
    out
}

fn renamed(support: &Support, at: At<'_>) -> Result<Support, SupportError> {
    let key = keyed(&at.key());
    let own = support.sampled().token;
    let other = support.ids().iter().find(|&&id| id != own);
    match other {
        Some(&token) if support.is_exact() && key.is_multiple_of(2) => {
            Support::exact(token, support.ids().to_vec(), support.log_q().to_vec())
        }
        _ => Ok(support.clone()),
    }
}

/// What is re-encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// The prompt.
    Prompt,
    /// The tokens an answer is resumed from.
    Resumed,
}

type Reencode = fn(&[TokenId], Part, Table) -> Vec<TokenId>;

pub(super) fn reencoding(mut target: Target, reencode: Reencode) -> Target {
    let table = Table { vocabulary: target.ask.vocabulary };
    target.sampler = target.sampler.map(|inner| Arc::new(Reencoding { inner, reencode, table }) as _);
    target
}

struct Reencoding {
    inner: Arc<dyn Sampler>,
    reencode: Reencode,
    table: Table,
}

impl Reencoding {
    /// The same request on other ids, and by how many fewer of them the answer begins.
    fn request(&self, asked: &SampleRequest) -> PortResult<(SampleRequest, u32)> {
        let resumed = (self.reencode)(&asked.resumed, Part::Resumed, self.table);
        let saved = (asked.resumed.len() - resumed.len()) as u32;
        let params = &asked.request.params;
        let limits = Limits { max_new_tokens: params.limits().max_new_tokens - saved, ..params.limits().clone() };
        let params = SamplingParams::new(params.temperature(), *params.truncation(), limits, params.seed())
            .map_err(|error| PortError::Refused(error.to_string()))?;
        let prompt = (self.reencode)(&asked.request.prompt, Part::Prompt, self.table);
        Ok((SampleRequest { request: Request { prompt, params, ..asked.request.clone() }, resumed }, saved))
    }
}

#[async_trait]
impl Sampler for Reencoding {
    fn capabilities(&self) -> SamplerCapabilities {
        self.inner.capabilities()
    }

    async fn generate(&self, requests: Vec<SampleRequest>) -> PortResult<DeltaStream> {
        let (mut reencoded, mut saved) = (Vec::new(), BTreeMap::new());
        for asked in &requests {
            let (request, shorter) = self.request(asked)?;
            saved.insert(asked.request.id, shorter);
            reencoded.push(request);
        }
        let shifted = move |delta: Delta| {
            let start = delta.start + saved.get(&delta.rollout).copied().unwrap_or(0);
            Delta { start, ..delta }
        };
        Ok(Box::pin(self.inner.generate(reencoded).await?.map(move |delta| delta.map(&shifted))))
    }

    async fn cancel(&self, rollouts: &[RolloutId]) -> PortResult<()> {
        self.inner.cancel(rollouts).await
    }
}
