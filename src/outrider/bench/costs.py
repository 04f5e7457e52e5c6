"""Measured costs as curves, and what a run of rounds would take by them. Pure, times in ms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from outrider.telemetry.counters import Counters


@dataclass(frozen=True, slots=True)
class Curve:
    """Medians by a whole number (rows, drafts, kept rows), straight lines between them.

    Beyond the ends it goes on along the nearest line, but never below the nearest point.
    """

    points: Mapping[int, float]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs of the parts at the context of the run, each measured apart from the rounds.

    verify: a pass of n rows. draft: one proposal that found j drafts, its upkeep included.
    rollback: taking rows back so that n of the window stay. step: the pass of plain decoding.
    host: what a step takes beyond its pass. beyond: what a round with n drafts takes there beyond
    a step. opening: what the first proposal of a prompt takes beyond the others (a draft model
    reads the prompt then).
    """

    step: float
    host: float
    verify: Curve
    draft: Curve
    rollback: Curve
    beyond: Curve = Curve({})
    opening: float = 0.0

    @property
    def plain(self) -> float:
        """One plain step: the unit of everything else."""
        return self.step + self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Numbers of rounds: by drafts in the window, and by rows kept where some were taken
    back; `emitted` tokens of `prompts` prompts came of them."""

    emitted: int
    prompts: int
    by_drafts: Mapping[int, int]
    by_kept: Mapping[int, int]

    @property
    def count(self) -> int:
        return sum(self.by_drafts.values())

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per round; 0.0 without rounds."""
        return self.emitted / self.count if self.count else 0.0

    @property
    def mean_drafts(self) -> float:
        """Drafts per round, rounds without any included."""
        total = sum(drafts * count for drafts, count in self.by_drafts.items())
        return total / self.count if self.count else 0.0


def rounds_of(counters: Counters) -> Rounds:
    """The rounds of a run at depth 1, from its counters alone."""
    accepted = [*counters.accepted_at, *[0] * len(counters.reached_at)]
    stopped = [reached - kept for reached, kept in zip(counters.reached_at, accepted, strict=False)]
    return Rounds(
        emitted=counters.emitted - counters.first_tokens,
        prompts=counters.first_tokens,
        by_drafts=_exactly([counters.windows_judged, *counters.verified_at]),
        by_kept={place + 1: count for place, count in enumerate(stopped) if count},
    )


def kept_rows(counters: Counters) -> dict[int, int]:
    """Rounds of a run at depth 1 that kept each number of rows, their first one included."""
    by_accepted = _exactly([counters.windows_judged, *counters.accepted_at])
    return {drafts + 1: count for drafts, count in by_accepted.items()}


def _exactly(at_least: Sequence[int]) -> dict[int, int]:
    """Counts of exactly n, where there are any, from counts of n or more."""
    counts = {n: more - most for n, (more, most) in enumerate(pairwise([*at_least, 0]))}
    return {n: count for n, count in counts.items() if count}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCost:
    """The mean round in ms, by part."""

    draft: float
    verify: float
    rollback: float
    host: float

    @property
    def total(self) -> float:
        return self.draft + self.verify + self.rollback + self.host


def price(rounds: Rounds, costs: Costs) -> RoundCost:
    """Time of the mean of these rounds."""
    count = max(rounds.count, 1)
    drafted = sum(costs.draft.at(n) * times for n, times in rounds.by_drafts.items())
    drafted += costs.opening * rounds.prompts
    verified = sum(_pass(costs, n) * times for n, times in rounds.by_drafts.items())
    beyond = sum(costs.beyond.at(n) * times for n, times in rounds.by_drafts.items())
    returned = sum(costs.rollback.at(n) * times for n, times in rounds.by_kept.items())
    return RoundCost(
        draft=drafted / count,
        verify=verified / count,
        rollback=returned / count,
        host=costs.host + beyond / count,
    )


def _pass(costs: Costs, drafts: int) -> float:
    """A window without drafts is a plain step."""
    return costs.verify.at(drafts + 1) if drafts else costs.step
