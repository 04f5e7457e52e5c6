"""Speed by length of the context. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outrider.bench.leg import Leg

MOST_BINS = 8
SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Tokens per second of each kind of leg while the context held `low` to `high - 1` tokens."""

    low: int
    high: int
    speeds: dict[str, float]


def bins(legs: Sequence[tuple[int, Leg]]) -> list[Bin]:
    """Group the arrivals of (prompt length, leg) pairs by the context that they found."""
    if not legs:
        return []
    size = _size(legs)
    sums: dict[int, dict[str, tuple[int, float]]] = {}
    for prompt_len, leg in legs:
        for place, tokens, ms in _steps(leg):
            group = sums.setdefault((prompt_len + place) // size, {})
            had = group.get(leg.kind, (0, 0.0))
            group[leg.kind] = (had[0] + tokens, had[1] + ms)
    return [_bin(index, size, group) for index, group in sorted(sums.items())]


def _size(legs: Sequence[tuple[int, Leg]]) -> int:
    low = min(prompt_len for prompt_len, _ in legs)
    high = max(prompt_len + len(leg.tokens) for prompt_len, leg in legs)
    return next((size for size in SIZES if (high - low) / size <= MOST_BINS), SIZES[-1])


def _steps(leg: Leg) -> Iterable[tuple[int, int, float]]:
    """(tokens before, tokens that arrived, ms waited) of every arrival but the first."""
    pairs = zip(leg.marks, leg.marks[1:], strict=False)
    return ((had, now - had, end - start) for (had, start), (now, end) in pairs)


def _bin(index: int, size: int, group: dict[str, tuple[int, float]]) -> Bin:
    speeds = {kind: 1e3 * tokens / ms for kind, (tokens, ms) in group.items() if ms > 0}
    return Bin(low=index * size, high=(index + 1) * size, speeds=speeds)
