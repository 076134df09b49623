//! Which session a request means, and what becomes of a history that is not the one that was shown.

use crate::{
    conversation::{all, answer, answered, called, commit, ids, result, said, turn, user},
    qwen3,
};
use lockstep::session::{
    Answer, Ask, Benign, Change, Conversation, Finding, Key, Limits, Policy, SessionRecord, Sessions, Settings, Turn,
};
use lockstep_core::{FinishReason, TokenId};
use serde_json::{Value, json};

fn sessions(policy: Policy) -> Sessions {
    Sessions::new(qwen3::qwen3(), Settings { policy, ..Settings::default() })
}

fn by_history(sessions: &Sessions, messages: &[Value]) -> Result<Turn, String> {
    sessions.extend(Key::History, Conversation::new(messages, &[])).map_err(|error| error.to_string())
}

#[test]
fn a_history_finds_its_session() {
    let sessions = sessions(Policy::Keep);
    let first = by_history(&sessions, &[user("Hi")]).unwrap();
    let other = by_history(&sessions, &[user("Hi")]).unwrap();
    assert_ne!(first.session, other.session);
    commit(&sessions, &first, ids(&[53122, 316, 151645]), said(" Pantom"));
    commit(&sessions, &other, ids(&[39, 83722, 151645]), said("HAVING"));
    for (session, text) in [(&first.session, "Pantom"), (&other.session, "HAVING")] {
        let found = by_history(&sessions, &[user("Hi"), said(text), user("So?")]).unwrap();
        assert_eq!(&found.session, session);
        assert!(found.prompt.starts_with(&all(&sessions, session)));
    }
    let unknown = by_history(&sessions, &[user("Hi"), said("Nobody said this"), user("So?")]).unwrap();
    assert_eq!(unknown.findings, [Finding::HistoryRendered { answers: 1 }], "and it is said that it was rendered");
}

#[test]
fn sixteen_siblings_with_one_history_are_refused() {
    let sessions = sessions(Policy::Keep);
    let messages = [user("Hi"), said("hello"), user("So?")];
    for sibling in 0..16 {
        let sampled = [[71, 4791], [49122, 385], [56095, 78], [39, 83722]][sibling % 4];
        let first = by_history(&sessions, &messages[..1]).unwrap();
        commit(&sessions, &first, ids(&sampled), said("hello"));
        let next = by_history(&sessions, &messages);
        assert_eq!(next.is_ok(), sibling == 0, "one alone is unambiguous");
    }
    let refused = by_history(&sessions, &messages).unwrap_err();
    let expected = "16 sessions share this history of 2 messages: send the id of the one that is meant as X-Session-ID";
    assert_eq!(refused, expected);
    let named = sessions.extend(Key::Session("history-7"), Conversation::new(&messages, &[])).unwrap();
    assert!(named.prompt.starts_with(&all(&sessions, "history-7")));
}

/// Ids of tool calls are random: they tell siblings apart that wrote the same call.
#[test]
fn siblings_are_told_apart_by_the_ids_of_their_calls() {
    let sessions = sessions(Policy::Keep);
    let call = |id: &str| {
        let mut call = called("f", "{}");
        call["tool_calls"][0]["id"] = json!(id);
        call
    };
    for id in ["call_a", "call_b"] {
        let first = by_history(&sessions, &[user("Hi")]).unwrap();
        commit(&sessions, &first, ids(&[id.len() as u32, u32::from(id.as_bytes()[5])]), call(id));
    }
    let a = by_history(&sessions, &[user("Hi"), call("call_a"), result("1")]).unwrap();
    let b = by_history(&sessions, &[user("Hi"), call("call_b"), result("1")]).unwrap();
    assert_eq!((a.session.as_str(), b.session.as_str()), ("history-1", "history-2"));
    assert!(by_history(&sessions, &[user("Hi"), call("call_c"), result("1")]).is_err());
}

