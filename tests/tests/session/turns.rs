//! Prompts of a conversation, turn after turn; beside them what encoding the history again would have made of them.

use crate::{
    conversation::{IM_END, all, answer, answered, called, commit, ids, result, said, turn, user},
    qwen3,
};
use lockstep::session::{Ask, Conversation, Finding, Key, SessionSpan, Sessions, Settings, drifts};
use lockstep_core::TokenId;
use serde_json::{Value, json};

fn sessions() -> Sessions {
    Sessions::new(qwen3::qwen3(), Settings::default())
}

/// What a client that keeps text sends next: everything rendered again.
fn rendered_again(sessions: &Sessions, messages: &[Value]) -> Vec<TokenId> {
    let rendered = sessions.model().render(Conversation::new(messages, &[]), Ask::Answer);
    rendered.unwrap_or_else(|error| panic!("{error}")).ids
}

/// rllm-org/rllm#272, huggingface/trl#5224, prime-rl#1334.
#[test]
fn a_turn_continues_the_exact_ids_of_the_last() {
    let sessions = sessions();
    let sampled = ids(&[53122, 316, 151645]);
    let (first, messages) = answered(&sessions, "a", &[user("How are you?")], (sampled.clone(), said(" Pantom")));
    assert_eq!(first.prompt, ids(&[151644, 872, 198, 4340, 525, 498, 30, 151645, 198, 151644, 77091, 198]));
    let messages = [messages, vec![user("What is your name?")]].concat();
    let second = turn(&sessions, "a", &messages);
    let new = ids(&[198, 151644, 872, 198, 3838, 374, 697, 829, 30, 151645, 198, 151644, 77091, 198]);
    assert_eq!(second.prompt, [first.prompt.clone(), sampled, new].concat());
    assert_eq!(second.known, first.prompt.len() + 3);
    let twin = rendered_again(&sessions, &messages);
    assert!(twin.starts_with(&first.prompt));
    assert_eq!(twin[first.prompt.len()..][..2], ids(&[393, 30002]), "the twin drifts");
}

/// prime-rl#1334: the template writes an empty think block before the last answer, and takes it away again.
#[test]
fn an_empty_think_block_is_neither_written_nor_removed() {
    let sessions = sessions();
    let good = sessions.model().encode("I am good!").unwrap();
    let sampled = [good, vec![IM_END]].concat();
    let (first, messages) = answered(&sessions, "a", &[user("How are you?")], (sampled, said("I am good!")));
    let closed = sessions.model().render(Conversation::new(&messages, &[]), Ask::Nothing).unwrap();
    assert!(closed.text.contains("<think>\n\n</think>\n\nI am good!"), "the twin holds what was never sampled");
    let second = turn(&sessions, "a", &[messages, vec![user("What is your name?")]].concat());
    assert!(!second.prompt.contains(&TokenId(151667)));
    assert!(second.prompt.starts_with(&all(&sessions, "a")));
    assert!(!second.prompt.starts_with(&closed.ids[..closed.ids.len() - 1]), "the twin's prefix assert fires");
    assert_eq!(first.prompt.len() + 4 + 1, second.known);
}

/// verl-project/verl#6501, #3720: an answer ends with `<|im_end|>`, and the template's new line after it is owed.
#[test]
fn the_new_line_after_a_turns_end_is_there() {
    let sessions = sessions();
    let text = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
    let sampled = [sessions.model().encode(text).unwrap(), vec![IM_END]].concat();
    let shown = called("get_weather", "{\"city\": \"Paris\"}");
    let (first, messages) = answered(&sessions, "a", &[user("Weather?")], (sampled.clone(), shown));
    let messages = [messages, vec![result("20")]].concat();
    let second = turn(&sessions, "a", &messages);
    let suffix = &second.prompt[second.known..];
    let tool = "\n<|im_start|>user\n<tool_response>\n20\n</tool_response><|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(suffix, sessions.model().encode(tool).unwrap());
    assert_eq!(suffix[0], TokenId(198));
    let twin = [first.prompt, sampled, sessions.model().encode(tool.trim_start()).unwrap()].concat();
    let ends = |ids: &[TokenId]| ids.windows(2).filter(|pair| pair[0] == IM_END && pair[1] != TokenId(198)).count();
    assert_eq!((ends(&second.prompt), ends(&twin)), (0, 1), "the twin lacks the new line");
}

