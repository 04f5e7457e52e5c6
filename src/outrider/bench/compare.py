"""Two reports side by side. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from outrider.bench.record import Record
from outrider.errors import RequestError

MUST_MATCH = (("workload", "version"), ("settings", "tokens"))
SHOULD_MATCH = (
    ("provenance", "processor"),
    ("provenance", "threads"),
    ("provenance", "dtype"),
    ("provenance", "packages"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How report B stands to report A."""

    ratio: float
    speedups: tuple[float, float]
    speeds: tuple[float, float]
    clear: bool
    warnings: tuple[str, ...]

    def record(self) -> Record:
        """JSON-ready form."""
        word = "same within the intervals"
        if self.clear:
            word = "faster" if self.ratio > 1 else "slower"
        return {
            "verdict": word,
            "ratio": self.ratio,
            "speedups": list(self.speedups),
            "tokens_per_second": list(self.speeds),
            "warnings": list(self.warnings),
        }

    def lines(self) -> Iterator[str]:
        """For the terminal."""
        for warning in self.warnings:
            yield f"warning: {warning}"
        yield f"speculative   {self.speeds[0]:8.1f} -> {self.speeds[1]:8.1f} tokens/s"
        yield f"speed-up      {self.speedups[0]:8.2f} -> {self.speedups[1]:8.2f} x"
        yield f"ratio         {self.ratio:8.2f}  ({self.record()['verdict']})"


def compare(one: Record, other: Record) -> Comparison:
    """Set B against A: speculative tokens per second. Raises RequestError where that is senseless:
    other prompts or token counts, or a report without speeds."""
    for record, name in ((one, "A"), (other, "B")):
        if record["verdict"] == "failed" or record["speedup"] is None:
            raise RequestError(
                f"report {name} has no speeds, since a gate failed ({record['why']}): repair that "
                "and measure again."
            )
    for section, key in MUST_MATCH:
        if one[section][key] != other[section][key]:
            raise RequestError(
                f"{section}.{key} is {one[section][key]!r} in A and {other[section][key]!r} in B: "
                "only reports on the same prompts and tokens can be compared."
            )
    first, second = _speculative(one), _speculative(other)
    return Comparison(
        ratio=second["value"] / first["value"],
        speedups=(one["speedup"]["value"], other["speedup"]["value"]),
        speeds=(first["value"], second["value"]),
        clear=second["low"] > first["high"] or second["high"] < first["low"],
        warnings=tuple(_warnings(one, other)),
    )


def _speculative(record: Record) -> Record:
    rows: list[Record] = record["speeds"]
    return next(row for row in rows if row["name"] == "speculative")


def _warnings(one: Record, other: Record) -> Iterator[str]:
    for section, key in SHOULD_MATCH:
        mine, theirs = one[section].get(key), other[section].get(key)
        if mine != theirs:
            yield f"{key} differs: {mine} in A, {theirs} in B"
    for record, name in ((one, "A"), (other, "B")):
        if record["verdict"] == "inconclusive":
            yield f"{name} was inconclusive: {record['why']}"
