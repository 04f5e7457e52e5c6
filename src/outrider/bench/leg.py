"""One decoding of one prompt, timed from its first token to its last."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.costs.timing import GREEDY, Clock
from outrider.engine.session import Piece
from outrider.sampling.params import SamplingParams
from outrider.telemetry.counters import Counters

PLAIN = "plain"
SPECULATIVE = "speculative"
UNKNOWN = -1
"""Stands for a token that a server counted and did not name."""


class Refusal(Exception):
    """A peer cannot do what was asked; the message says why, in its own words."""


class Running(Protocol):
    """A request: iterate for its pieces."""

    def __iter__(self) -> Iterator[Piece]: ...
    @property
    def counters(self) -> Counters: ...


class Generates(Protocol):
    """The part of the engine that a leg needs."""

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        sampling: SamplingParams | None = None,
        max_tokens: int | None = None,
        ignore_eos: bool = False,
        method: str | None = None,
    ) -> Running: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """The result of one decoding.

    The prompt is not timed: the clock starts when the first tokens arrive, and `ms` is for the
    tokens after them. `marks[i]` is (tokens so far, ms since then) after each arrival.
    """

    kind: str
    tokens: tuple[int, ...]
    marks: tuple[tuple[int, float], ...]
    counters: Counters | None = None

    @property
    def timed(self) -> int:
        """Tokens that `ms` covers."""
        return len(self.tokens) - self.marks[0][0]

    @property
    def ms(self) -> float:
        """Milliseconds from the first arrival to the last."""
        return self.marks[-1][1]


def run_leg(engine: Generates, prompt: Sequence[int], count: int, kind: str, clock: Clock) -> Leg:
    """Decode `count` tokens greedily, plainly or as the engine was told to speculate."""
    generation = engine.generate(
        prompt,
        sampling=GREEDY,
        max_tokens=count,
        ignore_eos=True,
        method="off" if kind == PLAIN else None,
    )
    return follow(generation, kind, clock)


def follow(generation: Running, kind: str, clock: Clock) -> Leg:
    """Run a request to its end, timing its pieces."""
    tokens: list[int] = []
    arrivals: list[tuple[int, float]] = []
    for piece in generation:
        tokens.extend(piece.tokens)
        arrivals.append((len(tokens), clock()))
    return Leg(
        kind=kind,
        tokens=tuple(tokens),
        marks=since_first(arrivals),
        counters=generation.counters,
    )


def since_first(arrivals: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """(tokens, seconds) of a clock as (tokens, ms since the first arrival)."""
    began = arrivals[0][1]
    return tuple((count, (now - began) * 1e3) for count, now in arrivals)


def natural_length(engine: Generates, prompt: Sequence[int], limit: int) -> int:
    """Tokens until the model ends by itself, the end token included; at most `limit`.

    Text after an end token is no text that anyone asked for, and often repeats itself.
    """
    generation = engine.generate(prompt, sampling=GREEDY, max_tokens=limit, method="off")
    return sum(len(piece.tokens) for piece in generation)
