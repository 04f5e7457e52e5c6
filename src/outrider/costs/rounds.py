"""Costs of passes at a context: V(n), a plain step and a rollback, measured in turn.

Windows are given to the stage directly. Two sessions go along the same text: one in plain steps,
the other in rounds that keep as many rows as those of the run did, since a pass also adds what was
kept before it to the recurrent states' base. A pass that enters a new chunk of the grid that these
are kept on is dearer, and wide ones do so more often: means hold such passes in their share. Every
pass is set against the plain step just before it, in the same mood of the machine.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from statistics import fmean, median

import torch
from torch import Tensor

from outrider.costs.curve import MeasuredCurve
from outrider.costs.replay import Passage, RunPass
from outrider.costs.timing import GREEDY
from outrider.errors import StageError
from outrider.records import Reply, Window
from outrider.stage.base import Stage

STEPPING, VERIFYING, READING = -11, -12, -13
"""Sessions of the calibration; an engine's own are counted from 0."""
PREFILL_ROWS = 256
SPAN = 67
"""Places that a session goes through before it is back at the first ones: about twice the grid of
recurrent states, and a prime, so that in turn each place of it counts whatever rounds keep."""
LEAD = 2
"""Plain steps before the one that counts, which finds in the caches what plain decoding would."""
Drafting = Callable[[Passage], AbstractContextManager[Callable[[], object]]]
"""For a passage, what has the drafter propose there."""
OUTLIER = 1.5
"""A pass that takes more than so many times the median was interrupted, and counts as that much."""


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
        return _mean(self.step)

    @property
    def verify_curve(self) -> MeasuredCurve:
        """Passes in steps as they were beside them: both move with the machine's pace."""
        pairs = {n: zip(times, self.before[n], strict=True) for n, times in self.verify.items()}
        shares = {n: _mean([wide / step for wide, step in found]) for n, found in pairs.items()}
        return MeasuredCurve({rows: share * self.step_ms for rows, share in shares.items()})

    @property
    def rollback_curve(self) -> MeasuredCurve:
        return MeasuredCurve({kept: median(times) for kept, times in self.rollback.items()})


def _mean(times: Sequence[float]) -> float:
    most = OUTLIER * median(times)
    return fmean(min(one, most) for one in times)


def calibrate(
    stage: Stage,
    passages: Sequence[Passage],
    rows: Sequence[int],
    kept: Mapping[int, int],
    taps: Sequence[int],
    repeats: int,
    seed: int,
    drafting: Drafting,
) -> Readings:
    """Measure passes of each number of `rows` about the middle of each passage's output, after
    rounds that keep n rows as often as `kept[n]` says.

    Each but plain steps hands over hidden states as the drafter needs them, and is after what
    `drafting` gives to call for a passage, a proposal: it evicts the target's weights from the
    processor's caches.
    """
    readings, rng = Readings(), random.Random(seed)
    for passage in passages:
        middle = len(passage.prompt) + len(passage.output) // 2
        most = max(*rows, *kept)
        origin = max(min(middle, stage.max_length - 3 * most - SPAN), 1)
        stepping = _Place(stage, STEPPING, passage, origin)
        verifying = _Place(stage, VERIFYING, passage, origin, taps)
        with drafting(passage) as draft:
            for repeat in range(repeats):
                # Each number of rows is first in turn, and so comes to all places of the grid.
                first = repeat % len(rows)
                keeps = rng.choices(list(kept), list(kept.values()), k=len(rows))
                for n, keep in zip([*rows[first:], *rows[:first]], keeps, strict=True):
                    _measure(stepping, verifying, draft, n, keep, readings)
        stepping.close()
        verifying.close()
    return readings


def _measure(
    stepping: "_Place",
    verifying: "_Place",
    draft: Callable[[], object],
    rows: int,
    keep: int,
    into: Readings,
) -> None:
    """A plain step, and a pass of `rows` rows after a round that keeps `keep`."""
    for _ in range(LEAD):
        stepping.walk(1)
    step = stepping.walk(1).verify_ms
    before = max(rows, keep)
    verifying.walk(before, keep)
    draft()
    found = verifying.walk(rows)
    into.step.append(step)
    into.before.setdefault(rows, []).append(step)
    into.verify.setdefault(rows, []).append(found.verify_ms)
    if keep < before:
        into.rollback.setdefault(keep, []).append(found.rollback_ms)


def read_taps(stage: Stage, tokens: Sequence[int], taps: Sequence[int]) -> Tensor:
    """The hidden states after the layers `taps` for all `tokens` [tokens, taps x hidden]."""
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
        rows += [reply.taps for reply in stage.run_batch() if isinstance(reply.taps, Tensor)]
    stage.close(READING)
    return torch.cat(rows)


@contextmanager
def passes_beside(
    stage: Stage, passage: Passage, taps: Sequence[int], verify: MeasuredCurve, keep: int
) -> Iterator[RunPass]:
    """Return a function that runs passes after a passage's prompt, of which each keeps up to `keep`
    rows, and sets each against its usual ms."""
    most = max(verify.points)
    origin = max(min(len(passage.prompt), stage.max_length - SPAN - 2 * most), 1)
    place = _Place(stage, STEPPING, passage, origin, taps)
    try:
        yield lambda rows: place.walk(rows, min(keep, rows)).verify_ms / verify.at(rows)
    finally:
        place.close()


class _Place:
    """A session of a stage somewhere after `origin`, on a passage's text."""

    def __init__(
        self,
        stage: Stage,
        session: int,
        passage: Passage,
        origin: int,
        taps: Sequence[int] = (),
    ) -> None:
        self._stage, self._session, self._origin, self._taps = stage, session, origin, taps
        self._tokens = [*passage.prompt, *passage.output]
        self._ids: Iterator[int] = count()
        self._open(origin)

    def _open(self, context: int) -> None:
        self._context = 0
        self._stage.open(self._session, GREEDY, self._origin, self._taps)
        while self._context < context:
            rows = min(PREFILL_ROWS, context - self._context)
            self._run(rows, floor=self._context + rows, wanted=0)
            self._context += rows

    def walk(self, rows: int, keep: int = 1) -> Reply:
        """A window of which `keep` rows stay, so one row is a plain step. After `SPAN`
        positions it starts again from the first ones."""
        if self._context >= self._origin + SPAN:
            self.close()
            self._open(self._context - SPAN)
        reply = self._run(rows, floor=self._context + (rows == 1), wanted=rows)
        self._context += keep
        return reply

    def _run(self, rows: int, floor: int, wanted: int) -> Reply:
        """One window, answered; the text is gone through again where it ends. Each opens an epoch
        of its own: what it leaves is not kept."""
        start, number, size = self._context, next(self._ids), len(self._tokens)
        self._stage.submit(
            Window(
                session=self._session,
                id=number,
                epoch=number,
                start=start,
                floor=floor,
                tokens=tuple(self._tokens[place % size] for place in range(start, start + rows)),
                wanted=wanted,
            )
        )
        replies = [reply for reply in self._stage.run_batch() if reply.session == self._session]
        if len(replies) != 1 or replies[0].id != number:
            raise StageError(f"the stage did not answer window {number} of the calibration.")
        return replies[0]

    def close(self) -> None:
        """End the session."""
        self._stage.close(self._session)
