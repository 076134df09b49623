//! What templates do to a history, each named when the model is loaded.

use crate::qwen3;
use lockstep::session::{ChatModel, TemplateFinding};

fn sentences(model: &ChatModel) -> Vec<String> {
    model.findings().iter().map(TemplateFinding::to_string).collect()
}

#[test]
fn qwen3s_own_template_rewrites() {
    let expected = [
        "it inserts an empty think block before the last answer, and removes it when a message follows",
        "it strips thinking from answers that a user's message follows",
        "it writes tool calls' arguments in its own JSON, {\"b\": 1, \"a\": [1, 2]}, whatever was sampled",
        "it writes tool results that follow each other into one turn",
    ];
    assert_eq!(sentences(&qwen3::qwen3()), expected);
    assert_eq!(qwen3::qwen3().turn_end(), "<|im_end|>\n");
}

#[test]
fn a_template_that_only_appends_has_no_finding() {
    let model = qwen3::with_template(qwen3::PLAIN);
    assert_eq!(sentences(&model), [""; 0]);
    assert_eq!(model.turn_end(), "<|im_end|>\n");
}

/// Each template is the plain one with one fault.
#[test]
fn every_fault_is_named() {
    let content = "{{- message.content }}";
    let end = "{{- '<|im_end|>\\n' }}";
    let think = "{%- if message.reasoning_content %}";
    let rows = [
        (content, "{{- message.content|trim }}", "it cuts white space off the ends of answers"),
        (
            end,
            "{{- '<|im_end|>' + ('\\n' if loop.last else '') }}",
            "it drops the new line after the end of a turn when a message follows",
        ),
        (
            think,
            "{%- if message.reasoning_content and loop.last %}",
            "it strips thinking from answers that a user's message follows",
        ),
        (
            think,
            "{%- if message.reasoning_content and not (loop.nextitem and loop.nextitem.role == 'tool') %}",
            "it strips thinking from answers that a tool's result follows",
        ),
        (think, "{%- if false %}", "it leaves reasoning_content out"),
        (
            "{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}",
            "{{ '<think>\\n\\n</think>\\n\\n' + message.reasoning_content }}",
            "it writes reasoning_content outside of the think block",
        ),
        (
            think,
            "{%- if message.role == 'assistant' and not message.reasoning_content %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{%- if message.reasoning_content %}",
            "it inserts an empty think block before answers that were sampled without one",
        ),
        (
            "{{ '<|im_start|>assistant\\n' }}",
            "{{ '<|im_start|>assistant\\n<think>\\n' }}",
            "an answer's prompt ends with \"<think>\\n\", which its history leaves out",
        ),
        (
            "tojson(separators=(',', ':'))",
            "tojson",
            "it writes tool calls' arguments in its own JSON, {\"b\": 1, \"a\": [1, 2]}, whatever was sampled",
        ),
        (
            end,
            "{{- '<|im_end|>\\n' + strftime_now('') }}",
            "it writes the time, so that a history differs from day to day",
        ),
        (
            content,
            "{{- message.content if loop.index0 + 3 > messages|length else '' }}",
            "it changes earlier messages of a plain conversation",
        ),
    ];
    for (part, fault, finding) in rows {
        assert!(qwen3::PLAIN.contains(part), "{part}");
        let model = qwen3::with_template(&qwen3::PLAIN.replace(part, fault));
        let found = sentences(&model);
        assert!(found.iter().any(|sentence| sentence == finding), "{fault}\nfound {found:?}\nnot {finding}");
    }
}

#[test]
fn a_template_that_refuses_is_named() {
    let no_tools = "{%- if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}";
    let template = qwen3::PLAIN
        .replace("{%- for message in messages -%}", &format!("{{%- for message in messages -%}}{no_tools}"));
    let found = sentences(&qwen3::with_template(&template));
    assert!(
        found.contains(&"it refuses a tool conversation: the chat template refuses: no tools here".to_owned()),
        "{found:?}"
    );
    let silent = qwen3::with_template("{{ messages[0].content }}");
    let found = sentences(&silent);
    assert!(found[0].starts_with("no message can follow an answer: the chat template shows the answer"), "{found:?}");
}
