use super::*;
use proptest::prelude::*;

/// Both parsers, at the start of an answer whose prompt opened nothing, or its reasoning.
fn parser(within: bool) -> Parser {
    Parser { reasoning: Some(Reasoning::new(within)), tools: Some(ToolCalls::default()), findings: Vec::new() }
}

fn parsed(mut parser: Parser, pieces: &[&str]) -> (Json, Vec<ParseFinding>) {
    let mut shown: Vec<Shown> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    let (rest, findings) = parser.finish();
    shown.extend(rest);
    (message(&shown, |index| format!("c{index}")), findings)
}

fn whole(text: &str) -> Json {
    parsed(parser(false), &[text]).0
}

fn call(index: usize, name: &str, arguments: &str) -> Json {
    json!({"id": format!("c{index}"), "type": "function", "function": {"name": name, "arguments": arguments}})
}

#[test]
fn an_answer_is_reasoning_text_and_calls() {
    let text = "<think>\nHm.\n\nYes.\n</think>\n\nLet me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\":1,  \"a\": 2}}\n</tool_call>\n<tool_call>\n{\"arguments\": {}, \"name\": \"g\", \"id\": 3}\n</tool_call>\n";
    let expected = json!({
        "role": "assistant",
        "content": "Let me see.",
        "reasoning_content": "Hm.\n\nYes.",
        "tool_calls": [call(0, "f", "{\"b\":1,  \"a\": 2}"), call(1, "g", "{}")],
    });
    assert_eq!(whole(text), expected);
    assert_eq!(whole("Hi\n"), json!({"role": "assistant", "content": "Hi\n"}));
    assert_eq!(whole("<think>\n\n</think>\n\nHi"), json!({"role": "assistant", "content": "Hi"}));
    let alone = whole("\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\n  \"a\": 1\n}}\n</tool_call>");
    assert_eq!(alone["content"], Json::Null);
    assert_eq!(alone["tool_calls"][0]["function"]["arguments"], "{\n  \"a\": 1\n}");
}

#[test]
fn a_prompt_can_open_the_reasoning() {
    let (message, _) = parsed(parser(true), &["Hm.\n</think>\n\nHi"]);
    assert_eq!(message, json!({"role": "assistant", "content": "Hi", "reasoning_content": "Hm."}));
    let (message, findings) = parsed(parser(true), &["Hm."]);
    assert_eq!(message, json!({"role": "assistant", "content": "", "reasoning_content": "Hm."}));
    assert_eq!(findings, [ParseFinding::UnfinishedReasoning]);
}

#[test]
fn what_is_no_call_stays_text() {
    let rows = [
        ("<tool_call>\nget_weather(\"Paris\")\n</tool_call>", "a tool call is shown as text: expected value"),
        ("<tool_call>{\"name\": \"f\"}</tool_call>", "a tool call is shown as text: missing field `arguments`"),
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>",
            "a tool call is shown as text: the arguments of f",
        ),
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": {}} and</tool_call>",
            "a tool call is shown as text: trailing characters",
        ),
        ("<tool_call>{\"name\": \"f\", \"arg", "the answer ends within a tool call, which is shown as text"),
    ];
    for (text, finding) in rows {
        let (message, findings) = parsed(parser(false), &[text]);
        assert_eq!(message, json!({"role": "assistant", "content": text}));
        assert_eq!(findings.len(), 1);
        assert!(findings[0].to_string().starts_with(finding), "{}", findings[0]);
    }
    let good = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let (message, findings) = parsed(parser(false), &[rows[0].0, good]);
    assert_eq!(
        (message["content"].as_str(), message["tool_calls"].as_array().map(Vec::len)),
        (Some(rows[0].0), Some(1))
    );
    assert_eq!(findings.len(), 1, "one bad call does not hide a good one");
}

#[test]
fn calls_within_reasoning_are_reasoning() {
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let message = whole(&format!("<think>\n{call}\n</think>\nHi"));
    assert_eq!(message, json!({"role": "assistant", "content": "Hi", "reasoning_content": call}));
}

#[test]
fn unknown_parsers_are_refused_with_the_list() {
    let refused = |tools, reasoning| Parsers::named(tools, reasoning).unwrap_err().to_string();
    assert_eq!(refused(Some("llama"), None), "there is no tool call parser \"llama\": choose one of hermes, qwen3");
    assert_eq!(refused(None, Some("r1")), "there is no reasoning parser \"r1\": choose one of qwen3");
    assert!(Parsers::named(Some("qwen3"), Some("qwen3")).is_ok());
}

proptest! {
    #[test]
    fn however_it_arrives_the_answer_is_the_same(
        parts in prop::collection::vec(prop::sample::select(vec![
            "<think>", "</think>", "<tool_call>", "</tool_call>", "{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "\n", " ", "Hi",
            "<", "</", "think>", "<tool", "_call>", "é", "{",
        ]), 0..14),
        cuts in prop::collection::vec(0..200_usize, 0..20),
        within in any::<bool>(),
    ) {
        let text = parts.concat();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|at| at % (text.len() + 1)).filter(|at| text.is_char_boundary(*at)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&str> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        prop_assert_eq!(parsed(parser(within), &pieces), parsed(parser(within), &[&text]));
    }
}
