"""A stream joined is the whole answer, whatever fields are combined, and its parts fit together."""

import itertools
import random

import pytest

from outrider.server.bodies import Chat, Completion
from tests.server.world import byte_tokens, events, piece_tokens, running

LEFT_OUT = object()
SHORT = [84, 84, 90, 74, 2, 40]
COMMON = {
    "n": [LEFT_OUT, 2],
    "stop": [LEFT_OUT, "e", ["a", "th", "é", ".", "9"]],
    "temperature, seed": [(0, 5), (1.5, 5), (1.5, 2**40), (0, LEFT_OUT)],
    "logit_bias": [LEFT_OUT, {"84": 8}],
    "ends": [LEFT_OUT, "ends", "ends, ignored"],
    "stream_options": [LEFT_OUT, {"include_usage": True}, {"include_usage": False}],
    "speculative": [
        LEFT_OUT,
        {"trace": True},
        {"max_draft_tokens": 0, "trace": True},
        {"max_draft_tokens": 3, "method": "tested", "trace": False},
        {"method": "off", "trace": None},
    ],
    "filters": [
        LEFT_OUT,
        {"top_k": 5, "top_p": 0.9, "min_p": 0.01},
        {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": -0.5},
    ],
}
COMPLETION = COMMON | {
    "prompt": ["the cat the cat the €é", SHORT, ["a", "the<s> the</s>x"], [SHORT, [75], [76, 77]]],
    "logprobs": [LEFT_OUT, 0, 3],
    "echo": [LEFT_OUT, True],
    "max_tokens": [LEFT_OUT, 0, 1, 24],
}
CHAT = COMMON | {
    "messages": [[{"role": "user", "content": "the cat the €é"}]],
    "logprobs": [LEFT_OUT, True],
    "top_logprobs": [LEFT_OUT, 0, 3],
    "max_tokens": [1, 24],
    "max_completion_tokens": [LEFT_OUT, 24],
    "chat_template_kwargs": [LEFT_OUT, {"enable_thinking": False}],
}
ALIKE = {"model", "stream"}
"""Fields that ask for no other answer; what can only have no effect says so in its description."""


def fits(kind, values):
    """Whether fields of these values may stand together."""
    if values.get("max_tokens") == 0 and values.get("echo", True) is LEFT_OUT:
        return False
    if isinstance(values.get("top_logprobs"), int) and values.get("logprobs", True) is LEFT_OUT:
        return False
    limits = (values.get("max_tokens"), values.get("max_completion_tokens"))
    return kind is COMPLETION or limits != (1, 24)


def pairs(values):
    """Every two fields with their values, as places in the tables above."""
    return set(itertools.combinations(sorted(values.items()), 2))


def covering(kind):
    """Choices of values in which every two values that fit stand together at least once."""
    chance, names = random.Random(1), sorted(kind)

    def drawn(fixed):
        while True:
            places = {name: chance.randrange(len(kind[name])) for name in names} | dict(fixed)
            values = {name: kind[name][place] for name, place in places.items()}
            if fits(kind, values):
                return places

    left = {
        pair
        for one, two in itertools.combinations(names, 2)
        for pair in itertools.product(
            [(one, at) for at in range(len(kind[one]))], [(two, at) for at in range(len(kind[two]))]
        )
        if fits(kind, {name: kind[name][at] for name, at in pair})
    }
    found = []
    while left:
        fixed = min(left)
        best = max((drawn(fixed) for _ in range(40)), key=lambda places: len(pairs(places) & left))
        left -= pairs(best)
        found.append({name: kind[name][place] for name, place in best.items()})
    return found


def body(values, end):
    """The fields of a request; an end token that the bias makes likely, noticed or not."""
    wanted = dict(values)
    temperature, seed = wanted.pop("temperature, seed")
    wanted |= {"temperature": temperature, "seed": seed}
    ends, filters = wanted.pop("ends"), wanted.pop("filters")
    if ends is not LEFT_OUT:
        bias = wanted["logit_bias"]
        wanted["logit_bias"] = ({} if bias is LEFT_OUT else bias) | {str(end): 6}
        wanted["ignore_eos"] = ends != "ends"
    wanted |= {} if filters is LEFT_OUT else filters
    return {name: value for name, value in wanted.items() if value is not LEFT_OUT}


def joined(found, count):
    """The choices of a stream in the form of a whole answer, and all that only ends bring."""
    choices = [
        {"index": i, "text": "", "logprobs": None, "finish_reason": None} for i in range(count)
    ]
    ends, roles = [], 0
    for event in found:
        for chunk in event["choices"]:
            choice = choices[chunk["index"]]
            assert choice["finish_reason"] is None, "nothing follows the end"
            delta = chunk.get("delta", {})
            roles += "role" in delta
            choice["text"] += chunk.get("text", "") + delta.get("content", "")
            choice["finish_reason"] = chunk["finish_reason"]
            if "trace" in chunk:
                choice.setdefault("trace", []).append(chunk["trace"])
            if chunk["logprobs"]:
                together = choice["logprobs"] = choice["logprobs"] or {}
                for key, more in chunk["logprobs"].items():
                    together[key] = more and together.get(key, []) + more
            if chunk["finish_reason"]:
                ends.append({"seed": event["seed"], "timings": event["timings"]})
    return choices, ends, roles


def same_both_ways(world, path, request):
    """Ask twice and compare all that does not depend on the clock; returns the choices."""
    streamed = request
    if "stream_options" in request:
        request = {name: value for name, value in request.items() if name != "stream_options"}
    if "seed" not in request and request["temperature"] == 0:
        streamed, request = streamed | {"seed": 1}, request | {"seed": 1}
    whole = world.ask(path, request)
    assert whole.status_code == 200, whole.text
    stream = world.ask(path, streamed | {"stream": True})
    assert stream.status_code == 200, stream.text
    whole, found = whole.json(), events(stream)
    if streamed.get("stream_options", {}).get("include_usage"):
        *found, last = found
        assert (last["choices"], last["usage"]) == ([], whole["usage"])
        assert all(event["usage"] is None for event in found)
    else:
        assert not any("usage" in event for event in found)
    choices, ends, roles = joined(found, len(whole["choices"]))
    chat = "message" in whole["choices"][0]
    assert roles == (len(choices) if chat else 0)
    expected = [
        {**choice, "text": choice["message"]["content"]} if chat else choice
        for choice in whole["choices"]
    ]
    for choice in expected:
        choice.pop("message", None)
        choice.get("trace") == [] and choice.pop("trace")
    assert choices == expected
    assert {end["seed"] for end in ends} == {whole["seed"]} == {request["seed"]}
    assert {frozenset(end["timings"]) for end in ends} == {frozenset(whole["timings"])}
    assert len(ends) == len(choices)
    return whole, choices


def check_parts(tokenizer, choice, *, echo):
    """Tokens, offsets and log-probabilities of a completion fit its text."""
    logprobs, text = choice["logprobs"], choice["text"]
    assert len({len(values) for values in logprobs.values()}) == 1
    offsets = logprobs["text_offset"]
    assert offsets == sorted(offsets)
    if echo:
        assert offsets[0] == 0
        assert max(offsets) <= len(text)
        assert logprobs["token_logprobs"][0] is None
    rows = zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    )
    for token, own, top in itertools.islice(rows, int(echo), None):
        assert top[token] == own < 0
    return len(offsets)


