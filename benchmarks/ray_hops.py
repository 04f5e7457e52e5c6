"""What one hop costs: Ray's actor calls, and the sockets that stages use instead.

    python benchmarks/ray_hops.py [--rows 8] [--width 4096] [--calls 400]

Starts a Ray of its own for a moment. Milliseconds, the median of single calls and the mean of many
in flight, for rows of hidden states in fp32. Chained references go through their owner, which is
the coordinator, where they are smaller than 100 KiB.
"""

import argparse
import os
import socket
import statistics
import time
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

import ray
import torch

from outrider.records import Window
from outrider.stage.base import Frame
from outrider.stage.channel import Inbox, Outbox
from outrider.stage.link import LOCAL
from outrider.stage.peer import listen

IN_FLIGHT = 16


@ray.remote
class Stage:
    """Hands on what it is given, to the stage behind it where there is one."""

    def __init__(self, behind: Any = None) -> None:
        self._behind = behind

    def run(self, rows: Any) -> Any:
        return rows

    def through(self, rows: Any) -> Any:
        return ray.get(self._behind.run.remote(rows))


def median_ms(call: Callable[[], object], calls: int) -> float:
    def timed() -> float:
        began = time.perf_counter()
        call()
        return (time.perf_counter() - began) * 1e3

    return statistics.median([timed() for _ in range(calls)][calls // 10 :])


def pipelined_ms(send: Callable[[], Any], take: Callable[[Any], object], calls: int) -> float:
    """Mean of calls of which 16 are in flight."""
    began, flying = time.perf_counter(), [send() for _ in range(IN_FLIGHT)]
    for _ in range(calls):
        take(flying.pop(0))
        flying.append(send())
    for one in flying:
        take(one)
    return (time.perf_counter() - began) * 1e3 / (calls + IN_FLIGHT)


def echo(into: tuple[str, int], out: tuple[str, int]) -> None:
    """A process between two sockets: what comes in goes out."""
    inbox = Inbox(socket.create_connection(into), LOCAL, 0)
    outbox = Outbox(socket.create_connection(out))
    while True:
        for message in inbox.take():
            if message is None:
                return
            outbox.send(message)


def ray_hops(rows: torch.Tensor, calls: int) -> dict[str, float]:
    """One hop there and one back, two there and two back, and two there in one of many."""
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    tail = Stage.remote()
    head = Stage.remote(tail)
    array = rows.numpy()
    found = {
        "coordinator to actor and back": median_ms(lambda: ray.get(head.run.remote(array)), calls),
        "through two actors and back": median_ms(
            lambda: ray.get(head.through.remote(array)), calls
        ),
        "two actors by reference, 16 in flight": pipelined_ms(
            lambda: tail.run.remote(head.run.remote(array)), ray.get, calls
        ),
    }
    ray.shutdown()
    return found


def wire_hops(rows: torch.Tensor, calls: int) -> dict[str, float]:
    """The same rows as a frame to a process and back."""
    tokens = tuple(range(len(rows)))
    window = Window(session=0, id=0, epoch=0, start=0, floor=0, tokens=tokens, wanted=len(rows))
    frame = Frame.of(window, hidden=rows)
    with listen("127.0.0.1") as there, listen("127.0.0.1") as back:
        places = there.getsockname(), back.getsockname()
        process = get_context("spawn").Process(target=echo, args=places, daemon=True)
        process.start()
        outbox, inbox = Outbox(there.accept()[0]), Inbox(back.accept()[0], LOCAL, 0)
    waiting: list[object] = []

    def take(_: object) -> None:
        while not waiting:
            waiting.extend(inbox.take())
        waiting.pop()

    def turn() -> None:
        outbox.send(frame)
        take(None)

    turn()
    found = {
        "coordinator to process and back": median_ms(turn, calls),
        "process and back, 16 in flight": pipelined_ms(lambda: outbox.send(frame), take, calls),
    }
    outbox.close()
    inbox.close()
    process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--calls", type=int, default=400)
    options = parser.parse_args()
    rows = torch.zeros(options.rows, options.width)
    print(f"| {rows.nbytes >> 10} KiB | ms |\n|---|---|")
    for kind, measure in (("Ray", ray_hops), ("sockets", wire_hops)):
        for what, ms in measure(rows, options.calls).items():
            print(f"| {kind}: {what} | {ms:.2f} |")


if __name__ == "__main__":
    main()
