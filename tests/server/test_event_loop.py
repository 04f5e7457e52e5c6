"""Long answers are made beside the event loop, in time that grows as they do."""

import asyncio
import json
import random
import threading

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.server import exchange, writing
from outrider.server.places import Names
from tests.server.world import byte_tokens, events, running

PATIENCE = 60
"""Seconds after which a test is taken to hang."""


@pytest.fixture(scope="module")
def worded(hybrid):
    with running(hybrid.stage("log", 8), tokenizer=byte_tokens()) as found:
        yield found


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_other_requests_go_on_while_a_long_answer_is_made(worded, monkeypatch, stream):
    """The long answer's names wait until another request, begun later, has been answered."""
    begun, gate = threading.Event(), threading.Event()
    name = Names.name

    def waiting(names, token):
        begun.set()
        assert gate.wait(PATIENCE), "the other request was never answered"
        return name(names, token)

    monkeypatch.setattr(Names, "name", waiting)
    body = {"prompt": ["the cat " * 20] * 3, "echo": True, "logprobs": 5, "max_tokens": 2}

    async def both():
        async with worded.client() as client:
            long = asyncio.create_task(
                client.post("/v1/completions", json=body | {"stream": stream})
            )
            assert await asyncio.to_thread(begun.wait, PATIENCE)
            short = await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 5})
            waited = not long.done()
            gate.set()
            return await long, short, waited

    long, short, waited = asyncio.run(both())
    assert (long.status_code, short.status_code, waited) == (200, 200, True)
    if stream:
        assert sum(len(c["text"]) > 100 for e in events(long) for c in e["choices"]) == 3
    else:
        assert [len(c["logprobs"]["tokens"]) for c in long.json()["choices"]] == [
            long.json()["usage"]["prompt_tokens"] // 3 + 2
        ] * 3


def test_many_events_at_once_are_told_beside_the_event_loop(worded, monkeypatch):
    """A client that reads slowly finds them heaped up; they come in small portions."""
    loop, portions = [], []
    chunks = exchange.Choices.chunks

    def watched(choices, found):
        portions.append((len(found), threading.get_ident() != loop[0]))
        return chunks(choices, found)

    monkeypatch.setattr(exchange.Choices, "chunks", watched)
    gate, poll = threading.Event(), exchange.Exchange._next

    async def late(self, deadline):
        if len(portions) == 1:
            await asyncio.to_thread(gate.wait, 2)  # Meanwhile the engine goes on.
        return await poll(self, deadline)

    monkeypatch.setattr(exchange.Exchange, "_next", late)
    body = {"prompt": ["a"] * 8, "max_tokens": 40, "stream": True, "ignore_eos": True}

    async def one():
        loop.append(threading.get_ident())
        async with worded.client() as client:
            return await client.post("/v1/completions", json=body)

    found = events(asyncio.run(one()))
    assert [e["choices"][0]["finish_reason"] for e in found].count("length") == 8
    assert max(size for size, _ in portions) == exchange.AT_ONCE
    assert all(apart for size, apart in portions if size == exchange.AT_ONCE)


def work(world, size, monkeypatch):
    """Ids that are decoded, names that are asked for and letters that are joined for a prompt."""
    tokenizer, counts = world.engine.tokenizer, {"decoded": 0, "names": 0, "joined": 0}
    decode, name, gathered = tokenizer.decode, tokenizer.token_name, writing._gathered

    def decoded(ids, **options):
        counts["decoded"] += len(ids)
        return decode(ids, **options)

    def named(token):
        counts["names"] += 1
        return name(token)

    def joined(texts):
        for part in gathered(texts):
            counts["joined"] += len(part)
            yield part

    with monkeypatch.context() as patch:
        patch.setattr(tokenizer, "decode", decoded)
        patch.setattr(tokenizer, "token_name", named)
        patch.setattr(writing, "_gathered", joined)
        prompt = random.Random(size).choices(range(70), k=size)
        (choice,) = world.complete(prompt=prompt, echo=True, logprobs=20, max_tokens=1)["choices"]
    assert len(choice["logprobs"]["tokens"]) == size + 1
    return counts


def test_work_grows_with_the_prompt_not_with_its_square(worded, monkeypatch):
    """Each token is decoded with a few others, and named once for all requests."""
    small, large = (work(worded, size, monkeypatch) for size in (50, 400))
    assert large["decoded"] <= 40 * 400
    assert large["decoded"] < 10 * small["decoded"]
    assert large["joined"] < 10 * small["joined"]
    assert small["names"] + large["names"] <= worded.engine.tokenizer.vocab_size


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=30,
)


@given(VALUES, st.integers(1, 200))
def test_parts_joined_are_the_json(value, times):
    for whole in (value, [value] * times, {"a": [value] * times, "b": value}):
        assert b"".join(writing.parts(whole)) == json.dumps(whole, ensure_ascii=False).encode()


def test_no_part_is_long_and_none_is_written_at_once(monkeypatch):
    """The encoder keeps every other thread waiting, so that it gets a little at a time."""
    written, dumps = [], writing._dumps

    def watched(value):
        written.append(len(value) if isinstance(value, list) else 1)
        return dumps(value)

    monkeypatch.setattr(writing, "_dumps", watched)
    top = [{f"token {place}": -1.0 for place in range(20)} for _ in range(4000)]
    logprobs = {"tokens": ["x"] * 4000, "top_logprobs": top, "text_offset": list(range(4000))}
    chat = [{"token": "x", "bytes": [120], "top_logprobs": top[:3]} for _ in range(300)]
    value = {"choices": [{"logprobs": logprobs} for _ in range(4)] + [{"content": chat}]}
    parts = writing.parts(value)
    assert json.loads(b"".join(parts)) == value
    assert max(written) == writing.ITEMS
    assert len(parts) > 10
    assert max(map(len, parts)) < 2 * writing.PART


def test_a_long_answer_comes_in_parts_of_a_known_length(worded):
    """Over HTTP too: the length is told, and the parts make it up."""
    sent = []

    async def ask():
        async def send(message):
            sent.append(message)

        async def receive():
            if not sent_body:
                sent_body.append(True)
                return {"type": "http.request", "body": body, "more_body": False}
            await asyncio.sleep(PATIENCE)
            return {"type": "http.disconnect"}

        sent_body = []
        body = json.dumps(
            {"prompt": ["the cat " * 40] * 16, "echo": True, "logprobs": 20, "max_tokens": 0}
        ).encode()
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            "query_string": b"",
        }
        await worded.app()(scope, receive, send)

    asyncio.run(ask())
    start, *rest = sent
    length = int(httpx.Headers(start["headers"])["content-length"])
    assert [part.get("more_body", False) for part in rest][-1] is False
    assert sum(len(part["body"]) for part in rest) == length > 2 * writing.PART
    assert len(rest) > 3
