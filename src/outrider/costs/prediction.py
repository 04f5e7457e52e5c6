"""The cost model of serial speculation: what rounds take by measured costs, and what would pay.

A round costs `c` plain steps and gives `m` tokens, so the speed-up is m / c. It pays where m > c:
c is the break-even acceptance length. Pure; times in ms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from outrider.costs.curve import MeasuredCurve
from outrider.telemetry.counters import Counters

NOTHING = MeasuredCurve()
FLAG_ABOVE = 0.10
"""Prediction and measurement that differ by more than this are flagged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCosts:
    """Costs of the parts at the context of the run, each measured apart from the rounds.

    verify: a pass of n rows. draft: one proposal that found j drafts, its upkeep included.
    rollback: taking rows back so that n of the window stay. step: the pass of plain decoding.
    host: what a step takes beyond its pass. beyond: what a round with n drafts takes there beyond
    a step. opening: what the first proposal of a prompt takes beyond the others (a draft model
    reads the prompt then).
    """

    step: float
    host: float
    verify: MeasuredCurve
    draft: MeasuredCurve
    rollback: MeasuredCurve
    beyond: MeasuredCurve = NOTHING
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


def price(rounds: Rounds, costs: PartCosts) -> RoundCost:
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


def _pass(costs: PartCosts, drafts: int) -> float:
    """A window without drafts is a plain step."""
    return costs.verify.at(drafts + 1) if drafts else costs.step


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Prediction of the model for rounds like these.

    `units`: the mean round in plain steps, which is also the tokens per round that it needs.
    `break_even`: the chance per draft to be kept at which such rounds would pay for themselves;
    None where not even certainty would do.
    """

    round: RoundCost
    units: float
    speedup: float
    mean_acceptance_length: float
    break_even: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """At most `k` drafts a round."""

    k: int
    prediction: Prediction


def predict(rounds: Rounds, costs: PartCosts) -> Prediction:
    """Price the rounds and set them against plain steps."""
    cost = price(rounds, costs)
    units = cost.total / costs.plain
    return Prediction(
        round=cost,
        units=units,
        speedup=rounds.mean_acceptance_length / units,
        mean_acceptance_length=rounds.mean_acceptance_length,
        break_even=break_even(units, rounds.by_drafts),
    )


def expected_length(chance: float, by_drafts: Mapping[int, int]) -> float:
    """Tokens per round if each draft is kept with `chance` given that those before it were."""
    total = sum(by_drafts.values())
    lengths = {n: 1 + sum(chance**place for place in range(1, n + 1)) for n in by_drafts}
    return sum(lengths[n] * count for n, count in by_drafts.items()) / total


def break_even(units: float, by_drafts: Mapping[int, int]) -> float | None:
    """The chance per draft at which rounds of `units` plain steps give as many tokens."""
    if not by_drafts or expected_length(1.0, by_drafts) < units:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if expected_length(middle, by_drafts) < units:
            low = middle
        else:
            high = middle
    return high


def sweep(replays: Mapping[int, Rounds], costs: PartCosts) -> list[SweepPoint]:
    """Predictions for each budget, from rounds replayed with it."""
    return [
        SweepPoint(k=k, prediction=predict(rounds, costs)) for k, rounds in sorted(replays.items())
    ]


def best(points: list[SweepPoint]) -> SweepPoint | None:
    """The budget with the highest predicted speed-up."""
    return max(points, key=lambda point: point.prediction.speedup, default=None)


def difference(predicted: float, measured: float) -> float:
    """Relative to what was measured."""
    return predicted / measured - 1
