"""The exact distribution of what a verifier returns, by integrating over its random numbers.

The verifier runs with a key whose numbers the test chooses. Where an outcome changes is found by
bisection, so probabilities are exact to 1e-12 and no random sampling is involved.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import Key, Purpose
from outrider.verify.verifiers import LogitRows

ACCEPT_ALWAYS = 0.0
ACCEPT_NEVER = 1.0 - 2.0**-53


@dataclass(frozen=True, kw_only=True)
class ScriptedKey(Key):
    """Returns chosen numbers; asking for any other one is an error."""

    seed: int = 0
    numbers: dict[tuple[int, Purpose], float] = field(default_factory=dict)

    def uniform(self, position: int, purpose: Purpose) -> float:
        return self.numbers[position, purpose]


def law(outcome: Callable[[float], int]) -> dict[int, float]:
    """Return the probability of each value of a step function of a uniform number."""
    found: dict[int, float] = {}
    low = 0.0
    while low < 1.0:
        value = outcome(low)
        high = _end_of_step(outcome, low, value)
        found[value] = found.get(value, 0.0) + high - low
        low = high
    return found


def _end_of_step(outcome: Callable[[float], int], low: float, value: int) -> float:
    if outcome(ACCEPT_NEVER) == value:
        return 1.0
    high = ACCEPT_NEVER
    while high - low > 1e-13:
        middle = (low + high) / 2
        low, high = (middle, high) if outcome(middle) == value else (low, middle)
    return high


Pick = Callable[..., list[int]]


def row_law(
    pick: Pick, rows: LogitRows, row: int, params: SamplingParams, make_counts: Callable[[], object]
) -> tuple[float, dict[int, float]]:
    """Return (acceptance, law of the token otherwise) of `row`, all rows before it accepted.

    For the last row, which judges no draft, the acceptance is 0.
    """

    def token(**chosen: float) -> int:
        numbers = {
            (rows.position + earlier, Purpose.ACCEPT): ACCEPT_ALWAYS for earlier in range(row)
        }
        for later in range(row, len(rows.inputs)):
            for purpose in Purpose:
                number = chosen.get(purpose.name.lower(), 0.5)
                numbers[rows.position + later, purpose] = number
        return pick(rows, params, ScriptedKey(numbers=numbers), make_counts())[row]

    draft = rows.draft(row)
    if draft is None:
        return 0.0, law(lambda number: token(target=number))
    accepted = law(lambda number: int(token(accept=number, residual=0.5) == draft)).get(1, 0.0)
    if accepted == 1.0:
        return 1.0, {}
    return accepted, law(lambda number: token(accept=ACCEPT_NEVER, residual=number))
