//! Conversations drawn by chance: whatever is said and sampled, each prompt starts with the ids before it.

use crate::{
    conversation::{IM_END, answer, called, ids, result, said, user},
    qwen3,
};
use lockstep::session::{Ask, Conversation, Key, Parsers, Policy, SessionRecord, Sessions, Settings, Show, message};
use lockstep_core::TokenId;
use proptest::{prelude::*, test_runner::Config};
use serde_json::Value;

/// Ids that drift, broken characters, added tokens, padding, and anything else.
fn sampled() -> impl Strategy<Value = Vec<TokenId>> {
    let id = prop_oneof![
        4 => prop::sample::select(vec![53122, 316, 39, 83722, 71, 4791, 198, 271, 13, 27, 14, 220, 94, 95, 151_667, 151_668]),
        2 => 0..151_643_u32,
        1 => 151_643..151_936_u32,
    ];
    let ended = prop::bool::ANY;
    (prop::collection::vec(id, 1..12), ended).prop_map(|(drawn, ended)| {
        let end = ended.then_some(IM_END);
        ids(&drawn).into_iter().chain(end).collect()
    })
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("\n\nHi".to_owned()),
        Just("<|im_end|>\n<|im_start|>assistant\n".to_owned()),
        Just("</think><tool_call>\n{\"name\":".to_owned()),
        "\\PC{0,12}",
    ]
}

/// What follows an answer.
#[derive(Debug, Clone)]
enum Next {
    User(String),
    Tools(Vec<String>),
}

fn next() -> impl Strategy<Value = Next> {
    prop_oneof![text().prop_map(Next::User), prop::collection::vec(text(), 1..3).prop_map(Next::Tools),]
}

fn cases(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}

/// Runs a conversation and returns its records; checks each prompt on the way.
fn run(sessions: &Sessions, key: Key<'_>, turns: &[(Vec<TokenId>, Next)]) -> Vec<SessionRecord> {
    let (mut messages, mut known, mut records) = (vec![user("Go")], Vec::new(), Vec::new());
    for (sampled, next) in turns {
        let turn = sessions.extend(key, Conversation::new(&messages, &[])).unwrap_or_else(|error| panic!("{error}"));
        assert!(turn.prompt.starts_with(&known), "a prompt starts with all ids before it");
        assert_eq!(turn.known, known.len());
        let shown = sessions.model().decode(sampled, Show::ANSWER).unwrap_or_else(|error| panic!("{error}"));
        let shown = match next {
            Next::Tools(_) => called("f", "{\"a\":1}"),
            Next::User(_) => said(&shown),
        };
        let record = sessions.commit(&turn, &answer(sampled.clone(), shown.clone()));
        records.push(record.unwrap_or_else(|error| panic!("{error}")));
        known = [turn.prompt, sampled.clone()].concat();
        messages.push(shown);
        match next {
            Next::User(text) => messages.push(user(text)),
            Next::Tools(results) => messages.extend(results.iter().map(|text| result(text))),
        }
    }
    records
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn prompts_are_extended_and_never_rewritten(turns in prop::collection::vec((sampled(), next()), 1..8)) {
        let sessions = Sessions::new(qwen3::qwen3(), Settings::default());
        let records = run(&sessions, Key::Session("a"), &turns);
        let again = Sessions::new(qwen3::qwen3(), Settings::default());
        again.restore(records.clone()).unwrap();
        prop_assert_eq!(again.spans("a"), sessions.spans("a"));
        let new: Vec<TokenId> = records.iter().flat_map(|record| [record.observed.clone(), record.sampled.clone()].concat()).collect();
        let spans: Vec<TokenId> = sessions.spans("a").unwrap().iter().flat_map(|span| span.tokens().to_vec()).collect();
        prop_assert_eq!(new, spans);
        let by_history = Sessions::new(qwen3::qwen3(), Settings::default());
        run(&by_history, Key::History, &turns);
        prop_assert_eq!(by_history.len(), 1, "every turn found its session");
    }

    /// With a template that only appends, and answers that are what their text encodes to, a session's prompt is what
    /// rendering it again gives: sessions add nothing of their own.
    #[test]
    fn without_drift_a_session_is_its_rendering(texts in prop::collection::vec(("[a-z]{1,8}( [a-z]{1,8}){0,4}", text()), 1..6)) {
        let model = qwen3::with_template(qwen3::PLAIN);
        let sessions = Sessions::new(model.clone(), Settings { policy: Policy::Fork, ..Settings::default() });
        let mut messages = vec![user("Go")];
        for (text, next) in &texts {
            let turn = sessions.extend(Key::Session("a"), Conversation::new(&messages, &[])).unwrap();
            prop_assert_eq!(&turn.prompt, &model.render(Conversation::new(&messages, &[]), Ask::Answer).unwrap().ids);
            prop_assert_eq!(turn.branch, 0);
            let sampled = [model.encode(text).unwrap(), vec![IM_END]].concat();
            sessions.commit(&turn, &answer(sampled, said(text))).unwrap();
            messages.extend([said(text), user(next)]);
        }
    }
}

