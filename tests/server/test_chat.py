"""`/v1/chat/completions`: the template's prompt, the engine's tokens, OpenAI's form."""

from tests.server.test_completions import alone
from tests.server.world import events, running

MESSAGES = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "it"}]},
]
RENDERED = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": MESSAGES[1]["content"]},
]


def chat(world, **body):
    response = world.ask("/v1/chat/completions", {"messages": MESSAGES, "temperature": 0, **body})
    assert response.status_code == 200, response.text
    return response


def test_a_whole_answer(world):
    prompt = world.engine.tokenizer.encode_chat(RENDERED)
    expected = alone(world, prompt, {"logprobs": 2}, 20)
    found = chat(world, max_tokens=20, logprobs=True, top_logprobs=2).json()
    (choice,) = found["choices"]
    assert found["object"] == "chat.completion"
    assert found["id"].startswith("chatcmpl-")
    assert choice["message"] == {"role": "assistant", "content": expected.text, "refusal": None}
    assert choice["finish_reason"] == "length"
    entries = choice["logprobs"]["content"]
    assert [entry["logprob"] for entry in entries] == [e.logprob for e in expected.logprobs]
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == expected.text


def test_a_stream(world):
    whole = chat(world, max_completion_tokens=20).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    found = events(chat(world, max_tokens=20, **options))
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {event["object"] for event in found} == {"chat.completion.chunk"}
    assert len({event["id"] for event in found}) == 1
    text = "".join(e["choices"][0]["delta"].get("content", "") for e in found[:-1])
    assert text == whole["choices"][0]["message"]["content"]
    assert [e["choices"][0]["finish_reason"] for e in found[-3:-1]] == [None, "length"]
    assert found[-1]["usage"]["completion_tokens"] == 20


def test_neutral_fields_are_accepted(world):
    neutral = {
        "tools": [],
        "tool_choice": "none",
        "n": 1,
        "logit_bias": {},
        "store": False,
        "parallel_tool_calls": True,
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "reasoning_effort": None,
        "user": "me",
        "metadata": {},
        "frequency_penalty": 0,
        "presence_penalty": None,
    }
    plain, more = (chat(world, max_tokens=4, **fields).json() for fields in ({}, neutral))
    assert plain["choices"] == more["choices"]


def test_the_second_turn_reuses_the_first(world):
    asked = [{"role": "user", "content": "word " * 30}]
    body = {"temperature": 0, "max_tokens": 12}
    first = world.ask("/v1/chat/completions", {"messages": asked, **body}).json()
    reply = first["choices"][0]["message"]
    reply = {"role": reply["role"], "content": reply["content"]}
    turns = [*asked, reply, {"role": "user", "content": "and then?"}]
    second = world.ask("/v1/chat/completions", {"messages": turns, **body}).json()
    reused = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert reused == (first["usage"]["prompt_tokens"] - 1) // 64 * 64 > 0
    assert second["timings"]["cache_n"] == reused
    expected = alone(world, world.engine.tokenizer.encode_chat(turns), {}, 12)
    assert second["choices"][0]["message"]["content"] == expected.text


def test_without_a_template_the_answer_says_so(hybrid):
    with running(hybrid.stage("log", 8), chat=False) as world:
        response = world.ask("/v1/chat/completions", {"messages": MESSAGES})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "no_chat_template"
    assert "/v1/completions" in response.json()["error"]["message"]
