//! The chat template only appends: what was sampled stays as it was when the conversation goes on.

use crate::{
    check::{Check, FalseAlarm, Finding},
    faults::template as faults,
    obstacle::Obstacle,
    target::Target,
    template::ChatTemplate,
};
use serde_json::{Value, json};

/// Characters shown on either side of a difference.
const SHOWN: usize = 24;

/// `tokens.template`.
pub const TEMPLATE: Check = Check {
    id: "tokens.template",
    demand: "the chat template keeps its prefix over multi-turn tool conversations, and answers as they were sampled",
    cost: |_| 0,
    false_alarm: FalseAlarm::NONE,
    explain: include_str!("../../../explain/tokens_template.md"),
    cases: &[
        "PrimeIntellect-ai/prime-rl#1334",
        "verl-project/verl#6501",
        "NVIDIA-NeMo/labs-molt#20",
        "THUDM/slime#2213",
        "huggingface/trl#6361",
        "verl-project/verl#6854",
        "NVIDIA-NeMo/Gym#1787",
        "verl-project/verl#2165",
    ],
    fault: faults::THINKING_STRIPPED,
    extra_faults: &[faults::EMPTY_THINK, faults::NEWLINE_DROPPED, faults::OPENING_LOST, faults::ANSWER_TRIMMED],
    examine: |target| Box::pin(async { examine(target) }),
};

fn examine(target: &Target) -> Result<Finding, Obstacle> {
    let template = target.template()?.as_ref();
    let (mut broken, mut histories) = (Vec::new(), 0);
    let probes = conversations();
    for (name, messages) in &probes {
        let answers = (0..messages.len()).filter(|&at| messages[at]["role"] == "assistant");
        for at in answers {
            histories += messages.len() - at;
            if let Err(how) = keeps(template, messages, at) {
                broken.push(format!("{name}, answer {at}: {how}"));
            }
        }
    }
    let known = template.known();
    let known = if known.is_empty() { String::new() } else { format!("; known of it: {}", known.join(", ")) };
    let evidence = match broken.first() {
        None => format!(
            "{histories} histories of {} conversations keep every answer and what came before it{known}",
            probes.len()
        ),
        Some(first) => {
            format!("{} answers of {} conversations are written anew; {first}{known}", broken.len(), probes.len())
        }
    };
    Ok(Finding::of(broken.is_empty(), evidence))
}

/// Whether the answer at a place follows its own prompt, word by word, and stays so in every longer history.
fn keeps(template: &dyn ChatTemplate, messages: &[Value], at: usize) -> Result<(), String> {
    let prompt = template.render(&messages[..at], true)?;
    let last = template.render(&messages[..=at], false)?;
    begins(&last, &prompt).map_err(|how| format!("its history does not begin with its prompt: {how}"))?;
    let content = messages[at]["content"].as_str().unwrap_or_default();
    if !last[prompt.len()..].contains(content) {
        return Err(format!("{content:?} is written as {:?}", start(&last[prompt.len()..])));
    }
    for end in at + 2..=messages.len() {
        let later = template.render(&messages[..end], false)?;
        begins(&later, &last).map_err(|how| format!("it changes when message {} follows: {how}", end - 1))?;
    }
    Ok(())
}

fn begins(text: &str, with: &str) -> Result<(), String> {
    if text.starts_with(with) {
        return Ok(());
    }
    let common = text.char_indices().zip(with.chars()).find(|((_, a), b)| a != b).map(|((at, _), _)| at);
    let at = common.unwrap_or_else(|| text.len().min(with.len()));
    Err(format!("{:?} becomes {:?} at character {at}", start(&with[at..]), start(&text[at..])))
}

fn start(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

fn said(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn thought(content: &str) -> Value {
    json!({"role": "assistant", "content": content, "reasoning_content": "It asks for a sum."})
}

fn calling(calls: &[&str]) -> Value {
    let call =
        |id: &&str| json!({"id": id, "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}});
    let calls: Vec<Value> = calls.iter().map(call).collect();
    json!({"role": "assistant", "content": "", "reasoning_content": "A tool adds.", "tool_calls": calls})
}

fn result(id: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "name": "add", "content": "2"})
}

/// Conversations of the kinds in which templates were seen to rewrite.
fn conversations() -> [(&'static str, Vec<Value>); 4] {
    let (user, again) = (said("user", "What is 1 + 1?"), said("user", "And 2 + 2?"));
    [
        (
            "a plain conversation",
            vec![user.clone(), said("assistant", "Two."), again.clone(), said("assistant", " Four.\n"), user.clone()],
        ),
        (
            "an answer with thinking",
            vec![said("system", "Add."), user.clone(), thought("Two."), again.clone(), thought("Four.")],
        ),
        (
            "a tool conversation",
            vec![
                user.clone(),
                calling(&["call00001"]),
                result("call00001"),
                thought("Two."),
                again.clone(),
                said("assistant", "Four."),
            ],
        ),
        (
            "two calls at once",
            vec![
                user,
                calling(&["call00001", "call00002"]),
                result("call00001"),
                result("call00002"),
                said("assistant", "Two."),
                again,
            ],
        ),
    ]
}
