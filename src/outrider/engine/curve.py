"""A cost per count (rows of a pass, tokens of a draft), calibrated once and refined as it runs."""

from collections import deque
from collections.abc import Sequence
from statistics import median

RECENT = 9
"""Observations per count that its median is taken over: a hiccup of the machine moves nothing."""

ENOUGH = 3
"""Observations of a count from which on they are believed."""

STALE = 400
"""Observations after which an older one says nothing any more, since the context has grown."""

EVERY = 4
"""Observations between two looks at the medians."""


class Curve:
    """Costs of 0, 1, 2, ... in the unit of the observations, or in any unit while there are none.

    The calibrated shape is scaled by what was observed: at an observed count by the median of the
    newest observations, elsewhere by the scale of the observed counts around it.
    """

    def __init__(self, shape: Sequence[float]) -> None:
        self._shape = tuple(shape)
        self._values = list(shape)
        self._seen: dict[int, deque[tuple[int, float]]] = {}
        self._clock = 0
        self.newest = (0, 0.0)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, count: int) -> float:
        return self._values[count]

    def observe(self, count: int, cost: float) -> None:
        """Learn that `count` took `cost` once; counts beyond the shape are ignored."""
        self.newest = count, cost
        if not 0 <= count < len(self._shape) or self._shape[count] <= 0.0 or cost <= 0.0:
            return
        self._clock += 1
        self._seen.setdefault(count, deque(maxlen=RECENT)).append((self._clock, cost))
        if self._clock % EVERY == 0:
            self._rescale()

    def lacks(self, count: int) -> bool:
        """Whether others were observed and this count, of late, was not."""
        return self._clock > 0 and len(self._fresh(count)) < ENOUGH

    def _fresh(self, count: int) -> list[float]:
        oldest = self._clock - STALE
        return [cost for stamp, cost in self._seen.get(count, ()) if stamp > oldest]

    def _rescale(self) -> None:
        fresh = [(count, self._fresh(count)) for count in sorted(self._seen)]
        scales = [
            (count, median(costs) / self._shape[count])
            for count, costs in fresh
            if len(costs) >= ENOUGH
        ]
        if scales:
            shape = enumerate(self._shape)
            self._values = [value * _between(scales, count) for count, value in shape]


def _between(scales: Sequence[tuple[int, float]], count: int) -> float:
    """Scale at `count`: linear between its observed neighbours, constant outside them."""
    below = [entry for entry in scales if entry[0] <= count]
    above = [entry for entry in scales if entry[0] >= count]
    if not below or not above:
        return below[-1][1] if below else above[0][1]
    (low, first), (high, last) = below[-1], above[0]
    return first if high == low else first + (last - first) * (count - low) / (high - low)