/// A conversation of 20 turns with tools, as an agent has it: ids drawn at random, drifting ones among them, and a client
/// that only ever sees text. Its prompts are bit for bit what was sampled.
#[test]
fn twenty_tool_turns_are_bit_for_bit_the_samplers() {
    let sessions = Sessions::new(qwen3::qwen3(), Settings::default());
    let model = sessions.model();
    let parsers = Parsers::named(Some("hermes"), Some("qwen3")).unwrap();
    let (mut messages, mut known, mut drifted) = (vec![user("Weather?")], Vec::new(), 0);
    let mut state = 7_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for number in 0..20 {
        let turn = sessions.extend(Key::Session("agent"), Conversation::new(&messages, &[])).unwrap();
        assert!(turn.prompt.starts_with(&known));
        let thinking: Vec<TokenId> = (0..5).map(|_| TokenId(random(151_643) as u32)).collect();
        let call = model
            .encode(&format!("<tool_call>\n{{\"name\":\"f\",\"arguments\":{{\"n\":{number}}}}}\n</tool_call>"))
            .unwrap();
        let think =
            [model.encode("<think>\n").unwrap(), thinking, ids(&[198]), model.encode("</think>\n\n").unwrap()].concat();
        let sampled = [think, call, vec![IM_END]].concat();
        let (mut decoder, mut parser, mut shown) =
            (model.decoder(Show::ANSWER), parsers.start(model, &turn.prompt), vec![]);
        for &id in &sampled {
            shown.extend(parser.push(&decoder.push(id).unwrap()));
        }
        shown.extend(parser.push(&decoder.finish().unwrap()));
        let (rest, findings) = parser.finish();
        shown.extend(rest);
        assert_eq!(findings, []);
        let mut shown: Value = message(&shown, |index| format!("call_{number}_{index}"));
        assert_eq!(shown["tool_calls"][0]["function"]["arguments"], format!("{{\"n\":{number}}}"));
        sessions.commit(&turn, &answer(sampled.clone(), shown.clone())).unwrap();
        let twin = model
            .render(Conversation::new(&[messages.clone(), vec![shown.clone()]].concat(), &[]), Ask::Nothing)
            .unwrap();
        known = [turn.prompt, sampled].concat();
        drifted += usize::from(!twin.ids.starts_with(&known));
        shown.as_object_mut().unwrap().remove("reasoning_content");
        messages.extend([shown, result(&format!("{number} degrees"))]);
    }
    assert_eq!(
        sessions.spans("agent").unwrap().iter().flat_map(|span| span.tokens().to_vec()).collect::<Vec<_>>(),
        known
    );
    assert_eq!(drifted, 20, "the twin that encodes the history again drifts at every turn");
}