/// A second answer to one turn, and a branch off an earlier one, are new rollouts with the same exact ids.
#[test]
fn a_branch_starts_with_the_exact_ids() {
    let sessions = sessions(Policy::Keep);
    let first = by_history(&sessions, &[user("Hi")]).unwrap();
    let drifting = ids(&[53122, 316, 151645]);
    commit(&sessions, &first, drifting.clone(), said(" Pantom"));
    let messages = [user("Hi"), said(" Pantom"), user("So?")];
    let second = by_history(&sessions, &messages).unwrap();
    let one = commit(&sessions, &second, ids(&[39, 151645]), said("H"));
    let two = commit(&sessions, &second, ids(&[40, 151645]), said("I"));
    assert_eq!((one.session.as_str(), one.turn), (first.session.as_str(), 1));
    assert_eq!((two.turn, &two.observed), (0, &second.prompt), "a sibling's prompt is observed, not trained twice");
    assert_ne!(two.session, one.session);
    let branch = by_history(&sessions, &[user("Hi"), said(" Pantom"), user("And?")]).unwrap();
    assert!(branch.prompt.starts_with(&[first.prompt.clone(), drifting].concat()));
    assert_eq!(branch.findings, [Finding::Branched { session: first.session.clone(), turns: 1 }]);
    assert_eq!((branch.turn, branch.known), (0, 0));
    let conversation = Conversation::new(&messages, &[]);
    let named = sessions.extend(Key::Session("mine"), conversation).unwrap();
    assert_eq!(named.prompt, second.prompt);
}

#[test]
fn a_session_has_one_answer_a_turn() {
    let sessions = sessions(Policy::Keep);
    let first = turn(&sessions, "a", &[user("Hi")]);
    let again = turn(&sessions, "a", &[user("Hi")]);
    commit(&sessions, &first, ids(&[39, 151645]), said("H"));
    let late = sessions.commit(&again, &answer(ids(&[40, 151645]), said("I"))).unwrap_err().to_string();
    assert_eq!(late, "session a: another answer was taken for turn 0 meanwhile; a session has one answer a turn");
    let known = sessions.extend(Key::Session("a"), Conversation::new(&[user("Hi"), said("H")], &[])).unwrap_err();
    assert_eq!(known.to_string(), "session a: all 2 messages are known already; there is no new one to answer");
}

#[test]
fn what_is_shown_must_be_an_answer() {
    let sessions = sessions(Policy::Keep);
    let first = turn(&sessions, "a", &[user("Hi")]);
    let refused = sessions.commit(&first, &answer(ids(&[39]), user("H"))).unwrap_err().to_string();
    assert_eq!(refused, "session a: what was shown is not an assistant's message: its role is not assistant");
}

