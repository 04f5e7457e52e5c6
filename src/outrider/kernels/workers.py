"""Threads that share the work of one call, each a part of it, without the interpreter's lock.

There are as many as torch has. Those of the compiler abort where two Python threads meet, and a
pool of futures takes twice as long to wake up.
"""

import os
import threading
from collections.abc import Callable
from functools import cache
from queue import SimpleQueue

import torch

PART_NS = 100_000
"""Least time of a part, ns: waking up its thread takes 20 us and more."""

Part = tuple[Callable[..., None], tuple[object, ...], SimpleQueue[Exception | None]]


def share(ns: int, count: int, run: Callable[..., None], *arguments: object) -> None:
    """run(first, last, *arguments) for all of range(count), in parts where `ns` is worth it.

    ns: what one thread takes for all of it, roughly.
    """
    parts = min(count, ns // PART_NS)
    threads = torch.get_num_threads() if parts > 1 else 1
    parts = min(parts, threads)
    if parts <= 1:
        run(0, count, *arguments)
        return
    inbox: SimpleQueue[Part] = _inbox(os.getpid(), threads - 1)
    done: SimpleQueue[Exception | None] = SimpleQueue()
    for part in range(1, parts):
        bounds = count * part // parts, count * (part + 1) // parts
        inbox.put((run, (*bounds, *arguments), done))
    try:
        run(0, count // parts, *arguments)
    finally:
        errors = [done.get() for _ in range(1, parts)]
    for error in errors:
        if error is not None:
            raise error


@cache
def _inbox(process: int, workers: int) -> SimpleQueue[Part]:
    """Where `workers` threads wait for parts; a forked process starts its own."""
    inbox: SimpleQueue[Part] = SimpleQueue()
    for _ in range(workers):
        threading.Thread(target=_work, args=[inbox], name="outrider-part", daemon=True).start()
    return inbox


def _work(inbox: SimpleQueue[Part]) -> None:
    while True:
        run, arguments, done = inbox.get()
        try:
            run(*arguments)
        except Exception as error:
            done.put(error)
        else:
            done.put(None)
        del run, arguments, done
