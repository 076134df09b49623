//! Faults between an answer and the turn after it.

use super::tampered::asking_and_reporting;
use crate::{check::Fault, target::Target};
use lockstep_core::{RolloutId, TokenId, ports::SampleRequest, rollout::Request};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Loses whole answers.
pub const ANSWER_LOST: Fault = Fault {
    id: "answer-lost",
    does: "reads a later turn without the tokens it decoded before: they are missing from attention",
    break_target: |target| forgetting(target, |answer| answer),
};

/// Loses the last token of an answer.
pub const LAST_TOKEN_LOST: Fault = Fault {
    id: "last-token-lost",
    does: "reads a later turn without the last token of the answer before, which it drew and never fed back",
    break_target: |target| forgetting(target, |_| 1),
};

/// What was answered: prompt and tokens.
type Answers = BTreeMap<RolloutId, (Vec<TokenId>, Vec<TokenId>)>;

fn locked(answers: &Mutex<Answers>) -> MutexGuard<'_, Answers> {
    answers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The target without the last `lost` tokens of an answer, of as many as it has, where a prompt goes on from it.
fn forgetting(target: Target, lost: fn(usize) -> usize) -> Target {
    let answers = Arc::new(Mutex::new(Answers::new()));
    let seen = answers.clone();
    let before = move |asked: &SampleRequest| {
        let prompt = without(&asked.request.prompt, &locked(&answers), lost);
        Ok(SampleRequest { request: Request { prompt, ..asked.request.clone() }, resumed: asked.resumed.clone() })
    };
    asking_and_reporting(target, before, move |support, at| {
        let request = &at.call.request.request;
        let mut answers = locked(&seen);
        let (_, tokens) = answers.entry(request.id).or_insert_with(|| (request.prompt.clone(), vec![]));
        tokens.push(support.sampled().token);
        Ok(support.clone())
    })
}

fn without(prompt: &[TokenId], answers: &Answers, lost: fn(usize) -> usize) -> Vec<TokenId> {
    let before = answers.values().find(|(start, tokens)| {
        let whole = start.len() + tokens.len();
        prompt.len() > whole && prompt.starts_with(start) && prompt[start.len()..whole] == tokens[..]
    });
    let Some((start, tokens)) = before else { return prompt.to_vec() };
    let whole = start.len() + tokens.len();
    [&prompt[..whole - lost(tokens.len())], &prompt[whole..]].concat()
}
