"""What stages on one machine take beyond their layers, measured on the stages themselves.

They share its processors and caches, and each hands on what another process must wake up for. None
of that is in layer times that were measured alone; stages on machines of their own have less of it.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median

from outrider.assemble.calibration import timed_window
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Stage

ROWS = (1, 8)
TIMES = 12
FULL = 8
"""Windows in flight that keep every stage busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """As `Pipeline` has them: ms of a window beyond the passes, and how much longer passes take
    while all stages are busy."""

    window_ms: float = 0.0
    crowding: float = 1.0


def try_stages(stage: Stage, stages: Sequence[Sequence[float]]) -> Beside:
    """Run windows through `stage`, which is then shut down, alone and in a row.

    `stages` are the ms of passes of 1, 2, ... rows through each part alone.
    """
    with closing(_Runs(stage)) as runs:
        runs(ROWS[-1], FULL)  # first calls are no measure
        alone = {rows: _usual(runs, rows, 1) for rows in ROWS}
        extra = [ms - sum(part[rows - 1] for part in stages) for rows, ms in alone.items()]
        window_ms = max(sum(extra) / len(extra), 0.0)
        rows = ROWS[-1]
        pace = (_usual(runs, rows, FULL) - alone[rows]) / (FULL - 1)
    slowest = max(window_ms, *(part[rows - 1] for part in stages))
    return Beside(window_ms=window_ms, crowding=max(pace / slowest, 1.0))


def _usual(run: Callable[[int, int], float], rows: int, windows: int) -> float:
    return median(run(rows, windows) for _ in range(TIMES))


class _Runs:
    """Windows of a session, one behind the other."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._end = stage, 0
        stage.open(0, SamplingParams(), 1)

    def __call__(self, rows: int, windows: int) -> float:
        """Milliseconds until `windows` windows sent at once are answered."""
        began, waiting = time.perf_counter(), windows
        for _ in range(windows):
            self._stage.submit(timed_window(self._end, rows))
            self._end += rows
        while waiting:
            waiting -= len(self._stage.poll())
        return (time.perf_counter() - began) * 1e3

    def close(self) -> None:
        """End the stages too."""
        self._stage.shutdown()
