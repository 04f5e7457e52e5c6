"""What passes cost at a context: V(n), a plain step and a rollback, measured in turn.

Windows are given to the stage directly. Of two sessions at the same context one steps along as
plain decoding does; the other runs n rows, goes back to some of them for another window and then
back to the first, at contexts spread over the grid that recurrent states are kept on: a pass that
enters a new chunk of it is dearer, and wide ones do so more often. Means hold such passes in their
share, and every pass is set against the plain step just before it, in the same mood of the machine.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from statistics import fmean, median
from typing import cast

import torch
from torch import Tensor

from outrider.bench.costs import Curve
from outrider.bench.leg import GREEDY
from outrider.bench.replay import Passage, RunPass
from outrider.core_types import Reply, Window
from outrider.errors import StageError
from outrider.stage.base import KeepingStage, Stage

STEPPING, VERIFYING, READING, KEPT = -11, -12, -13, -14
"""Sessions of the calibration; an engine's own are counted from 0."""
PREFILL_ROWS = 256
SPAN = 64
"""Places that contexts are spread over, a multiple of the grid; and steps before a session returns
to where it began."""
LEAD = 2
"""Plain steps before the one that counts, which finds in the caches what plain decoding would; in
all an odd number of steps, so that in turn each place of the grid counts."""
GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, modulo 1, fill any number of places evenly."""
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
    def verify_curve(self) -> Curve:
        """Passes in steps as they were beside them: both move with the machine's pace."""
        pairs = {n: zip(times, self.before[n], strict=True) for n, times in self.verify.items()}
        shares = {n: _mean([wide / step for wide, step in found]) for n, found in pairs.items()}
        return Curve({rows: share * self.step_ms for rows, share in shares.items()})

    @property
    def rollback_curve(self) -> Curve:
        return Curve({kept: median(times) for kept, times in self.rollback.items()})


def _mean(times: Sequence[float]) -> float:
    most = OUTLIER * median(times)
    return fmean(min(one, most) for one in times)


def calibrate(
    stage: Stage,
    passages: Sequence[Passage],
    rows: Sequence[int],
    taps: Sequence[int],
    repeats: int,
    seed: int,
    drafting: Drafting,
) -> Readings:
    """Measure passes of each number of `rows` about the middle of each passage's output.

    Each but plain steps hands over hidden states as the drafter needs them, and is behind what
    `drafting` gives to call for a passage, a proposal: it evicts the target's weights from the
    processor's caches.
    """
    readings, rng = Readings(), random.Random(seed)
    for number, passage in enumerate(passages):
        middle = len(passage.prompt) + len(passage.output) // 2
        origin = max(min(middle, stage.max_length - max(rows) - SPAN), 1)
        places = sorted(
            origin + int((repeat * len(passages) + number) * GOLDEN % 1 * SPAN)
            for repeat in range(repeats)
        )
        stepping = _Place(stage, STEPPING, passage, origin)
        verifying = _Place(stage, VERIFYING, passage, origin, taps)
        with drafting(passage) as draft:
            for place in places:
                verifying.move_to(place)
                for n in rng.sample(list(rows), len(rows)):
                    _measure(stepping, verifying, draft, n, rng.randint(1, n), readings)
        stepping.close()
        verifying.close()
    return readings


def _measure(
    stepping: "_Place",
    verifying: "_Place",
    draft: Callable[[], object],
    rows: int,
    kept: int,
    into: Readings,
) -> None:
    """A plain step, a pass of `rows` rows, and one behind the `kept` first of them."""
    for _ in range(LEAD):
        stepping.walk(1)
    step = stepping.walk(1)
    into.step.append(step)
    into.before.setdefault(rows, []).append(step)
    if rows > 1:
        verifying.look(0, rows)  # Its state is in the caches then, as behind a round before.
        verifying.rewind()
        draft()
    into.verify.setdefault(rows, []).append(verifying.look(0, rows).verify_ms)
    if kept < rows:
        into.rollback.setdefault(kept, []).append(verifying.look(kept, 1).rollback_ms)
    verifying.rewind()


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
def passes_beside(
    stage: Stage, passage: Passage, taps: Sequence[int], verify: Curve
) -> Iterator[RunPass]:
    """What runs passes behind a passage's prompt, and sets each against its usual ms."""
    origin = max(min(len(passage.prompt), stage.max_length - SPAN - max(verify.points)), 1)
    place = _Place(stage, STEPPING, passage, origin, taps)
    try:
        yield lambda rows: place.walk(rows) / verify.at(rows)
    finally:
        place.close()


class _Place:
    """A session of a stage somewhere behind `origin`, on a passage's text."""

    def __init__(
        self,
        stage: Stage,
        session: int,
        passage: Passage,
        origin: int,
        taps: Sequence[int] = (),
    ) -> None:
        self._stage, self._session, self._origin, self._taps = stage, session, origin, taps
        # Where a stage cannot take back the token that an epoch began with.
        keeps = session == VERIFYING and not getattr(stage, "rewinds", True)
        self._keeper = cast(KeepingStage, stage) if keeps else None
        self._tokens = [*passage.prompt, *passage.output]
        self._ids: Iterator[int] = count()
        self._open()

    def _open(self) -> None:
        self._context = 0
        self._stage.open(self._session, GREEDY, self._origin, self._taps)
        self.move_to(self._origin)

    def move_to(self, context: int) -> None:
        """Go on to a later context."""
        while self._context < context:
            rows = min(PREFILL_ROWS, context - self._context)
            rows -= bool(self._keeper and rows > 1 and self._context + rows == context)
            self._run(self._context, rows, floor=self._context + rows, wanted=0)
            self._context += rows
            if self._keeper and self._context == context - 1:
                self._keeper.keep(self._session, KEPT)

    def rewind(self) -> None:
        """Stand at the context again, where the stage does not go back to it for the asking: at
        what was kept a token before, with a pass that brings it to its place."""
        if self._keeper:
            before, size = self._context - 1, len(self._tokens)
            seen = [self._tokens[place % size] for place in range(before)]
            self.close()
            if before:
                self._keeper.open_kept(self._session, GREEDY, seen, KEPT, self._taps)
            else:
                self._stage.open(self._session, GREEDY, self._origin, self._taps)
            self._run(before, 1, floor=self._context, wanted=0)

    def walk(self, rows: int) -> float:
        """A window of which the first row stays, so one row is a plain step; its ms. Now and then
        it is the first behind the origin again."""
        if self._context == self._origin + SPAN:
            self.close()
            self._open()
        start, self._context = self._context, self._context + 1
        return self._run(start, rows, floor=start + (rows == 1), wanted=rows).verify_ms

    def look(self, ahead: int, rows: int) -> Reply:
        """A window of `rows` rows `ahead` tokens from here, which the next one takes back."""
        return self._run(self._context + ahead, rows, floor=self._context, wanted=rows)

    def _run(self, start: int, rows: int, floor: int, wanted: int) -> Reply:
        """One window, answered; the text is gone through again where it ends. Each opens an epoch
        of its own: what it leaves is not kept."""
        number, size = next(self._ids), len(self._tokens)
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
        replies = [reply for reply in self._stage.poll() if reply.session == self._session]
        if len(replies) != 1 or replies[0].id != number:
            raise StageError(f"the stage did not answer window {number} of the calibration.")
        return replies[0]

    def close(self) -> None:
        """End the session."""
        self._stage.close(self._session)
