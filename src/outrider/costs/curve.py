"""Cost by count (rows of a pass, tokens of a draft): measured, or refined in use. Pure."""

from bisect import bisect
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median

RECENT = 13
"""Observations per count that its median is taken over: a hiccup of the machine moves nothing."""

ENOUGH = 3
"""Observations of a count from which on they are believed."""

STALE = 400
"""Observations after which an older one says nothing any more, since the context has grown."""

EVERY = 4
"""Observations between two looks at the medians."""


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """Costs by a whole number (rows, drafts, kept rows), straight lines between them.

    Beyond the ends it goes on along the nearest line, but never below the nearest point.
    """

    points: Mapping[int, float] = field(default_factory=dict)

    def at(self, place: float) -> float:
        """The value at `place`; 0.0 where nothing was measured."""
        known = sorted(self.points)
        if not known:
            return 0.0
        if place in self.points:
            return self.points[int(place)]
        if len(known) == 1 or place < known[0]:
            return self.points[known[0]]
        right = next((index for index, x in enumerate(known) if x > place), len(known) - 1)
        low, high = known[right - 1], known[right]
        slope = (self.points[high] - self.points[low]) / (high - low)
        value = self.points[low] + slope * (place - low)
        return max(value, self.points[high]) if place > high else value

    def scaled(self, unit: float) -> "MeasuredCurve":
        """The same in another unit."""
        return MeasuredCurve({place: unit * value for place, value in self.points.items()})

    def rising(self) -> list[float]:
        """Values at 1, 2, ... up to the last point; more never cost less."""
        known = sorted(self.points)
        tops = accumulate((self.points[place] for place in known), max)
        curve = MeasuredCurve(dict(zip(known, tops, strict=True)))
        return [curve.at(place) for place in range(1, known[-1] + 1)]


class Curve:
    """Costs of 0, 1, 2, ... in the unit of the observations, or in any unit while there are none.

    The calibrated shape is scaled by what was observed: at an observed count by the median of the
    newest observations, elsewhere by the scale of the observed counts around it. Counts from 8 on
    are observed together with those next to them: 8 and 9, 16 to 19, 32 to 39.
    """

    def __init__(self, shape: Sequence[float]) -> None:
        self._shape = tuple(shape)
        self._scaled: list[int] = []
        self._scales: list[float] = []
        self._seen: dict[int, deque[tuple[int, float]]] = {}
        self._lows: dict[int, float] = {}
        self._costs: dict[int, float] = {}
        self._clock = 0

    def __len__(self) -> int:
        return len(self._shape)

    def __getitem__(self, count: int) -> float:
        if count not in self._costs:
            self._costs[count] = self._shape[count] * self._scale(count)
        return self._costs[count]

    def observe(self, count: int, cost: float) -> None:
        """Learn that `count` took `cost` once; counts beyond the shape are ignored."""
        if not 0 <= count < len(self._shape) or self._shape[count] <= 0.0 or cost <= 0.0:
            return
        self._clock += 1
        scales = self._seen.setdefault(_like(count), deque(maxlen=RECENT))
        scales.append((self._clock, cost / self._shape[count]))
        if self._clock % EVERY == 0:
            self._rescale()

    def least(self, count: int) -> float:
        """The least that `count` may cost, by the spread of its observations; never above `[]`.

        Of a few slow ones the median is slow, too. What all else is compared with must not be
        thought dearer than it is, or everything else seems to gain.
        """
        low = self._lows.get(_like(count))
        return self[count] if low is None else min(self._shape[count] * low, self[count])

    def lacks(self, count: int) -> bool:
        """True if others were observed and this count, of late, was not."""
        return self._clock > 0 and len(self._fresh(_like(count))) < ENOUGH

    def _fresh(self, count: int) -> list[float]:
        oldest = self._clock - STALE
        return [scale for stamp, scale in self._seen.get(count, ()) if stamp > oldest]

    def _rescale(self) -> None:
        fresh = {count: self._fresh(count) for count in sorted(self._seen)}
        known = {count: median(found) for count, found in fresh.items() if len(found) >= ENOUGH}
        if known:
            self._scaled, self._scales = list(known), list(known.values())
            self._lows = {count: _low(fresh[count]) for count in known}
            self._costs.clear()

    def _scale(self, count: int) -> float:
        """Linear between the observed neighbours of `count`, constant outside them."""
        if not self._scaled:
            return 1.0
        place = bisect(self._scaled, count)
        if place in (0, len(self._scaled)):
            return self._scales[max(place - 1, 0)]
        low, high = self._scaled[place - 1], self._scaled[place]
        first, last = self._scales[place - 1], self._scales[place]
        return first + (last - first) * (count - low) / (high - low)


def _low(found: Sequence[float]) -> float:
    """The low end of what the median of all may be, one standard deviation of ranks below that of
    `found`: of n values about n / 2 +- sqrt(n) / 2 lie below it. The least of three."""
    return sorted(found)[max(int((len(found) - len(found) ** 0.5) / 2), 0)]


def _like(count: int) -> int:
    """The least count that `count` is observed together with."""
    shift = max(count.bit_length() - 3, 0)
    return count >> shift << shift
