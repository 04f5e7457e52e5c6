"""What passes cost at a context: V(n), a plain step and a rollback, measured in turn.

Windows are given to the stage directly. Of two sessions at the same context one steps along as
plain decoding does; the other runs n rows from there, goes back to some of them for another window
and then back to the first. So every kind of pass meets the same numbers of keys, the same places on
the grid that recurrent states are kept on, and the same moods of the machine.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from statistics import median

import torch
from torch import Tensor

from outrider.bench.costs import Curve
from outrider.bench.leg import GREEDY
from outrider.bench.replay import Passage
from outrider.core_types import Reply, Window
from outrider.errors import StageError
from outrider.stage.base import Stage

STEPPING, VERIFYING, READING = -11, -12, -13
"""Sessions of the calibration; an engine's own are counted from 0."""
PREFILL_ROWS = 256
MOST_STEPS = 32
"""Steps before both sessions return to where they began."""


@dataclass(slots=True, kw_only=True)
class Readings:
    """Milliseconds by rows (verify), by rows kept (rollback) and of plain steps, those just before
    each pass of so many rows once more (before)."""

    step: list[float] = field(default_factory=list)
    before: dict[int, list[float]] = field(default_factory=dict)
    verify: dict[int, list[float]] = field(default_factory=dict)
    rollback: dict[int, list[float]] = field(default_factory=dict)

    @property
    def step_ms(self) -> float:
        return median(self.step)

    @property
    def verify_curve(self) -> Curve:
        """Passes in steps as they were beside them: both move with the machine's pace."""
        pairs = {n: zip(times, self.before[n], strict=True) for n, times in self.verify.items()}
        shares = {n: median(wide / step for wide, step in found) for n, found in pairs.items()}
        return Curve({rows: share * self.step_ms for rows, share in shares.items()})

    @property
    def rollback_curve(self) -> Curve:
        return Curve({kept: median(times) for kept, times in self.rollback.items()})


def calibrate(
    stage: Stage, passages: Sequence[Passage], rows: Sequence[int], repeats: int, seed: int
) -> Readings:
    """Measure passes of each number of `rows` in the middle of each passage's output."""
    readings, rng = Readings(), random.Random(seed)
    for passage in passages:
        with_output = [*passage.prompt, *passage.output]
        context = len(passage.prompt) + len(passage.output) // 2
        place = _Place(stage, with_output, min(context, stage.max_length - max(rows) - MOST_STEPS))
        try:
            for _ in range(repeats):
                for n in rng.sample(list(rows), len(rows)):
                    place.measure(n, rng.randint(1, n), readings)
        finally:
            place.close()
    return readings


def read_taps(stage: Stage, tokens: Sequence[int], taps: Sequence[int]) -> Tensor:
    """The hidden states behind the layers `taps` for all `tokens` [tokens, taps x hidden]."""
    stage.open(READING, GREEDY, len(tokens), taps)
    rows: list[Tensor] = []
    for start in range(0, len(tokens), PREFILL_ROWS):
        piece = tuple(tokens[start : start + PREFILL_ROWS])
        end = start + len(piece)
        stage.submit(
            Window(
                session=READING, id=start, epoch=0, start=start, floor=end, tokens=piece, wanted=0
            )
        )
        rows += [reply.taps for reply in stage.poll() if isinstance(reply.taps, Tensor)]
    stage.close(READING)
    return torch.cat(rows)


@contextmanager
def passes_beside(stage: Stage, passage: Passage) -> Iterator[Callable[[], float]]:
    """What runs a plain step behind a passage's prompt, the same one each time; returns its ms."""
    place = _Place(stage, [*passage.prompt, *passage.output], len(passage.prompt))
    try:
        yield place.repeat_step
    finally:
        place.close()


class _Place:
    """Two sessions of one stage at one context, which moves on by a token with each measurement."""

    def __init__(self, stage: Stage, tokens: Sequence[int], origin: int) -> None:
        self._stage = stage
        self._tokens = tokens
        self._origin = self._context = max(origin, 1)
        self._ids: Iterator[int] = count()
        self._open()

    def _open(self) -> None:
        """Begin both sessions at the origin."""
        self._context = self._origin
        for session in (STEPPING, VERIFYING):
            self._stage.open(session, GREEDY, self._context)
            for start in range(0, self._context, PREFILL_ROWS):
                end = min(start + PREFILL_ROWS, self._context)
                self._run(session, start, self._slice(start, end - start), floor=end, wanted=0)

    def measure(self, rows: int, kept: int, into: Readings) -> None:
        """A plain step, a pass of `rows` rows, and one behind the `kept` first of them."""
        if self._context - self._origin >= MOST_STEPS:
            self.close()
            self._open()
        start = self._context
        step = self._run(STEPPING, start, self._slice(start, 1), floor=start + 1)
        into.step.append(step.verify_ms)
        into.before.setdefault(rows, []).append(step.verify_ms)
        wide = self._run(VERIFYING, start, self._slice(start, rows), floor=start)
        into.verify.setdefault(rows, []).append(wide.verify_ms)
        if kept < rows:
            after = self._run(VERIFYING, start + kept, self._slice(start + kept, 1), floor=start)
            into.rollback.setdefault(kept, []).append(after.rollback_ms)
        self._context += 1

    def repeat_step(self) -> float:
        """A plain step that the next one takes back; its ms."""
        start = self._context
        return self._run(STEPPING, start, self._slice(start, 1), floor=start).verify_ms

    def _slice(self, start: int, rows: int) -> tuple[int, ...]:
        """Tokens of the text, gone through again where it ends."""
        size = len(self._tokens)
        return tuple(self._tokens[place % size] for place in range(start, start + rows))

    def _run(
        self,
        session: int,
        start: int,
        tokens: tuple[int, ...],
        floor: int,
        wanted: int | None = None,
    ) -> Reply:
        """One window, answered. Each opens an epoch of its own: what it leaves is not kept."""
        number = next(self._ids)
        self._stage.submit(
            Window(
                session=session,
                id=number,
                epoch=number,
                start=start,
                floor=floor,
                tokens=tokens,
                wanted=len(tokens) if wanted is None else wanted,
            )
        )
        replies = [reply for reply in self._stage.poll() if reply.session == session]
        if len(replies) != 1 or replies[0].id != number:
            raise StageError(f"the stage did not answer window {number} of the calibration.")
        return replies[0]

    def close(self) -> None:
        """End both sessions."""
        for session in (STEPPING, VERIFYING):
            self._stage.close(session)