@pytest.fixture(scope="module", params=[byte_tokens, piece_tokens])
def spelled(request, hybrid):
    """A server whose tokens have spaces, parts of characters and special ones."""
    with running(hybrid.stage("log", 8), tokenizer=request.param()) as found:
        yield found


@pytest.mark.parametrize("values", covering(COMPLETION))
def test_completions(spelled, values):
    tokenizer = spelled.engine.tokenizer
    (end,) = tokenizer.end_tokens
    request = body(values, end)
    whole, choices = same_both_ways(spelled, "/v1/completions", request)
    told = 0
    for choice in choices:
        if "logprobs" in request:
            told += check_parts(tokenizer, choice, echo=bool(request.get("echo")))
        else:
            assert choice["logprobs"] is None
        if request.get("max_tokens") == 0:
            assert choice["finish_reason"] == "length"
        assert ("trace" in choice) == (
            bool(request.get("speculative", {}).get("trace")) and request.get("max_tokens") != 0
        )
    usage = whole["usage"]
    count = len(choices) // request.get("n", 1)
    if "logprobs" in request:
        prompts = usage["prompt_tokens"] * request.get("n", 1) if request.get("echo") else 0
        assert told == prompts + usage["completion_tokens"]
    if "trace" in choices[0]:
        tokens = [t for c in choices for trace in c["trace"] for t in trace["tokens"]]
        assert len(tokens) == usage["completion_tokens"]
    assert count in (1, 2, 3)


@pytest.mark.parametrize("values", covering(CHAT))
def test_chats(spelled, values):
    (end,) = spelled.engine.tokenizer.end_tokens
    request = body(values, end)
    whole, choices = same_both_ways(spelled, "/v1/chat/completions", request)
    if not request.get("logprobs"):
        assert all(choice["logprobs"] is None for choice in choices)
        return
    entries = [entry for choice in choices for entry in choice["logprobs"]["content"]]
    assert len(entries) == whole["usage"]["completion_tokens"] > 0
    most = request.get("top_logprobs", 0)
    assert {len(entry["top_logprobs"]) for entry in entries} == {most}
    for entry in entries:
        names = [one["token"] for one in entry["top_logprobs"]]
        assert len(set(names)) == len(names)
    if "stop" not in request:
        for choice in choices:
            told = bytes(byte for e in choice["logprobs"]["content"] for byte in e["bytes"])
            text = told.decode(errors="replace")
            marks = "\N{REPLACEMENT CHARACTER}"
            assert text.replace(marks, "") == choice["text"].replace(marks, "")


@pytest.mark.parametrize(("kind", "model"), [(COMPLETION, Completion), (CHAT, Chat)])
def test_every_field_that_asks_for_something_is_combined(kind, model):
    fields = model.model_json_schema()["properties"]
    silent = {
        name
        for name, field in fields.items()
        if field.get("description", "").startswith(("No effect", "Accepted; has no effect"))
    }
    tried = {name for values in covering(kind) for name in body(values, 0)}
    assert tried | silent | ALIKE == set(fields)


@pytest.mark.parametrize("model", [Completion, Chat])
def test_null_is_as_if_left_out(spelled, model):
    """For every field that may be left out, in what is asked and in what is nested."""
    path, asked = {
        Completion: ("/v1/completions", {"prompt": "the cat the"}),
        Chat: ("/v1/chat/completions", {"messages": CHAT["messages"][0], "max_tokens": 9}),
    }[model]
    asked |= {"seed": 3}
    plain = spelled.ask(path, asked).json()
    free = set(model.model_fields) - set(asked)
    nested = {"speculative": {"max_draft_tokens": None, "method": None, "trace": None}}
    for more in [{name: None} for name in sorted(free)] + [nested]:
        answer = spelled.ask(path, asked | more)
        assert answer.status_code == 200, (more, answer.text)
        found = answer.json()
        assert (found["choices"], found["usage"]["completion_tokens"]) == (
            plain["choices"],
            plain["usage"]["completion_tokens"],
        ), more
    assert model is Chat or plain["usage"]["completion_tokens"] == 16
