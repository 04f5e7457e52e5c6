"""Load on `outrider serve`: many streams beside one, speculation beside plain, clients that leave.

    python benchmarks/serve.py [--target demo] [--streams 16] [--tokens 128] [--rounds 3]
    python benchmarks/serve.py --leave 2000
    python benchmarks/serve.py --turns 10

Starts the server in a process of its own on a loopback port. The first form runs legs in turn (one
stream plain, all plain, all speculative, one speculative) and prints medians of their ratios. A
stream's speed counts from its request, so waiting and reading the prompt are part of it. In a
leg of many, each client sends one request behind another; what counts are the tokens between the
end of the first request and the begin of the last one, when all clients have a stream: streams that
are drafted well end early, and would leave the others alone with a server that is not full. The
second sends requests of which a third leave at random, and compares what is left of them. The
third measures the first token of a chat's second turn with and without its first. The last line is
one line of JSON.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from outrider import demo

START = "from outrider.cli.main import main; main()"
OFF = {"max_draft_tokens": 0}
EACH = 4
"""Requests of a client in a leg of many."""


@dataclass(frozen=True)
class Server:
    """A running server: its address and its process."""

    address: str
    pid: int

    def figure(self, name: str) -> float:
        text = httpx.get(f"{self.address}/metrics", timeout=60).text
        lines = [line for line in text.splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def memory(self) -> int:
        """Resident bytes."""
        text = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) for line in text.splitlines() if "VmRSS" in line) * 1024


@dataclass(frozen=True)
class Stream:
    """What one client saw: tokens, and seconds from its request to its first and last one."""

    text: str
    tokens: int
    first: float
    last: float
    cached: int = 0

    @property
    def speed(self) -> float:
        return self.tokens / self.last


@contextmanager
def served(*arguments: str) -> Iterator[Server]:
    command = [sys.executable, "-c", START, "serve", "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = next(line for line in process.stderr if "serving" in line)
        yield Server(line.split()[-1], process.pid)
    finally:
        process.terminate()
        process.wait(60)


def prompts(count: int) -> list[str]:
    """Prompts of the shipped sets in turn."""
    sets = [path.read_text(encoding="utf-8").splitlines() for path in demo.workloads().values()]
    texts = [json.loads(line)["prompt"] for lines in zip(*sets, strict=False) for line in lines]
    return [texts[place % len(texts)][:1500] for place in range(count)]


async def events(
    client: httpx.AsyncClient, address: str, body: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    async with client.stream("POST", f"{address}/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line[6:])


async def follow(
    client: httpx.AsyncClient, address: str, prompt: Any, leave: int | None = None, **more: Any
) -> Stream:
    """Read one stream to its end, or until `leave` events have come."""
    body = {"prompt": prompt, "temperature": 0, "stream": True, "ignore_eos": True, **more}
    began, first, text, seen, timings = time.perf_counter(), 0.0, "", 0, {}
    async for event in events(client, address, body):
        first = first or time.perf_counter() - began
        text += event["choices"][0]["text"]
        timings = event.get("timings", timings)
        seen += 1
        if leave is not None and seen > leave:
            break
    last = time.perf_counter() - began
    return Stream(text, timings.get("predicted_n", 0), first, last, timings.get("cache_n", 0))


@dataclass(frozen=True)
class Leg:
    """Streams by prompt; tokens per second while all clients had one, and of the whole leg."""

    streams: dict[str, Stream]
    full: float
    whole: float


async def leg(server: Server, clients: int, tokens: int, speculative: dict[str, Any]) -> Leg:
    """`clients` at once, `EACH` requests for each of several; a single one sends one."""
    texts = prompts(clients * EACH if clients > 1 else 1)
    waiting, found, marks = list(reversed(texts)), dict[str, Stream](), list[tuple[float, float]]()

    async def mark() -> None:
        done = await asyncio.to_thread(server.figure, "outrider_generation_tokens_total")
        marks.append((time.perf_counter(), done))

    async def one(client: httpx.AsyncClient) -> None:
        while waiting:
            text = waiting.pop()
            if not waiting:
                await mark()
            more = {"max_tokens": tokens, "speculative": speculative}
            found[text] = await follow(client, server.address, text, **more)
            if len(found) == 1:
                await mark()

    limits, began = httpx.Limits(max_connections=clients), time.perf_counter()
    async with httpx.AsyncClient(timeout=600, limits=limits) as client:
        await asyncio.gather(*[one(client) for _ in range(clients)])
    whole = sum(stream.tokens for stream in found.values()) / (time.perf_counter() - began)
    (first, before), (last, after) = marks[:2]
    return Leg(found, (after - before) / (last - first) if clients > 1 else whole, whole)


def load(options: argparse.Namespace) -> dict[str, Any]:
    legs = {"one plain": (1, OFF), "all plain": (options.streams, OFF)}
    legs |= {"all speculative": (options.streams, {}), "one speculative": (1, {})}
    rounds: list[dict[str, Leg]] = []
    with served("--target", options.target, *options.flags) as server:
        for number in range(options.rounds + 1):
            done = {
                name: asyncio.run(leg(server, streams, options.tokens, how))
                for name, (streams, how) in legs.items()
            }
            if number:  # The first round warms up.
                rounds.append(done)
    for done in rounds:
        plain = {text: one.text for text, one in done["all plain"].streams.items()}
        for found in done.values():
            assert all(plain[text] == one.text for text, one in found.streams.items())

    def median(one: str, other: str, figure: str = "full") -> float:
        pairs = [(getattr(done[one], figure), getattr(done[other], figure)) for done in rounds]
        return statistics.median(first / second for first, second in pairs)

    def slowest(name: str) -> float:
        speeds = [[one.speed for one in done[name].streams.values()] for done in rounds]
        return min(min(speed) / statistics.median(speed) for speed in speeds)

    def kept() -> list[float]:
        """The speeds of a prompt under speculation, to those in the plain leg of its round."""
        both = [(done["all speculative"].streams, done["all plain"].streams) for done in rounds]
        return [fast[text].speed / plain[text].speed for fast, plain in both for text in plain]

    return {
        "streams": options.streams,
        "plain tokens/s, one": statistics.median(done["one plain"].full for done in rounds),
        "all plain / one plain": median("all plain", "one plain"),
        "all speculative / all plain": median("all speculative", "all plain"),
        "the same, begin and end included": median("all speculative", "all plain", "whole"),
        "one speculative / one plain": median("one speculative", "one plain"),
        "slowest / median stream, plain": slowest("all plain"),
        "slowest / median stream, speculative": slowest("all speculative"),
        "speculative / plain stream, slowest": min(kept()),
        "speculative / plain stream, median": statistics.median(kept()),
    }


async def leaving(server: Server, count: int, tokens: int) -> tuple[int, list[int]]:
    """Send `count` requests, 16 at once; returns how many left, and its bytes at every fifth."""
    chance, texts = random.Random(7), prompts(24)
    known: dict[str, str] = {}
    gate, memory = asyncio.Semaphore(16), list[int]()
    left = 0

    async def one(client: httpx.AsyncClient, number: int) -> None:
        nonlocal left
        prompt = texts[number % len(texts)]
        leave = chance.randrange(tokens // 2) if chance.random() < 1 / 3 else None
        async with gate:
            found = await follow(client, server.address, prompt, leave, max_tokens=tokens)
        left += leave is not None
        if leave is None:
            assert known.setdefault(prompt, found.text) == found.text, "an output changed"
        if number and number % (count // 5) == 0:
            memory.append(server.memory())

    async with httpx.AsyncClient(timeout=600) as client:
        await asyncio.gather(*[one(client, number) for number in range(count)])
        alone = [await follow(client, server.address, text, max_tokens=tokens) for text in texts]
    assert [known[text] for text in texts] == [found.text for found in alone]
    memory.append(server.memory())
    return left, memory


def leave(options: argparse.Namespace) -> dict[str, Any]:
    with served("--target", options.target, *options.flags) as server:
        left, memory = asyncio.run(leaving(server, options.leave, 24))
        return {
            "requests": options.leave,
            "left": left,
            "sequences at the end": server.figure("outrider_sequences"),
            "MiB at every fifth": [size >> 20 for size in memory],
            "memory, late / early": memory[-1] / memory[0],
        }


async def turn(server: Server, number: int, tokens: int) -> tuple[float, float]:
    """First tokens' times of a second turn, fresh and behind its first turn."""
    long = prompts(8)
    first = f"# {number}\n" + "\n".join(long[number % 4 : number % 4 + 4])
    async with httpx.AsyncClient(timeout=600) as client:
        one = await follow(client, server.address, first, max_tokens=tokens)
        second = first + one.text + "\n# and then\n"
        found = await follow(client, server.address, second, max_tokens=tokens)
        # The same length from its first token on, but with another beginning: nothing is reused.
        fresh = await follow(client, server.address, "#" + second, max_tokens=tokens)
    assert found.cached > 0
    assert fresh.cached == 0
    return found.first, fresh.first


def turns(options: argparse.Namespace) -> dict[str, Any]:
    with served("--target", options.target, *options.flags) as server:
        times = [asyncio.run(turn(server, number, 16)) for number in range(options.turns + 1)][1:]
    ratios = [reused / fresh for reused, fresh in times]
    return {"turns": options.turns, "first token, reused / fresh": statistics.median(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="demo")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--leave", type=int, default=0)
    parser.add_argument("--turns", type=int, default=0)
    options, options.flags = parser.parse_known_args()
    chosen = leave if options.leave else turns if options.turns else load
    found = chosen(options)
    for name, value in found.items():
        print(f"{name:32} {value:.3f}" if isinstance(value, float) else f"{name:32} {value}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
