"""Whatever is sent, the answer is a clean 4xx that names the field, and the server goes on."""

import json
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.errors import BusyError, ConfigError, RequestError
from outrider.server import bodies
from outrider.server.problems import problem_of
from tests.server.world import MODEL, byte_tokens, running

USER = [{"role": "user", "content": "hi"}]
COMPLETIONS = [
    ({}, "prompt", "Field required"),
    ({"prompt": ""}, None, "the prompt is empty"),
    ({"prompt": []}, "prompt", "at least 1 item"),
    ({"prompt": [1, "a"]}, "prompt", "valid"),
    ({"prompt": [96]}, None, "prompt token 96 is outside the vocabulary of 96"),
    ({"prompt": [-1]}, None, "outside the vocabulary"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens", "generates nothing"),
    ({"prompt": "a", "max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
    ({"prompt": "a", "max_tokens": 1.5}, "max_tokens", "valid integer"),
    ({"prompt": "a", "temperature": -1}, None, "temperature = -1.0 is out of range"),
    ({"prompt": "a", "temperature": "hot"}, "temperature", "valid number"),
    ({"prompt": "a", "top_p": 0}, None, "top_p"),
    ({"prompt": "a", "seed": -1}, None, "seed"),
    ({"prompt": "a", "n": 0}, "n", "greater than or equal to 1"),
    ({"prompt": "a", "n": True}, "n", "valid integer"),
    ({"prompt": "a", "logprobs": 21}, "logprobs", "less than or equal to 20"),
    ({"prompt": "a", "logit_bias": {"96": 1}}, None, "logit_bias names token 96"),
    ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias", "'x' is not a token id"),
    ({"prompt": "a", "logit_bias": {"1": 101}}, None, "from -100 to 100"),
    ({"prompt": "a", "stop": ["x"] * 10_000}, "stop", "at most 16 items"),
    ({"prompt": "a", "stop": ""}, "stop", "at least 1 character"),
    ({"prompt": "a", "best_of": 3}, "best_of", "not supported"),
    ({"prompt": "a", "suffix": "b"}, "suffix", "not supported"),
    ({"prompt": "a", "surprise": 1}, "surprise", "not a field that this server knows"),
    ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
    ({"prompt": "a", "speculative": {"method": "eagle3"}}, None, "not the one loaded"),
    ({"prompt": "a", "speculative": {"max_draft_tokens": 8}}, None, "windows have 8 rows"),
    (
        {"prompt": "a", "speculative": {"method": "off", "max_draft_tokens": 2}},
        None,
        "leave one of the two out",
    ),
    ([], None, "the body: must be a JSON object"),
    ("text", None, "the body"),
]
CHATS = [
    ({"messages": []}, "messages", "at least 1 item"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "messages.0.role"),
    ({"messages": [{"content": "x"}]}, "messages", "messages.0.role: Field required"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages",
        "messages.0.content",
    ),
    ({"messages": USER, "tools": [{"type": "function"}]}, "tools", "tools: is not supported"),
    ({"messages": USER, "store": True}, "store", "not supported"),
    ({"messages": USER, "response_format": {"type": "json_object"}}, "response_format", "not sup"),
    ({"messages": USER, "top_logprobs": 2}, "top_logprobs", "needs logprobs"),
    ({"messages": USER, "max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "contradicts"),
    ({"messages": USER, "max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
]


@pytest.mark.parametrize(("body", "param", "told"), COMPLETIONS)
def test_a_completion_is_refused(world, body, param, told):
    refused(world.ask("/v1/completions", body), 400, param, told)


@pytest.mark.parametrize(("body", "param", "told"), CHATS)
def test_a_chat_is_refused(world, body, param, told):
    refused(world.ask("/v1/chat/completions", body), 400, param, told)


def refused(response, status, param, told):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert told in error["message"]
    assert "Traceback" not in response.text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"prompt": "a"',
        b"\xff\xfe",
        b'{"prompt": "\xc3"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": NaN}',
        b"[" * 100_000,
        b'{"prompt": "a", "temperature": 1e999}',
    ],
)
def test_what_is_no_json_is_refused(world, data):
    response = world.ask("/v1/completions", data)
    assert response.status_code == 400
    assert response.json()["error"]["message"]
    assert world.complete(prompt="a", max_tokens=1)["usage"]["completion_tokens"] == 1


def test_long_prompts(world):
    response = world.ask("/v1/completions", {"prompt": [5] * 1_000_000})
    refused(response, 400, "prompt", "the prompt has 1000000 tokens and the context 512")
    assert response.json()["error"]["code"] == "context_length_exceeded"
    refused(world.ask("/v1/completions", {"prompt": "x" * 600}), 400, "prompt", "600 tokens")


def test_sizes_times_models_and_paths(hybrid):
    with running(hybrid.stage("log", 8), config={"max_body_mib": 1}) as world:
        huge = world.ask("/v1/completions", {"prompt": "x" * 2_000_000})
        refused(huge, 413, None, "larger than 1 MiB")
        other = world.ask("/v1/completions", {"prompt": "a", "model": "gpt"})
        refused(other, 404, "model", f"{MODEL!r} is")
        assert other.json()["error"]["code"] == "model_not_found"
        refused(world.get("/nowhere"), 404, None, "Not Found")
        refused(world.get("/v1/completions"), 405, None, "Method Not Allowed")


def test_a_request_that_takes_too_long(hybrid):
    with running(hybrid.stage("log", 8), config={"request_seconds": 0.001}) as world:
        response = world.ask("/v1/completions", {"prompt": "a" * 400, "max_tokens": 100})
        refused(response, 408, None, "took longer than 0.001 s")


def test_a_full_queue(hybrid):
    limits = {"max_sequences": 1, "max_queue": 1}
    with running(hybrid.stage("log", 8), **limits) as world:
        scheduler, poll, gate = world.service.scheduler, world.stage.run_batch, threading.Event()
        world.stage.run_batch = lambda: (gate.wait(60), poll())[1]
        prepared = scheduler.prepare("a", max_tokens=4)
        tickets = scheduler.submit([(prepared, lambda event: None)] * 2)
        response = world.ask("/v1/completions", {"prompt": "a", "n": 2})
        refused(response, 429, None, "queue of 1 is full")
        assert response.headers["retry-after"] == "1"
        scheduler.cancel(tickets)
        gate.set()


@pytest.mark.parametrize("body", [{"n": 4}, {"prompt": ["a"] * 4}, {"prompt": ["a"] * 2, "n": 2}])
def test_more_than_could_ever_run(hybrid, body):
    """Trying again later would not help, so it is no 429; what just fits is answered."""
    with running(hybrid.stage("log", 8), max_sequences=1, max_queue=2) as world:
        response = world.ask("/v1/completions", {"prompt": "a", **body})
        refused(response, 400, None, "the request asks for 4 sequences")
        assert "holds 3 at once" in response.json()["error"]["message"]
        assert "server.max_sequences or server.max_queue" in response.json()["error"]["message"]
        assert "retry-after" not in response.headers
        assert len(world.complete(prompt="a", n=3, max_tokens=1)["choices"]) == 3


LONG = 1_000_000
LONG_VALUES = [
    {"prompt": "a", "x" * LONG: 1},
    {"prompt": "a", "x x " * (LONG // 4): 1},
    {"prompt": "a", "speculative": {"x" * LONG: 1}},
    {"prompt": "a", "stream_options": {"é" * LONG: 1}},
    {"prompt": "a", "model": "x" * LONG},
    {"prompt": "a", "model": "x " * 500},
    {"prompt": "a", "logit_bias": {"x" * LONG: 1}},
    {"prompt": "a", "logit_bias": {"x" * LONG: "x"}},
    {"prompt": "a", "speculative": {"method": "x" * LONG}},
    {"prompt": "a", "speculative": {"method": "x " * 32}},
    {"prompt": "a", "service_tier": "x" * LONG},
    {"prompt": "a", "temperature": "x" * LONG},
    {"prompt": [10**4000]},
    {"prompt": [-(10**4000)]},
    {"prompt": "a", "seed": 10**4000},
    {"prompt": "a", "n": 10**4000},
    {"prompt": "x" * LONG},
    b'{"prompt": "a", "seed": ' + b"9" * LONG + b"}",
    b'{"prompt": ' + b"x" * LONG,
    b"x" * LONG,
    {"messages": [{"role": "x" * LONG, "content": ""}]},
    {"messages": [{"role": "user", "content": "", "x" * LONG: 1}]},
    {"messages": [{"role": "user", "content": [{"type": "x" * LONG}]}]},
    {"messages": USER, "chat_template_kwargs": {"x" * LONG: True}},
    {"messages": USER, "tools": ["x" * LONG]},
    {"messages": [{"role": "user", "content": "refuse" * 40_000}]},
]


@pytest.fixture(scope="module")
def worded(hybrid):
    with running(hybrid.stage("log", 8), tokenizer=byte_tokens()) as found:
        yield found


@pytest.mark.parametrize("body", LONG_VALUES, ids=range(len(LONG_VALUES)))
def test_what_is_sent_comes_back_cut(worded, body):
    chat = not isinstance(body, bytes) and "messages" in body
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = worded.ask(f"/v1/{'chat/' * chat}completions", data)
    assert response.status_code in (400, 404), response.text[:1000]
    error = response.json()["error"]
    assert len(error["message"]) < 700
    assert len(error["param"] or "") <= 200
    for unit in ("x", "x ", "x x ", "é", "refuse", "9", "0"):
        assert unit * (200 // len(unit) + 1) not in response.text


def test_a_model_that_is_not_served_by_a_long_name(worded):
    response = worded.get(f"/v1/models/{'x' * 50_000}")
    refused(response, 404, "model", f"{'x' * 199}…' is not served here; 'tiny' is")
    assert len(response.text) < 500


def test_errors_of_any_origin_are_cut():
    """Those of the engine and templates too, in whatever words."""
    for error in (RequestError("a b " * 1000), ConfigError("1" * 5000), BusyError("word " * 900)):
        message = problem_of(error).body()["error"]["message"]
        assert message[:10] == str(error)[:10]
        assert len(message) <= 210


def test_a_million_faults_are_one_answer(worded, monkeypatch):
    """What is wrong is told of the first; the others are not even collected."""
    seen = []
    monkeypatch.setattr(
        bodies, "problem_of", lambda error: (seen.append(error), problem_of(error))[1]
    )
    many = 200_000
    for body, param in (
        ({"prompt": "a", **{f"x{at}": 1 for at in range(many)}}, "x0"),
        ({"prompt": [1, *["a"] * many]}, "prompt"),
        ({"prompt": [[1], ["a"] * many]}, "prompt"),
        ({"prompt": "a", "logit_bias": {f"x{at}": "x" for at in range(many)}}, "logit_bias"),
        ({"prompt": "a", "stop": [1] * many}, "stop"),
        ({"messages": [1] * many}, "messages"),
        ({"messages": [{"role": "user", "content": [1] * many}]}, "messages"),
    ):
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        response = worded.ask(path, body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
        assert seen.pop().error_count() < 10
    assert (
        worded.ask("/v1/completions", {"prompt": "a", "logit_bias": {"07": 1}}).status_code == 400
    )


def test_a_draining_server(hybrid):
    with running(hybrid.stage("log", 8)) as world:
        world.service.scheduler.drain()
        response = world.ask("/v1/completions", {"prompt": "a"})
        refused(response, 503, None, "going down")


def test_keys(hybrid):
    with running(hybrid.stage("log", 8), config={"api_key": "one, two"}) as world:
        for given in ({}, {"authorization": "Bearer three"}, {"authorization": "Basic one"}):
            refused(world.ask("/v1/completions", {"prompt": "a"}, **given), 401, None, "API key")
            assert world.get("/v1/models", **given).status_code == 401
        for key in ("one", "two"):
            header = {"authorization": f"Bearer {key}"}
            body = {"prompt": "x" * 130, "max_tokens": 1}
            found = world.ask("/v1/completions", body, **header).json()
            assert found["timings"]["cache_n"] == 0, "not shared across keys"
        again = world.ask("/v1/completions", body, **header).json()
        assert again["timings"]["cache_n"] == 128
        assert world.get("/health").status_code == 200


def test_a_failing_engine_tells_no_secrets(world, monkeypatch, caplog):
    def failing():
        raise RuntimeError("/secret/path")

    with monkeypatch.context() as patch:
        patch.setattr(world.stage, "run_batch", failing)
        response = world.ask("/v1/completions", {"prompt": "a"})
    refused(response, 500, None, "the server's log says why")
    assert "secret" not in response.text
    assert "/secret/path" in caplog.text
    assert world.complete(prompt="a", max_tokens=1)


def test_prompts_are_not_logged(world, caplog):
    caplog.set_level("DEBUG")
    world.complete(prompt="private", max_tokens=1)
    world.ask("/v1/completions", {"prompt": "private", "temperature": -1})
    assert "private" not in caplog.text


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_body_makes_it_fail(world, data):
    """Bodies made from the server's own description, with values that may not fit."""
    schemas = world.get("/openapi.json").json()["components"]["schemas"]
    path, name = data.draw(
        st.sampled_from([("/v1/completions", "Completion"), ("/v1/chat/completions", "Chat")])
    )
    names = sorted(schemas[name]["properties"])
    body = data.draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=4))
    body |= {"prompt": "ab", "max_tokens": 2} if name == "Completion" else {"messages": USER}
    body["n"] = min(body.get("n") or 1, 4) if isinstance(body.get("n"), int) else body.get("n")
    body["max_tokens"] = 2
    body |= data.draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=1))
    if isinstance(body.get("max_tokens"), int) and body["max_tokens"] > 50:
        body["max_tokens"] = 3
    response = world.ask(path, json.dumps(body).encode())
    assert response.status_code in (200, 400, 404, 429), (body, response.text)
