"""A real server on a loopback port: OpenAI's own client, clients that leave, slow clients."""

import gc
import json
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from outrider.engine.session import Session
from outrider.server.exchange import Exchange
from tests.exactness.targets import prompts
from tests.server.test_completions import alone
from tests.server.world import MODEL, listening, running

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def live(hybrid):
    """A server with its address and OpenAI's client of it."""
    config = {"api_key": "key", "body_seconds": 0.5}
    with (
        running(hybrid.stage("log", 8), config=config) as world,
        listening(world) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="key", max_retries=0) as client,
    ):
        yield world, address, client


def test_openais_client(live):
    world, address, client = live
    assert [model.id for model in client.models.list()] == [MODEL]
    prompt = prompts()[1]
    text = alone(world, prompt, {"logprobs": 2}, 12)
    found = client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=12, temperature=0, logprobs=2
    )
    assert found.choices[0].text == text.text
    assert found.choices[0].logprobs.token_logprobs == [e.logprob for e in text.logprobs]
    chunks = client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=12, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == text.text

    chat = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_completion_tokens=9,
        logprobs=True,
        top_logprobs=2,
        temperature=0,
        tools=[],
    )
    prompt = world.engine.tokenizer.encode_chat(MESSAGES)
    text = alone(world, prompt, {"logprobs": 2}, 9)
    assert chat.choices[0].message.content == text.text
    entries = chat.choices[0].logprobs.content
    assert [entry.logprob for entry in entries] == [e.logprob for e in text.logprobs]
    assert chat.usage.completion_tokens == 9

    chunks = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=9, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text.text
    with pytest.raises(openai.BadRequestError, match="tools"):
        client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
        )
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{address}/v1", api_key="other", max_retries=0).models.list()
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="x" * 600)
    assert caught.value.code == "context_length_exceeded"


def test_clients_that_leave_free_everything_and_disturb_nobody(live):
    """A third leaves at random; nothing is left behind, and the others' outputs are exact."""
    world, address, _ = live
    chance = random.Random(5)
    expected = {place: alone(world, prompt, {}, 24).text for place, prompt in enumerate(prompts())}

    def one(number):
        place, leaves = number % len(prompts()), chance.random() < 1 / 3
        after = chance.randrange(3)
        body = {"prompt": prompts()[place], "max_tokens": 24, "temperature": 0, "stream": True}
        text, seen = "", 0
        with (
            httpx.Client(headers={"Authorization": "Bearer key"}, timeout=60) as client,
            client.stream("POST", f"{address}/v1/completions", json=body) as response,
        ):
            for line in response.iter_lines():
                if leaves and seen == after:
                    return None
                if line.startswith("data: {"):
                    seen += 1
                    text += json.loads(line[6:])["choices"][0]["text"]
        assert text == expected[place]
        return text

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(one, range(48)))
    assert 8 < texts.count(None) < 30
    deadline = time.monotonic() + 30
    while world.stage.num_sessions and time.monotonic() < deadline:
        time.sleep(0.05)
    seen = world.service.scheduler.snapshot().result(60)
    assert (seen.running, seen.waiting, seen.state_bytes) == (0, 0, 0)
    assert world.stage.num_sessions == 0
    gc.collect()
    held = [type(one) for one in gc.get_objects() if type(one) in (Session, Exchange)]
    assert held == [], "no request is remembered"


def test_a_client_that_leaves_while_it_waits_is_dropped(live):
    world, address, _ = live
    before = world.service.scheduler.snapshot().result(60).counters
    assert "tested" not in before
    gate = threading.Event()
    poll = world.stage.run_batch
    world.stage.run_batch = lambda: (gate.wait(60), poll())[1]
    body = {"prompt": prompts()[1], "max_tokens": 400}
    with (
        httpx.Client(headers={"Authorization": "Bearer key"}, timeout=0.5) as client,
        pytest.raises(httpx.ReadTimeout),
    ):
        client.post(f"{address}/v1/completions", json=body)
    deadline = time.monotonic() + 30
    tickets = world.service.scheduler._shared.running
    while not all(ticket.cancelled for ticket in tickets) and time.monotonic() < deadline:
        time.sleep(0.02)
    gate.set()
    seen = world.service.scheduler.snapshot().result(60)
    assert seen.running == 0
    assert seen.counters["tested"].emitted < 400


def raw(address, data, pause=0.0):
    """What the server answers to bytes sent as they are, the last ones after a pause."""
    parts = urlsplit(address)
    with closing(socket.create_connection((parts.hostname, parts.port), timeout=30)) as sock:
        sock.sendall(data[:-1])
        time.sleep(pause)
        sock.sendall(data[-1:])
        found = b""
        while part := sock.recv(65536):
            found += part
            if b"\r\n\r\n" in found and not pause and b"}" in found:
                break
        return found


def test_slow_and_broken_clients(live):
    _, address, client = live
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer key\r\n"
        b"Content-Type: application/json\r\n"
    )
    slow = raw(address, head + b'Content-Length: 30\r\n\r\n{"prompt": ', pause=1.0)
    assert slow.startswith(b"HTTP/1.1 408")
    assert b"body_timeout" in slow
    assert raw(address, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400")
    bad = raw(address, head + b'Content-Length: 13\r\n\r\n{"prompt": "\xff')
    assert bad.startswith(b"HTTP/1.1 400")
    huge = raw(address, head + b"Content-Length: 99999999999\r\n\r\n{")
    assert huge.startswith(b"HTTP/1.1 413")
    found = client.completions.create(model=MODEL, prompt="a", max_tokens=2, temperature=0)
    assert found.usage.completion_tokens == 2


def follow(address, body):
    """The lines of a stream as they come, and the thread that reads them; waits for the first."""
    lines, begun = [], threading.Event()

    def read():
        with httpx.stream("POST", f"{address}/v1/completions", json=body) as response:
            for line in response.iter_lines():
                lines.append(line)
                begun.set()

    thread = threading.Thread(target=read)
    thread.start()
    begun.wait(60)
    return lines, thread


def test_the_end_lets_streams_finish(hybrid):
    with running(hybrid.stage("log", 8)) as world:
        with listening(world) as address:
            body = {"prompt": prompts()[1], "max_tokens": 60, "temperature": 0, "stream": True}
            text, thread = follow(address, body)
        thread.join(60)
        assert text[-2] == "data: [DONE]"
        found = [json.loads(line[6:]) for line in text if line.startswith("data: {")]
        expected = alone(world, prompts()[1], {}, 60).text
        assert "".join(event["choices"][0]["text"] for event in found) == expected


def test_the_end_does_not_wait_for_ever(hybrid):
    """What is not done in time ends with an error that says why, within the stream."""
    with running(hybrid.stage("log", 8), config={"shutdown_seconds": 0.0}) as world:
        poll = world.stage.run_batch
        world.stage.run_batch = lambda: (time.sleep(0.1), poll())[1]
        with listening(world) as address:
            body = {"prompt": prompts()[1], "max_tokens": 400, "ignore_eos": True, "stream": True}
            lines, thread = follow(address, body)
        thread.join(60)
    error = json.loads([line for line in lines if line][-1][6:])["error"]
    assert error["code"] == "shutting_down"
