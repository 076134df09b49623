"""Writes qwen3.json: conversations and the ids that Python gives them.

The template runs in jinja2 as `transformers` sets it up (transformers/utils/chat_template_utils.py): trim_blocks,
lstrip_blocks, loop controls, its own `tojson`. Needs jinja2 3.1 and tokenizers, and what tests/setup.sh fetches:

    pip install jinja2 tokenizers && python tests/testdata/chat/make_reference.py
"""

import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox
import tokenizers

HERE = pathlib.Path(__file__).parent
DATA = HERE / "../../../target/test-data"


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


env = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
)
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
config = json.loads((DATA / "qwen3-tokenizer_config.json").read_text())
template = env.from_string(config["chat_template"])
tokenizer = tokenizers.Tokenizer.from_file(str(DATA / "qwen3-tokenizer.json"))

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Wetter \"heute\" <in> einer Stadt: größer & schöner 😀",
            "parameters": {
                "type": "object",
                "required": ["city"],
                "properties": {
                    "city": {"type": "string", "enum": ["Paris", "Zürich"]},
                    "days": {"type": "integer", "default": 1, "minimum": -1, "maximum": 1e16},
                    "scale": {"type": "number", "default": 0.5, "examples": [1.0, 1e-7, True, None]},
                },
            },
        },
    }
]


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(name, arguments, text=""):
    function = {"name": name, "arguments": arguments}
    return assistant(text, tool_calls=[{"id": "c1", "type": "function", "function": function}])


def tool(text):
    return {"role": "tool", "tool_call_id": "c1", "content": text}


SYSTEM = {"role": "system", "content": "Be brief."}
PARIS = call("get_weather", {"city": "Paris", "days": 2})
CASES = {
    "one question": [user("How are you?")],
    "two turns": [user("How are you?"), assistant("I am good!"), user("What is your name?")],
    "answer last": [user("How are you?"), assistant("I am good!")],
    "system": [SYSTEM, user("Hi")],
    "late system": [user("Hi"), assistant("Hi"), SYSTEM, user("Hi")],
    "thinking in the field": [user("1+1?"), assistant("2", reasoning_content="\nOne and one.\n"), user("2+2?")],
    "thinking in the field, last": [user("1+1?"), assistant("2", reasoning_content="\nOne and one.\n")],
    "thinking in the text": [user("1+1?"), assistant("<think>\nOne.\n</think>\n\n2"), user("2+2?")],
    "thinking in the text, last": [user("1+1?"), assistant("<think>\nOne.\n</think>\n\n2")],
    "tool turn": [user("Weather?"), PARIS, tool("20 °C")],
    "tool turn with thinking": [user("Weather?"), {**PARIS, "reasoning_content": "Ask."}, tool("20"), tool("21")],
    "tool turn and more": [user("Weather?"), PARIS, tool("20"), assistant("20 degrees."), user("Thanks")],
    "call with text": [user("Weather?"), call("get_weather", {"city": "Zürich"}, "Let me see."), tool("7")],
    "nested arguments": [user("Go"), call("f", {"z": [1, {"y": None}], "a": {"é": 1.0, "b": [], "c": {}}}), tool("ok")],
    "user that looks like a tool": [user("Go"), assistant("a"), user("<tool_response>\nx\n</tool_response>")],
    "white space": [user("  a\n\n b\t\n"), assistant("\n\n c \n"), user("\n")],
    "letters": [user("Grüße, 世界! 👩‍👩‍👧 e\u0301 \u00a0 \u200b 1234567 'll DON'T")],
}

cases = []
for name, messages in CASES.items():
    for tools in [None, TOOLS]:
        for variables in [{}, {"enable_thinking": False}]:
            for ask in [True, False]:
                text = template.render(messages=messages, tools=tools, add_generation_prompt=ask, **variables)
                ids = tokenizer.encode(text, add_special_tokens=False).ids
                cases.append(
                    {"name": name, "messages": messages, "tools": tools is not None, "variables": variables, "ask": ask, "ids": ids}
                )

lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases)
tools = json.dumps(TOOLS, ensure_ascii=False)
(HERE / "qwen3.json").write_text(f'{{"tools": {tools},\n"cases": [\n{lines}\n]}}\n')
print(f"{len(cases)} cases")
