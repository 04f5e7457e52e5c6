"""A server under siege: streams of which a third leave, bad bodies, and stages that are killed.

The server is the command line's own, with its stages in processes of their own. What the streams
must say comes from plain decoding in this process.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from outrider import Engine, SpeculativeConfig, demo

START = "from outrider.cli.main import main; main()"
TOKENS = 32
BAD: list[tuple[bytes, int]] = [
    (b"", 400),
    (b"{", 400),
    (b"\xff\xfe", 400),
    (b"[" * 5000, 400),
    (b'{"prompt": 5}', 400),
    (b'{"prompt": "x", "n": 1000}', 400),
    (b'{"prompt": "x", "no_such_field": 1}', 400),
    (b'{"prompt": "a a a", "temperature": 1, "repetition_penalty": 1e-40}', 400),
    (b'{"prompt": [99999999]}', 400),
    (b'{"prompt": ""}', 400),
    (b'{"prompt": "x", "max_tokens": 0}', 400),
    (b'{"prompt": "x", "model": "other"}', 404),
    (json.dumps({"prompt": "word " * 200_000}).encode(), 400),
]


@dataclass
class Siege:
    """One server, what its streams must say, and what was seen of them."""

    address: str
    pid: int
    truths: dict[str, str]
    end: float
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    ended: int = 0
    left: int = 0
    kills: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    memory: list[int] = field(default_factory=list)
    quiet: float = 0.0
    newest: float = field(default_factory=time.monotonic)

    @property
    def over(self) -> bool:
        return time.monotonic() > self.end

    def heard(self) -> None:
        now = time.monotonic()
        self.quiet, self.newest = max(self.quiet, now - self.newest), now

    async def client(self, http: httpx.AsyncClient) -> None:
        """One stream after another; a third leave in the middle."""
        while not self.over:
            prompt = self.chance.choice(list(self.truths))
            leave = self.chance.randrange(TOKENS // 2) if self.chance.random() < 1 / 3 else None
            await self.stream(http, prompt, leave)

    async def stream(self, http: httpx.AsyncClient, prompt: str, leave: int | None) -> None:
        body = {"prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
        text, events = "", 0
        async with http.stream("POST", f"{self.address}/v1/completions", json=body) as response:
            if response.status_code != 200:
                self.errors[f"status {response.status_code}"] += 1
                return
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                self.heard()
                event = json.loads(line[6:])
                if "error" in event:
                    self.errors[event["error"]["message"]] += 1
                    return
                text += event["choices"][0]["text"]
                events += 1
                if leave is not None and events > leave:
                    self.left += 1
                    break
        truth = self.truths[prompt]
        if not (text == truth if leave is None else truth.startswith(text)):
            self.wrong.append(f"{prompt!r}: {text!r} for {truth!r}")
        self.ended += leave is None

    async def insult(self, http: httpx.AsyncClient) -> None:
        """Bodies that are refused, one after another."""
        while not self.over:
            body, status = self.chance.choice(BAD)
            headers = {"Content-Type": "application/json"}
            found = await http.post(f"{self.address}/v1/completions", content=body, headers=headers)
            assert found.status_code == status, (body[:100], found.text[:300])
            self.refused += 1
            await asyncio.sleep(0.2)

    async def kill(self, times: int) -> None:
        """Kill stages, evenly over the time but for its end."""
        pause = 0.85 * (self.end - time.monotonic()) / times
        for _ in range(times):
            await asyncio.sleep(pause)
            if found := children(self.pid):
                os.kill(self.chance.choice(found), signal.SIGKILL)
                self.kills += 1

    async def watch(self, every: float) -> None:
        while not self.over:
            await asyncio.sleep(every)
            self.memory.append(resident(self.pid))

    async def run(self, clients: int, kills: int, every: float) -> None:
        limits = httpx.Limits(max_connections=clients + 4)
        async with httpx.AsyncClient(timeout=300, limits=limits) as http:
            await asyncio.gather(
                *[self.client(http) for _ in range(clients)],
                self.insult(http),
                self.kill(kills),
                self.watch(every),
            )
            await self.stream(http, next(iter(self.truths)), None)


@contextmanager
def served(log: Path, *arguments: str, **settings: str) -> Iterator[tuple[str, int]]:
    """A server's address and process."""
    command = [sys.executable, "-c", START, "serve", "--port", "0", *arguments]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **settings})
    try:
        while " on http" not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        line = next(line for line in log.read_text().splitlines() if " on http" in line)
        yield line.split()[-1], process.pid
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()[-3000:]


def children(pid: int) -> list[int]:
    """Processes that a process has started and that run."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return [one for one in found if "State:\tZ" not in Path(f"/proc/{one}/status").read_text()]


def resident(pid: int) -> int:
    """Resident bytes of a process."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if "VmRSS" in line) * 1024


def plainly(count: int) -> dict[str, str]:
    """Prompts of the shipped sets, each with what plain decoding makes of it."""
    sets = [path.read_text(encoding="utf-8").splitlines() for path in demo.workloads().values()]
    texts = [json.loads(line)["prompt"] for lines in zip(*sets, strict=False) for line in lines]
    engine, found = Engine.load("demo", speculative=SpeculativeConfig(method="off")), {}
    for text in (text[:600] for text in texts[:count]):
        run = engine.generate(text, max_tokens=TOKENS, ignore_eos=True)
        list(run)
        found[text] = run.result.text
    engine.close()
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("clients", "seconds", "kills", "most_quiet"),
    [(16, 20, 2, 60.0), pytest.param(64, 180, 20, 10.0, marks=pytest.mark.soak)],
)
def test_a_server_under_siege(tmp_path, clients, seconds, kills, most_quiet):
    """`most_quiet`: seconds in which no stream says anything; longer than that is a hang. The short
    run shares the processor with other tests."""
    truths = plainly(24)
    flags = ("--target", "demo", "--stages", "2", "--stage-processes")
    settings = {"OUTRIDER_STAGES__RESUMES": "100"}
    with served(tmp_path / "log", *flags, **settings) as (address, pid):
        siege = Siege(address, pid, truths, end=time.monotonic() + seconds)
        asyncio.run(siege.run(clients, kills, every=seconds / 36))
        health = httpx.get(f"{address}/health", timeout=30)
        figures = httpx.get(f"{address}/metrics", timeout=30).text
    early, late = siege.memory[len(siege.memory) // 3], siege.memory[-1]
    print(
        f"{siege.ended} streams ended, {siege.left} left, {siege.kills} stages killed, "
        f"{siege.refused} bodies refused, longest silence {siege.quiet:.1f} s, memory "
        f"{early >> 20} MiB after a third and {late >> 20} at the end, errors {dict(siege.errors)}"
    )
    assert siege.wrong == []
    assert siege.errors == {}
    assert siege.kills == kills
    assert min(siege.ended, siege.left, siege.refused) > 0
    assert siege.quiet < most_quiet
    assert late < 1.05 * early or seconds < 60
    assert health.json() == {"status": "ok", "running": 0, "waiting": 0}
    assert "outrider_spec_decode_num_accepted_tokens_total" in figures