#[test]
fn an_answer_cut_by_length_gets_the_turns_end_it_lacks() {
    let sessions = sessions();
    let cut = ids(&[39, 83722]);
    let (first, messages) = answered(&sessions, "a", &[user("Hi")], (cut.clone(), said("HAVING")));
    let next = turn(&sessions, "a", &[messages.clone(), vec![user("Go on")]].concat());
    let suffix = &next.prompt[first.prompt.len() + cut.len()..];
    assert_eq!(suffix[..3], ids(&[151645, 198, 151644]));
    assert_eq!(next.findings, []);
    // An engine told to ignore the stop token goes on to write the new line itself.
    let whole = ids(&[39, 83722, 151645, 198]);
    let (_, messages) = answered(&sessions, "b", &[user("Hi")], (whole, said("HAVING")));
    let next = turn(&sessions, "b", &[messages, vec![user("Go on")]].concat());
    assert_eq!(next.prompt[next.known - 2..][..3], ids(&[151645, 198, 151644]));
    // Another stop token stays, and the template's own follows.
    let (_, messages) = answered(&sessions, "c", &[user("Hi")], (ids(&[39, 151643]), said("H")));
    let next = turn(&sessions, "c", &[messages, vec![user("Go on")]].concat());
    assert_eq!(next.prompt[next.known - 1..][..3], ids(&[151643, 151645, 198]));
    assert_eq!(next.findings, [Finding::OtherStop { token: TokenId(151643) }]);
}

/// NVIDIA-NeMo/labs-molt#20: `full[len(prefix):]` of a template that rewrites.
#[test]
fn what_is_new_is_never_cut_out_by_length() {
    let sessions = sessions();
    let model = sessions.model();
    let text = "<think>\nHm.\n</think>\n\nI am good!";
    let sampled = [model.encode(text).unwrap(), vec![IM_END]].concat();
    let shown = json!({"role": "assistant", "content": "I am good!", "reasoning_content": "Hm."});
    let (first, messages) = answered(&sessions, "a", &[user("How are you?")], (sampled.clone(), shown));
    let messages = [messages, vec![user("And?")]].concat();
    let second = turn(&sessions, "a", &messages);
    let expected = "\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(second.prompt[second.known..], model.encode(expected).unwrap());
    let full = rendered_again(&sessions, &messages);
    let prefix = first.prompt.len() + sampled.len();
    let twin = model.decode(full.get(prefix..).unwrap_or_default(), lockstep::session::Show::ALL).unwrap();
    assert_ne!(twin, expected, "the twin's delta starts elsewhere");
}

/// THUDM/slime#2213: what the generation prompt opened is part of the history, and no seam merges.
#[test]
fn a_seam_never_merges() {
    let sessions = sessions();
    let (start, answer) = (ids(&[77091, 198]), ids(&[271, 13048, 151645]));
    let (first, messages) = answered(&sessions, "a", &[user("Hi")], (answer.clone(), said("\n\nHi")));
    assert!(first.prompt.ends_with(&start));
    let next = turn(&sessions, "a", &[messages.clone(), vec![user("\n\nSo?")]].concat());
    assert!(next.prompt.starts_with(&[first.prompt.clone(), answer].concat()));
    let twin = sessions.model().encode("assistant\n\n\nHi").unwrap();
    assert_eq!(twin, ids(&[77091, 1406, 13048]), "the twin merges");
}

#[test]
fn an_opened_think_block_stays_in_the_history() {
    let sessions = sessions();
    let variables = json!({"enable_thinking": false});
    let conversation = |messages: &[Value]| {
        let conversation = Conversation { variables: variables.as_object(), ..Conversation::new(messages, &[]) };
        sessions.extend(Key::Session("a"), conversation).unwrap()
    };
    let first = conversation(&[user("Hi")]);
    assert!(first.prompt.ends_with(&ids(&[151667, 271, 151668, 271])));
    let shown = said("Hi");
    commit(&sessions, &first, ids(&[13048, 151645]), shown.clone());
    let messages = [user("Hi"), shown, user("So?")];
    let second = conversation(&messages);
    assert!(second.prompt.starts_with(&[first.prompt, ids(&[13048, 151645, 198])].concat()));
    let twin = rendered_again(&sessions, &messages);
    assert!(!twin.contains(&TokenId(151667)), "the twin's history lost what the engine saw");
}

/// smg-project/smg#1836: arguments as the model wrote them, not as a serialiser would.
#[test]
fn the_spaces_of_sampled_json_stay() {
    let sessions = sessions();
    for arguments in [r#"{"folder":"tmp"}"#, r#"{"folder": "tmp"}"#] {
        let text = format!("<tool_call>\n{{\"name\": \"ls\", \"arguments\": {arguments}}}\n</tool_call>");
        let sampled = [sessions.model().encode(&text).unwrap(), vec![IM_END]].concat();
        let sent_back = r#"{"folder":"tmp"}"#;
        let first = turn(&sessions, arguments, &[user("ls")]);
        commit(&sessions, &first, sampled.clone(), called("ls", arguments));
        let messages = [user("ls"), called("ls", sent_back), result("a")];
        let next = turn(&sessions, arguments, &messages);
        assert!(next.prompt.starts_with(&[first.prompt, sampled.clone()].concat()));
        let twin = rendered_again(&sessions, &messages);
        assert_eq!(next.prompt == twin, arguments.contains(": "), "the twin writes spaces that were not sampled");
    }
}

