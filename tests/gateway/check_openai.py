"""The openai package, unmodified, against a gateway: chat, streams, tools, errors, and a conversation of 20 turns with tools whose
ids are, bit for bit, the engine's."""

import json
import sys
import urllib.request

import openai

base, engine = sys.argv[1], sys.argv[2]
client = openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)
MODEL = client.models.list().data[0].id
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
HELLO = "Héllo 🧑‍🚀 world"


def emitted():
    return json.load(urllib.request.urlopen(f"{engine}/emitted"))


def user(text):
    return {"role": "user", "content": text}


def chat(messages, **options):
    return client.chat.completions.create(model=MODEL, messages=messages, max_tokens=200, **options)


def check_chat():
    answer = chat([user("hello")], seed=1)
    assert answer.choices[0].message.content == HELLO, answer
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == len(emitted()[-1]["ids"])
    cut = client.chat.completions.create(model=MODEL, messages=[user("hello")], max_tokens=2)
    assert cut.choices[0].finish_reason == "length"
    two = chat([user("hello")], n=2, logprobs=True, top_logprobs=2)
    assert [choice.index for choice in two.choices] == [0, 1]
    assert len(two.choices[0].logprobs.content[0].top_logprobs) == 2
    completion = client.completions.create(model=MODEL, prompt="count", max_tokens=100, stop=["5 6"])
    assert completion.choices[0].text == "0 1 2 3 4 ", completion
    assert completion.choices[0].finish_reason == "stop"


def check_streams():
    pieces = list(chat([user("hello")], stream=True, stream_options={"include_usage": True}))
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == HELLO, text
    assert "\ufffd" not in text
    assert pieces[-1].usage.completion_tokens > 0
    assert [piece.choices[0].finish_reason for piece in pieces if piece.choices][-1] == "stop"
    streamed = client.completions.create(model=MODEL, prompt="count", max_tokens=100, stop=["5 6"], stream=True)
    assert "".join(piece.choices[0].text for piece in streamed) == "0 1 2 3 4 "


def check_tools():
    answer = chat([user("What is the weather in Paris?")], tools=TOOLS)
    call = answer.choices[0].message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Paris"})
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content is None
    name = arguments = ""
    for piece in chat([user("What is the weather in Rome?")], tools=TOOLS, stream=True):
        for delta in piece.choices[0].delta.tool_calls or []:
            name += delta.function.name or ""
            arguments += delta.function.arguments or ""
    assert (name, json.loads(arguments)) == ("weather", {"city": "Rome"}), (name, arguments)


def check_errors():
    def refused(kind, **options):
        try:
            chat([user("hello")], **options)
        except kind as error:
            return error
        raise AssertionError(f"{options} was not refused")

    assert refused(openai.BadRequestError, logit_bias={"5": -100}).param == "logit_bias"
    assert refused(openai.BadRequestError, temperature=0).param == "temperature"
    assert refused(openai.BadRequestError, presence_penalty=0.5).param == "presence_penalty"
    assert refused(openai.BadRequestError, extra_body={"topp": 0.5}).param == "topp"
    forced = {"type": "function", "function": {"name": "weather"}}
    assert refused(openai.BadRequestError, tools=TOOLS, tool_choice=forced).param == "tool_choice"
    assert "did you mean" in refused(openai.BadRequestError, extra_body={"topp": 0.5}).message
    lost = {"X-Rollout-ID": "p999999.r0"}
    assert "plan 999999" in refused(openai.NotFoundError, extra_headers=lost).message


def check_conversation(stream):
    """20 turns; the ids of each turn are those of the last one and what is new."""
    session = {"X-Session-ID": f"twenty-{stream}"}
    extra = {"return_token_ids": True}
    messages, before, turns, asked = [], [], 0, 0
    while turns < 20:
        if not messages or messages[-1]["role"] == "assistant":
            asked += 1
            text = f"What is the weather in Town{asked}?" if asked % 2 else "hello"
            messages.append(user(text))
        options = dict(tools=TOOLS, extra_headers=session, extra_body=extra)
        if stream:
            message, ids, prompt = streamed(messages, options)
        else:
            answer = chat(messages, **options)
            message = answer.choices[0].message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})
            ids, prompt = answer.choices[0].token_ids, answer.prompt_token_ids
        engines = emitted()[-1]
        assert ids == engines["ids"], (turns, ids, engines["ids"])
        assert prompt == engines["prompt"], turns
        assert prompt[: len(before)] == before, f"turn {turns} does not continue the ids of the last one"
        before = prompt + ids
        message.setdefault("content", None)
        messages.append(message)
        for call in message.get("tool_calls") or []:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": '{"celsius": 21}'})
        turns += 1


def streamed(messages, options):
    message, ids, prompt, calls = {"role": "assistant", "content": None}, [], None, []
    for piece in chat(messages, stream=True, **options):
        choice = piece.choices[0]
        ids += choice.model_extra.get("token_ids") or []
        prompt = prompt or (piece.model_extra or {}).get("prompt_token_ids")
        if choice.delta.content:
            message["content"] = (message["content"] or "") + choice.delta.content
        for call in choice.delta.tool_calls or []:
            function = {"name": call.function.name, "arguments": call.function.arguments}
            calls.append({"id": call.id, "type": "function", "function": function})
    if calls:
        message["tool_calls"] = calls
    return message, ids, prompt


checks = [check_chat, check_streams, check_tools, check_errors, lambda: check_conversation(False), lambda: check_conversation(True)]
for check in checks:
    check()
print(f"openai {openai.__version__}: {len(checks)} checks passed")
