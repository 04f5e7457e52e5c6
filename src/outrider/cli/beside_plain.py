"""`--compare`: the same request decoded plainly, for equality first and speed second."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, ClassVar

from outrider.cli.requests import Request

if TYPE_CHECKING:
    from outrider.assemble.engine import Engine
    from outrider.engine.facade import GenerationResult

WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two results of one request."""

    DIFFERENT: ClassVar[int] = 3

    speculative: "GenerationResult"
    plain: "GenerationResult"

    @property
    def first_difference(self) -> int | None:
        """Index of the first token that differs, or None."""
        pairs = zip_longest(self.speculative.token_ids, self.plain.token_ids)
        return next((place for place, (ours, plain) in enumerate(pairs) if ours != plain), None)

    @property
    def equal(self) -> bool:
        """True if both gave the same tokens."""
        return self.first_difference is None

    @property
    def ratio(self) -> float:
        """Speculative over plain tokens per second of decoding; 0.0 where either has no time."""
        plain = _speed(self.plain)
        return _speed(self.speculative) / plain if plain else 0.0

    def record(self) -> dict[str, object]:
        """JSON-ready form for `--json`."""
        return {
            "equal": self.equal,
            "first_difference": self.first_difference,
            "ratio": self.ratio,
            "plain_timings": dict(self.plain.timings),
        }

    def lines(self) -> Iterator[str]:
        """Summary for the user, three lines."""
        mean = self.speculative.timings["mean_acceptance_length"]
        yield f"plain:       {_speed(self.plain):8.1f} tokens/s"
        yield f"speculative: {_speed(self.speculative):8.1f} tokens/s, {mean:.2f} tokens per pass"
        if self.equal:
            count = len(self.plain.token_ids)
            yield f"ratio:       {self.ratio:8.2f}x, the same {count} tokens"
        else:
            place = self.first_difference or 0
            yield (
                f"DIFFERENT:   token {place} is {_at(self.speculative.token_ids, place)} with "
                f"speculation and {_at(self.plain.token_ids, place)} without"
            )


def _speed(result: "GenerationResult") -> float:
    value = result.timings["predicted_per_second"]
    assert isinstance(value, int | float)
    return float(value)


def _at(tokens: Sequence[int], place: int) -> str:
    return str(tokens[place]) if place < len(tokens) else "absent"


def warm_up(engine: "Engine", request: Request) -> None:
    """Run a few tokens both ways, so that neither measurement pays for first-time work."""
    short = replace(request, max_tokens=min(request.max_tokens, WARM_UP_TOKENS))
    for method in (None, "off"):
        for _ in short.start(engine, method):
            pass


def compare(engine: "Engine", request: Request, speculative: "GenerationResult") -> Comparison:
    """Decode `request`, which must have the seed that was used, plainly and set both together."""
    generation = request.start(engine, "off")
    for _ in generation:
        pass
    return Comparison(speculative=speculative, plain=generation.result)