/// NVIDIA-NeMo/RL#1903: clients drop fields, trim text and write JSON their own way.
#[test]
fn what_clients_do_to_answers_changes_no_id() {
    let sessions = sessions(Policy::Keep);
    let mut shown = called("f", r#"{"b": 1, "a": 2}"#);
    shown["reasoning_content"] = json!("Hm.");
    shown["content"] = json!("\n\nLet me see. ");
    let (_, _) = answered(&sessions, "a", &[user("Hi")], (ids(&[53122, 316, 151645]), shown));
    let mut sent = called("f", r#"{"a":2,"b":1}"#);
    sent["content"] = json!("Let me see.");
    sent["refusal"] = Value::Null;
    let next = turn(&sessions, "a", &[user("Hi"), sent, result("1")]);
    assert!(next.prompt.starts_with(&all(&sessions, "a")));
    assert_eq!(next.findings, [Finding::Benign { message: 1, how: Benign::ReasoningDropped }]);
}

fn edited(policy: Policy) -> (Sessions, Turn) {
    let sessions = sessions(policy);
    let (_, messages) = answered(&sessions, "a", &[user("Hi")], (ids(&[53122, 316, 151645]), said(" Pantom")));
    let messages = [messages, vec![user("So?")]].concat();
    let (_, mut messages) = answered(&sessions, "a", &messages, (ids(&[39, 151645]), said("H")));
    messages[3] = said("Something else");
    messages.push(user("And?"));
    let edited = turn(&sessions, "a", &messages);
    (sessions, edited)
}

#[test]
fn an_edited_answer_is_kept_or_forked_and_always_said() {
    let (sessions, kept) = edited(Policy::Keep);
    assert_eq!(kept.findings, [Finding::EditedAnswerKept { message: 3 }]);
    assert!(kept.prompt.starts_with(&all(&sessions, "a")));
    assert_eq!((kept.branch, kept.turn), (0, 2));

    // " Pantom" would be encoded otherwise: the fork has it as it was sampled, as its turn is unchanged.
    let plain = qwen3::with_template(qwen3::PLAIN);
    let sessions = Sessions::new(plain, Settings { policy: Policy::Fork, ..Settings::default() });
    let (first, messages) = answered(&sessions, "a", &[user("Hi")], (ids(&[53122, 316, 151645]), said(" Pantom")));
    let messages = [messages, vec![user("So?")]].concat();
    let (_, mut messages) = answered(&sessions, "a", &messages, (ids(&[39, 151645]), said("H")));
    messages[3] = said("Something else");
    messages.push(user("And?"));
    let forked = turn(&sessions, "a", &messages);
    let change = Change::Answer { message: 3 };
    assert_eq!(forked.findings, [Finding::Forked { change, kept: 1 }, Finding::HistoryRendered { answers: 1 }]);
    assert_eq!((forked.branch, forked.turn, forked.known), (1, 0, 0));
    assert!(forked.prompt.starts_with(&[first.prompt, ids(&[53122, 316, 151645])].concat()));
    let text = sessions.model().render(Conversation::new(&messages, &[]), Ask::Answer).unwrap().text;
    assert_eq!(sessions.model().decode(&forked.prompt, lockstep::session::Show::ALL).unwrap(), text);
    let record = commit(&sessions, &forked, ids(&[40, 151645]), said("I"));
    assert_eq!((record.branch, record.turn, &record.observed), (1, 0, &forked.prompt));
    let next = turn(&sessions, "a", &[messages, vec![said("I"), user("Well?")]].concat());
    assert_eq!((next.branch, next.turn), (1, 1), "the new rollout goes on");
    assert!(next.prompt.starts_with(&all(&sessions, "a")));
}

#[test]
fn other_changes_are_refused_or_forked() {
    let tool = [json!({"type": "function", "function": {"name": "f"}})];
    let rows: [(&str, Vec<Value>, &[Value], &str); 4] = [
        (
            "edited question",
            vec![user("Ho"), said("H"), user("So?")],
            &[],
            "message 0 is not the one that was sent before",
        ),
        ("no answer", vec![user("Hi")], &[], "the history has 1 messages of the 2 that are known"),
        (
            "another role",
            vec![user("Hi"), user("H"), user("So?")],
            &[],
            "message 1 is not the one that was sent before",
        ),
        ("tools", vec![user("Hi"), said("H"), user("So?")], &tool, "the tools are not those of the turns before"),
    ];
    for (name, messages, tools, change) in rows {
        for policy in [Policy::Keep, Policy::Fork] {
            let sessions = sessions(policy);
            let (_, _) = answered(&sessions, "a", &[user("Hi")], (ids(&[39, 151645]), said("H")));
            let next = sessions.extend(Key::Session("a"), Conversation::new(&messages, tools));
            if policy == Policy::Keep {
                let asked = "ids are kept as sampled (policy keep), so send what was shown, or use policy fork";
                assert_eq!(next.unwrap_err().to_string(), format!("session a: {change}; {asked}"), "{name}");
                continue;
            }
            let next = next.unwrap();
            let start = format!("{change}: a new rollout starts from 0 unchanged turns and the rendered rest");
            assert_eq!(next.findings[0].to_string(), start, "{name}");
            assert_eq!((next.branch, next.turn, next.known), (1, 0, 0));
            let rendered = sessions.model().render(Conversation::new(&messages, tools), Ask::Answer).unwrap();
            assert_eq!(next.prompt, rendered.ids);
        }
    }
}

/// verl-project/verl#6854, tinker-cookbook#142: a template that strips thinking, and the switch that says what then.
#[test]
fn stripped_thinking_is_kept_or_forked_by_policy() {
    for policy in [Policy::Keep, Policy::Fork] {
        let sessions = sessions(policy);
        let text = "<think>\nHm.\n</think>\n\nGood.";
        let sampled = [sessions.model().encode(text).unwrap(), ids(&[151645])].concat();
        let shown = json!({"role": "assistant", "content": "Good.", "reasoning_content": "Hm."});
        let (_, messages) = answered(&sessions, "a", &[user("Hi")], (sampled, shown));
        let messages = [messages, vec![user("So?")]].concat();
        let next = turn(&sessions, "a", &messages);
        let thinks = next.prompt.contains(&TokenId(151_667));
        assert_eq!(thinks, policy == Policy::Keep);
        let forked = Finding::Forked { change: Change::Template, kept: 0 };
        assert_eq!(next.findings.contains(&forked), policy == Policy::Fork);
        assert_eq!(next.branch, u32::from(policy == Policy::Fork));
    }
}

#[test]
fn a_template_that_only_appends_never_forks() {
    let model = qwen3::with_template(qwen3::PLAIN);
    assert_eq!(model.findings(), []);
    let sessions = Sessions::new(model, Settings { policy: Policy::Fork, ..Settings::default() });
    let mut messages = vec![user("Hi")];
    for sampled in [ids(&[53122, 316, 151645]), ids(&[39, 83722]), ids(&[198, 198, 151645])] {
        let text = sessions.model().decode(&sampled, lockstep::session::Show::ANSWER).unwrap();
        let (next, all) = answered(&sessions, "a", &messages, (sampled, said(&text)));
        assert_eq!((next.branch, next.findings), (0, vec![]));
        messages = [all, vec![user("So?")]].concat();
    }
}

fn limited(sessions: usize, tokens: usize) -> Sessions {
    Sessions::new(qwen3::qwen3(), Settings { limits: Limits { sessions, tokens }, ..Settings::default() })
}

#[test]
fn memory_is_bounded_and_the_forgotten_are_named() {
    let sessions = limited(3, 1000);
    for number in 0..100 {
        let name = format!("s{number}");
        let (_, messages) = answered(&sessions, &name, &[user("Hi")], (ids(&[39, 151645]), said("H")));
        turn(&sessions, "s0", &[messages, vec![user("So?")]].concat());
        assert!(sessions.len() <= 3 && sessions.tokens() <= 1000);
    }
    let again = |name: &str| {
        let conversation = [user("Hi"), said("H"), user("So?")];
        sessions.extend(Key::Session(name), Conversation::new(&conversation, &[])).map_err(|error| error.to_string())
    };
    assert!(again("s0").is_ok(), "used all the time");
    assert!(again("s99").is_ok() && again("s98").is_ok());
    let forgotten = "was forgotten to make room (3 sessions, 1000 tokens): its ids are no longer known here";
    assert_eq!(again("s97").unwrap_err(), format!("session s97 {forgotten}; start a new session"));
    assert_eq!(again("s50").unwrap_err(), format!("session s50 {forgotten}; start a new session"));
}

#[test]
fn tokens_are_bounded_too() {
    let sessions = limited(1000, 100);
    for number in 0..20 {
        let (_, _) = answered(&sessions, &number.to_string(), &[user("Hi")], (ids(&[39; 20]), said("H")));
        assert!(sessions.tokens() <= 100);
    }
    assert!(sessions.len() < 5);
    let next = turn(&sessions, "long", &[user("Hi")]);
    let refused = sessions.commit(&next, &answer(ids(&[39; 100]), said("H"))).unwrap_err().to_string();
    assert_eq!(refused, "session long: 109 tokens are over the limit of 100 for all sessions together");
}

/// Sessions as they are after a restart, from what the ledger kept.
fn restored(records: &[SessionRecord]) -> Sessions {
    let json = serde_json::to_string(records).unwrap();
    let records: Vec<SessionRecord> = serde_json::from_str(&json).unwrap();
    let sessions = sessions(Policy::Keep);
    sessions.restore(records).unwrap();
    sessions
}

#[test]
fn sessions_are_rebuilt_from_their_records() {
    let before = sessions(Policy::Keep);
    let mut records = Vec::new();
    let conversation = |name: &str, turns: usize| {
        let mut messages = vec![user(name)];
        (0..turns).for_each(|number| messages.extend([said("hello"), user(&number.to_string())]));
        messages
    };
    for number in 0..5 {
        for name in ["a", "b"] {
            let next = turn(&before, name, &conversation(name, number));
            records.push(commit(&before, &next, ids(&[71, 4791, 90 + number as u32]), said("hello")));
        }
        let next = by_history(&before, &conversation("c", number)).unwrap();
        records.push(commit(&before, &next, ids(&[49122, 385]), said("hello")));
    }
    let after = restored(&records);
    assert_eq!(after.len(), before.len());
    for name in ["a", "b", "history-1"] {
        assert_eq!(after.spans(name), before.spans(name));
        assert!(before.spans(name).is_some());
    }
    for name in ["a", "b"] {
        let messages = conversation(name, 5);
        assert_eq!(turn(&after, name, &messages).prompt, turn(&before, name, &messages).prompt);
    }
    let messages = conversation("c", 5);
    let (one, two) = (by_history(&after, &messages).unwrap(), by_history(&before, &messages).unwrap());
    assert_eq!((one.session, one.prompt), (two.session, two.prompt));
    let fresh = by_history(&after, &[user("new")]).unwrap();
    assert!(before.spans(&fresh.session).is_none(), "a new session takes no old name");
}

#[test]
fn records_that_do_not_follow_are_named() {
    let before = sessions(Policy::Keep);
    let first = turn(&before, "a", &[user("Hi")]);
    let one = commit(&before, &first, ids(&[39]), said("H"));
    let next = turn(&before, "a", &[user("Hi"), said("H"), user("So?")]);
    let two = commit(&before, &next, ids(&[40]), said("I"));
    let restore = |records: Vec<SessionRecord>| sessions(Policy::Keep).restore(records).map_err(|e| e.to_string());
    assert_eq!(restore(vec![one.clone(), two.clone()]), Ok(()));
    let lost = restore(vec![two.clone()]).unwrap_err();
    assert_eq!(lost, "session a: a record of branch 0, turn 1 follows nothing");
    let doubled = restore(vec![one.clone(), two.clone(), two]).unwrap_err();
    assert_eq!(doubled, "session a: a record of branch 0, turn 1 follows branch 0, 2 turns");
    let broken = restore(vec![SessionRecord { messages: "{".into(), ..one }]).unwrap_err();
    assert!(broken.starts_with("session a: its record does not hold messages: "), "{broken}");
}

#[test]
fn a_restored_session_with_a_fork_is_the_last_branch() {
    let before = sessions(Policy::Fork);
    let mut records = Vec::new();
    let first = turn(&before, "a", &[user("Hi")]);
    records.push(commit(&before, &first, ids(&[39, 151645]), said("H")));
    let forked = turn(&before, "a", &[user("Ho")]);
    records.push(commit(&before, &forked, ids(&[40, 151645]), said("I")));
    assert_eq!(restored(&records).spans("a"), before.spans("a"));
    assert_eq!(records[1].branch, 1);
    let answer = Answer { sampled: ids(&[1]), finish: FinishReason::Length, shown: said("x") };
    let late = before.commit(&first, &answer).unwrap_err().to_string();
    assert!(late.starts_with("session a: another answer was taken"), "the old rollout has ended: {late}");
}
