"""Medians and bootstrap intervals over rounds of legs. Pure and seeded."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

RESAMPLES = 500
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its interval: `low` and `high` hold 95 % of the resamples."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One prompt: what each repeat took per variant, in ms for the same `tokens`.

    `plain[r]` holds the plain legs of repeat r, those before and after the speculative one.
    """

    tokens: int
    plain: tuple[tuple[float, ...], ...]
    speculative: tuple[float, ...]


Statistic = Callable[[Sequence[Timed]], float]


def plain_ms(sample: Timed) -> float:
    """Median over all plain legs."""
    return median(ms for legs in sample.plain for ms in legs)


def speculative_ms(sample: Timed) -> float:
    """Median over the speculative legs."""
    return median(sample.speculative)


def speedup(samples: Sequence[Timed]) -> float:
    """Plain over speculative time, medians per prompt, summed over prompts."""
    return sum(map(plain_ms, samples)) / sum(map(speculative_ms, samples))


def plain_speed(samples: Sequence[Timed]) -> float:
    """Tokens per second of plain decoding."""
    return 1e3 * sum(s.tokens for s in samples) / sum(map(plain_ms, samples))


def speculative_speed(samples: Sequence[Timed]) -> float:
    """Tokens per second with speculation."""
    return 1e3 * sum(s.tokens for s in samples) / sum(map(speculative_ms, samples))


def estimate(samples: Sequence[Timed], statistic: Statistic, seed: int) -> Estimate:
    """`statistic` with a bootstrap interval: prompts are drawn again, then repeats within each."""
    rng = random.Random(seed)
    values = sorted(statistic(_resample(samples, rng)) for _ in range(RESAMPLES))
    edge = round((1 - LEVEL) / 2 * (RESAMPLES - 1))
    return Estimate(statistic(samples), values[edge], values[-1 - edge])


def _resample(samples: Sequence[Timed], rng: random.Random) -> list[Timed]:
    return [_redraw(sample, rng) for sample in rng.choices(samples, k=len(samples))]


def _redraw(sample: Timed, rng: random.Random) -> Timed:
    rounds = rng.choices(range(len(sample.speculative)), k=len(sample.speculative))
    return Timed(
        tokens=sample.tokens,
        plain=tuple(sample.plain[index] for index in rounds),
        speculative=tuple(sample.speculative[index] for index in rounds),
    )


def disagreement(samples: Sequence[Timed]) -> float:
    """How far the plain legs around a speculative one lie apart: the median over all brackets."""
    gaps = [abs(legs[-1] - legs[0]) * 2 / (legs[-1] + legs[0]) for s in samples for legs in s.plain]
    return median(gaps)


def trend(samples: Sequence[Timed]) -> float:
    """How far plain decoding changed from the first to the last repeat: median over prompts."""
    changes = [median(s.plain[-1]) / median(s.plain[0]) - 1 for s in samples]
    return median(changes)