/// ai-dynamo/dynamo#8630: two ids, one text that is not a text.
#[test]
fn ids_of_broken_characters_stay_apart() {
    let sessions = sessions();
    for id in [94, 95] {
        let name = id.to_string();
        let sampled = ids(&[id, 151645]);
        let (first, messages) = answered(&sessions, &name, &[user("Hi")], (sampled.clone(), said("\u{fffd}")));
        let messages = [messages, vec![user("What?")]].concat();
        let next = turn(&sessions, &name, &messages);
        assert_eq!(next.prompt[first.prompt.len()..][..2], sampled);
        let twin = rendered_again(&sessions, &messages);
        assert_eq!(twin[first.prompt.len()], TokenId(5691), "the twin made both the same id");
    }
}

/// Ids of the padded vocabulary have no text at all.
#[test]
fn padded_ids_stay() {
    let sessions = sessions();
    let sampled = ids(&[151_669, 39, 151_935, 151_645]);
    let shown = said("<|unknown:151669|>H<|unknown:151935|>");
    let (first, messages) = answered(&sessions, "a", &[user("Hi")], (sampled.clone(), shown));
    let messages = [messages, vec![user("What?")]].concat();
    let next = turn(&sessions, "a", &messages);
    assert_eq!(next.prompt[first.prompt.len()..][..4], sampled);
    assert!(rendered_again(&sessions, &messages).iter().all(|id| id.0 < 151_669), "the twin lost them");
    let outside = sessions.commit(&next, &answer(ids(&[5, 151_936]), said("x"))).unwrap_err();
    assert_eq!(outside.to_string(), "token 151936 at position 1 is outside the model's vocabulary of 151936");
}

/// microsoft/agent-lightning#44: an engine that gives no ids.
#[test]
fn an_answer_without_ids_is_refused() {
    let sessions = sessions();
    let first = turn(&sessions, "a", &[user("Hi")]);
    let refused = sessions.commit(&first, &answer(vec![], said("Hello"))).unwrap_err().to_string();
    assert_eq!(refused, "session a: the answer has no token ids, and they are never made from its text");
    assert!(sessions.is_empty());
}

/// NVIDIA-NeMo/Gym#1787, RL#1337: a tool conversation of 48 turns is contiguous, unknown fields and all.
#[test]
fn forty_eight_tool_turns_are_contiguous() {
    let sessions = sessions();
    let model = sessions.model();
    let mut messages = vec![user("Go")];
    let (mut known, mut twin_broke) = (Vec::new(), 0);
    for number in 0..48 {
        let text = format!(
            "<think>\nStep {number}.\n</think>\n\n<tool_call>\n{{\n  \"name\": \"f\",\n  \"arguments\": {{\n    \"n\": {number}\n  }}\n}}\n</tool_call>"
        );
        let sampled = [model.encode(&text).unwrap(), vec![IM_END]].concat();
        let mut shown = called("f", &format!("{{\n    \"n\": {number}\n  }}"));
        shown["reasoning_content"] = json!(format!("Step {number}."));
        let next = turn(&sessions, "a", &messages);
        assert!(next.prompt.starts_with(&known), "turn {number}");
        twin_broke += usize::from(!rendered_again(&sessions, &messages).starts_with(&known));
        commit(&sessions, &next, sampled.clone(), shown.clone());
        known = [next.prompt, sampled].concat();
        shown["unknown_field"] = json!({"kept": number});
        messages.extend([shown, result(&format!("{number}\n</think>"))]);
    }
    assert_eq!(all(&sessions, "a"), known);
    assert_eq!(twin_broke, 47, "the twin breaks at every turn that has a history");
}

#[test]
fn spans_say_what_was_sampled() {
    let sessions = sessions();
    let sampled = ids(&[53122, 316, 151645]);
    let (first, messages) = answered(&sessions, "a", &[user("Hi")], (sampled.clone(), said(" Pantom")));
    let (second, _) = answered(&sessions, "a", &[messages, vec![user("So?")]].concat(), (ids(&[39]), said("H")));
    let spans = sessions.spans("a").unwrap();
    let new = second.prompt[second.known..].to_vec();
    let expected = [
        SessionSpan::Observed(first.prompt),
        SessionSpan::Sampled(sampled),
        SessionSpan::Observed(new),
        SessionSpan::Sampled(ids(&[39])),
    ];
    assert_eq!(spans, expected);
    let drift = drifts(sessions.model(), &all(&sessions, "a"), &all(&sessions, "a")).unwrap();
    assert_eq!(drift, []);
}
