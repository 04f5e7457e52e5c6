"""The cost model of serial speculation: what it predicts, and what would pay. Pure.

A round costs `c` plain steps and gives `m` tokens, so the speed-up is m / c. It pays where m > c:
c is the break-even acceptance length.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.bench.costs import Costs, RoundCost, Rounds, price

FLAG_ABOVE = 0.10
"""Prediction and measurement that differ by more than this are flagged."""


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


def predict(rounds: Rounds, costs: Costs) -> Prediction:
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


def sweep(replays: Mapping[int, Rounds], costs: Costs) -> list[SweepPoint]:
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
