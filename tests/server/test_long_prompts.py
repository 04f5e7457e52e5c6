"""Prompts of megabytes: refused at once, nobody waits for them, and no memory stays taken."""

import json
import threading
from pathlib import Path

import httpx
import pytest

from outrider.server import app
from tests.server.test_command import started
from tests.server.test_loopback import follow
from tests.server.world import listening, running

SIZE = 7_000_000
SOME = 5
MOST_GROWTH_MIB = 200
"""Far from the 1,300 MiB that such prompts took, and from the 8 MiB that each has."""
TEXT = "of all the words that are in a text of such a size some are long, and many are not. "


def resident(pid: int, kind: str) -> int:
    """MiB that a process has in memory now (VmRSS), or had at most (VmHWM)."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:")) >> 10


@pytest.fixture(scope="module")
def server():
    """`outrider serve` in a process of its own: its address and process id."""
    with started("--port", "0") as process:
        line = process.stderr.readline()
        assert line.startswith("outrider: serving demo"), line
        yield line.split()[-1], process.pid


LONG_TEXT = (TEXT * (SIZE // len(TEXT) + 1))[:SIZE]
TOO_LONG = {
    "text": lambda: {"prompt": LONG_TEXT},
    "one word": lambda: {"prompt": "a" * SIZE},
    "white space": lambda: {"prompt": " " * SIZE},
    "texts": lambda: {"prompt": ["a", LONG_TEXT]},
    "ids": lambda: {"prompt": [7] * (SIZE // 3)},
}
WRONG = {
    "many texts": lambda: {"prompt": ["a"] * (SIZE // 5)},
    "no ids": lambda: {"prompt": [1.5] * (SIZE // 5)},
    "many lists": lambda: {"prompt": [[]] * (SIZE // 4)},
    "half a list": lambda: {"prompt": [*[5] * (SIZE // 3), "a"]},
    "stops": lambda: {"prompt": "a", "stop": [1] * (SIZE // 3)},
}


@pytest.mark.parametrize("name", [*TOO_LONG, *WRONG])
def test_a_long_body_is_refused_and_takes_nothing(server, name):
    """At no time much more than its own size, and the server goes on."""
    address, pid = server
    body = (TOO_LONG | WRONG)[name]()
    data = json.dumps(body, separators=(",", ":")).encode()
    headers = {"content-type": "application/json"}
    before = resident(pid, "VmRSS")
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")  # VmHWM begins anew.
    for _ in range(SOME):
        url = f"{address}/v1/completions"
        answer = httpx.post(url, content=data, headers=headers, timeout=120)
        assert answer.status_code == 400, answer.text
        assert len(answer.text) < 1000
        told = answer.json()["error"]["code"]
        assert (told == "context_length_exceeded") == (name in TOO_LONG)
    assert resident(pid, "VmHWM") - before < MOST_GROWTH_MIB
    assert resident(pid, "VmRSS") - before < MOST_GROWTH_MIB
    assert httpx.get(f"{address}/health", timeout=60).status_code == 200


def test_a_stream_goes_on_beside_long_prompts(server):
    """It gets tokens while they are read and refused, and ends as it should."""
    address, _ = server
    body = {"prompt": "a", "max_tokens": 900, "ignore_eos": True, "stream": True}
    body["speculative"] = {"max_draft_tokens": 0}
    lines, thread = follow(address, body)
    before = len(lines)
    for _ in range(SOME):
        answer = httpx.post(f"{address}/v1/completions", json={"prompt": LONG_TEXT}, timeout=120)
        assert answer.status_code == 400
    assert len(lines) > before
    thread.join(120)
    assert lines[-2] == "data: [DONE]"


def test_long_bodies_are_planned_one_after_the_other_and_hold_back_no_short_one(hybrid):
    with running(hybrid.stage("log", 8)) as world:
        tokenizer, encode = world.engine.tokenizer, world.engine.tokenizer.encode
        at_work, most, begun, gate = [], [], threading.Event(), threading.Event()

        def slow(text, **options):
            if len(text) < app.LONG_BODY:
                return encode(text, **options)
            at_work.append(1)
            most.append(len(at_work))
            begun.set()
            gate.wait(60)
            at_work.pop()
            return encode(text[:9])

        tokenizer.encode = slow
        long, found = {"prompt": "a" * app.LONG_BODY, "max_tokens": 1}, []
        with listening(world) as address:
            url = f"{address}/v1/completions"
            asking = [
                threading.Thread(
                    target=lambda: found.append(httpx.post(url, json=long, timeout=60).status_code)
                )
                for _ in range(SOME)
            ]
            for thread in asking:
                thread.start()
            begun.wait(60)
            short = httpx.post(url, json={"prompt": "a", "max_tokens": 1}, timeout=60)
            assert short.status_code == 200
            assert found == [], "the long ones still wait"
            gate.set()
            for thread in asking:
                thread.join(60)
        assert found == [200] * SOME
        assert most == [1] * SOME
