"""A conditioned link: what was sent arrives later, in order, whatever the jitter.

One way of a network path. An item leaves when those before it have (`mbps`), travels for `delay_ms`
plus or minus up to `jitter_ms`, evenly drawn from a seed, and never overtakes.
"""

import random
import time
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """One way of a link: milliseconds, and megabits a second (None: no limit).

    `jitter_ms` is at most `delay_ms`, since nothing arrives before it was sent.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    mbps: float | None = None

    def transfer_ms(self, nbytes: int) -> float:
        """Time that `nbytes` occupy the link."""
        return nbytes * 8 / (self.mbps * 1e3) if self.mbps else 0.0


LOCAL = LinkSettings()
"""No link at all."""


class Clock:
    """Seconds from a common origin; the same in all processes of a machine."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Link(Generic[Item]):
    """Items on their way, oldest first. Holds no clock: it is told the time, in seconds."""

    def __init__(self, settings: LinkSettings, seed: int) -> None:
        self._settings = settings
        self._chance = random.Random(seed)
        self.flying: deque[tuple[float, Item]] = deque()
        self._free = self._newest = float("-inf")

    def __len__(self) -> int:
        return len(self.flying)

    @property
    def next_due(self) -> float:
        """When the oldest item arrives; infinity with none on its way."""
        return self.flying[0][0] if self.flying else float("inf")

    def send(self, item: Item, nbytes: int, now: float) -> None:
        settings = self._settings
        self._free = max(self._free, now) + settings.transfer_ms(nbytes) / 1e3
        jitter = self._chance.uniform(-settings.jitter_ms, settings.jitter_ms)
        arrival = self._free + (settings.delay_ms + jitter) / 1e3
        self._newest = max(self._newest, arrival)
        self.flying.append((self._newest, item))

    def due(self, now: float) -> list[Item]:
        """Take the items that have arrived."""
        arrived = []
        while self.next_due <= now:
            arrived.append(self.flying.popleft()[1])
        return arrived
