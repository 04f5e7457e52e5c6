"""A run as JSON: a versioned schema, deterministic counts apart from timings; two set side by side.

Pure.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from outrider.bench.legs import SPECULATIVE, UNKNOWN, Case, Leg
from outrider.bench.run import Calibrated, Measured, plain_legs
from outrider.bench.stats import (
    Statistic,
    Timed,
    estimate,
    plain_speed,
    speculative_speed,
    speedup,
)
from outrider.bench.workload import copied_share
from outrider.costs.curve import MeasuredCurve
from outrider.costs.prediction import FLAG_ABOVE, Prediction, RoundCost, difference
from outrider.errors import RequestError
from outrider.telemetry.counters import (
    acceptance_rate,
    conditional_per_position,
    mean_acceptance_length,
    merge,
    timings,
)

SCHEMA = "outrider-bench/1"
FORMULAS = {
    "speed": "tokens after the first / ms after the first; the prompt is not timed",
    "speedup": "sum of plain medians / sum of speculative medians, per prompt, same tokens",
    "interval": "95 % of 500 resamples of prompts, then of repeats",
    "acceptance_rate": "accepted / verified drafts, the target's own tokens left out",
    "mean_acceptance_length": "tokens / target passes, the target's own token included",
    "per_position": "kept at place i / windows with a draft at place i",
    "conditional": "kept at place i / windows that kept every draft before place i",
    "copied": "output tokens that end an 8-gram seen earlier in the context / output tokens",
    "predicted": "mean acceptance length / (verify + draft + rollback + host in plain steps)",
    "break_even": "chance per draft, given those before it, at which the round pays for itself",
}

Record = dict[str, Any]


def build(run: Measured, method: str, provenance: Mapping[str, object]) -> Record:
    """The whole report, as it will be read; parts that were not measured are null."""
    assert run.verdict is not None
    record = {
        "schema": SCHEMA,
        "verdict": run.verdict.outcome,
        "sentence": run.verdict.sentence,
        "why": run.verdict.why,
        "change": run.verdict.change,
        "method": method,
        "workload": _workload(run),
        "settings": asdict(run.settings),
        "gates": [asdict(gate) for gate in run.gates],
        "speedup": asdict(run.speedup) if run.speedup else None,
        "speeds": _speeds(run) if run.speedup else [],
        "acceptance": _acceptance(run),
        "counters": _counts(run),
        "categories": _categories(run) if run.speedup else [],
        "prompts": [_prompt(case) for case in run.cases] if run.speedup else [],
        "context": _context(run.cases),
        "round": _round(run.cases) if run.speedup else None,
        "model": _model(run, run.calibrated) if run.calibrated and run.speedup else None,
        "formulas": FORMULAS,
        "provenance": dict(provenance),
    }
    as_read: Record = json.loads(json.dumps(record))
    return as_read


def _workload(run: Measured) -> Record:
    return {
        "name": run.workload.name,
        "version": run.workload.version,
        "prompts": len(run.cases),
        "skipped": run.skipped,
        "tokens": sum(case.count for case in run.cases),
        "copied": _copied(run.cases),
    }


def _copied(cases: Sequence[Case]) -> float:
    """Over all output tokens of the plain legs."""
    total = sum(case.count for case in cases)
    shares = [
        copied_share(case.prompt, case.check[0].tokens) * case.count for case in cases if case.check
    ]
    return sum(shares) / total if total else 0.0


def _row(name: str, samples: Sequence[Timed], statistic: Statistic, seed: int) -> Record:
    return {"name": name, **_estimate(samples, statistic, seed), "refused": None}


def _estimate(samples: Sequence[Timed], statistic: Statistic, seed: int) -> Record:
    return asdict(estimate(samples, statistic, seed))


def _speeds(run: Measured) -> list[Record]:
    """Tokens per second: plain, speculative, then each peer or why it refused."""
    seed = run.settings.seed
    rows = [
        _row("plain", run.samples, plain_speed, seed),
        _row("speculative", run.samples, speculative_speed, seed),
    ]
    for name in dict.fromkeys(name for case in run.cases for name in case.peers):
        legs = [case.peers[name] for case in run.cases if name in case.peers]
        row = _row(name, [_as_timed(group) for group in legs], speculative_speed, seed)
        rows.append(row | {"same_output": _same_output(run.cases, name)})
    refused = run.refused.items()
    return rows + [{"name": name, "value": None, "refused": why} for name, why in refused]


def _as_timed(legs: Sequence[Leg]) -> Timed:
    times = tuple(leg.ms for leg in legs)
    return Timed(tokens=legs[0].timed, plain=tuple((ms,) for ms in times), speculative=times)


def _same_output(cases: Sequence[Case], peer: str) -> bool | None:
    """None where the peer did not tell its tokens."""
    pairs = [
        (leg.tokens, case.check[0].tokens)
        for case in cases
        if case.check
        for leg in case.peers.get(peer, [])
    ]
    if any(UNKNOWN in theirs for theirs, _ in pairs):
        return None
    return all(theirs == ours for theirs, ours in pairs)


def _acceptance(run: Measured) -> Record:
    return {
        "rate": acceptance_rate(run.counters),
        "mean_acceptance_length": mean_acceptance_length(run.counters),
        "per_position": timings(run.counters)["speculative_accepted_per_position"],
        "conditional": conditional_per_position(run.counters),
    }


def _counts(run: Measured) -> Record:
    """The part that does not depend on the clock."""
    measured = timings(run.counters).items()
    sources = {name: asdict(count) for name, count in run.counters.by_source.items()}
    kept = {k: v for k, v in measured if not {"ms", "second"} & set(k.split("_"))}
    return kept | {"by_source": sources}


def _categories(run: Measured) -> list[Record]:
    ordered = sorted(run.cases, key=lambda case: case.category)
    groups = groupby(ordered, key=lambda case: case.category)
    return [_category(name, list(cases), run.settings.seed) for name, cases in groups]


def _category(name: str, cases: Sequence[Case], seed: int) -> Record:
    samples = [case.timed for case in cases]
    counters = merge(case.check[1].counters for case in cases if case.check)  # type: ignore[misc]
    return {
        "name": name,
        "prompts": len(cases),
        "plain": plain_speed(samples),
        "speculative": speculative_speed(samples),
        "speedup": _estimate(samples, speedup, seed),
        "acceptance_rate": acceptance_rate(counters),
        "mean_acceptance_length": mean_acceptance_length(counters),
        "copied": _copied(cases),
    }


def _prompt(case: Case) -> Record:
    return {
        "id": case.id,
        "category": case.category,
        "prompt_tokens": len(case.prompt),
        "tokens": case.count,
        "plain_ms": [list(legs) for legs in case.timed.plain],
        "speculative_ms": list(case.timed.speculative),
        "speedup": speedup([case.timed]),
    }


def _context(cases: Sequence[Case]) -> list[Record]:
    legs = [
        (len(case.prompt), leg) for case in cases for bracket in case.brackets for leg in bracket
    ]
    return [asdict(one) for one in bins(legs)]


def _round(cases: Sequence[Case]) -> Record:
    """The mean round as it was measured, ms by part; host is what no part accounts for."""
    legs = [leg for case in cases for legs in case.brackets for leg in legs]
    spent = [(leg.ms, leg.counters) for leg in legs if leg.kind == SPECULATIVE and leg.counters]
    passes = max(sum(counters.windows_judged for _, counters in spent), 1)
    parts = {
        name: sum(getattr(counters, f"{name}_ms") for _, counters in spent) / passes
        for name in ("draft", "verify", "rollback")
    }
    total = sum(ms for ms, _ in spent) / passes
    cost = RoundCost(**parts, host=total - sum(parts.values()))
    plain = [leg for case in cases for leg in plain_legs(case)]
    step = sum(leg.ms for leg in plain) / max(sum(leg.timed for leg in plain), 1)
    return {**asdict(cost), "total": total, "plain_step": step}


def _model(run: Measured, found: Calibrated) -> Record:
    assert run.speedup is not None
    apart = difference(found.prediction.speedup, run.speedup.value)
    return {
        "plain_step": found.costs.plain,
        "host": found.costs.host,
        "host_beyond": _points(found.costs.beyond),
        "opening": found.costs.opening,
        "verify": _points(found.costs.verify),
        "draft": _points(found.costs.draft),
        "rollback": _points(found.costs.rollback),
        "prediction": _prediction(found.prediction),
        "measured": run.speedup.value,
        "difference": apart,
        "flagged": abs(apart) > FLAG_ABOVE,
        "sweep": [{"k": point.k, **_prediction(point.prediction)} for point in found.sweep],
        "best_k": found.best.k if found.best else None,
        "calibration": {
            "step_ms": found.readings.step,
            "verify_ms": found.readings.verify,
            "rollback_ms": found.readings.rollback,
        },
    }


def _points(curve: MeasuredCurve) -> list[list[float]]:
    return [[place, ms] for place, ms in sorted(curve.points.items())]


def _prediction(prediction: Prediction) -> Record:
    return {
        "speedup": prediction.speedup,
        "round_in_plain_steps": prediction.units,
        "mean_acceptance_length": prediction.mean_acceptance_length,
        "break_even_acceptance": prediction.break_even,
        "round": asdict(prediction.round) | {"total": prediction.round.total},
    }


def read(path: Path) -> Record:
    """A report from a file; raises RequestError where it is none of this schema."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} cannot be read as JSON ({error}): name a report.") from None
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema != SCHEMA:
        raise RequestError(
            f"{path} has schema {schema!r} instead of {SCHEMA!r}: name a file that `outrider bench "
            "--output` of this version wrote."
        )
    found: Record = record
    return found


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


MUST_MATCH = (("workload", "version"), ("settings", "tokens"))
SHOULD_MATCH = (
    ("provenance", "processor"),
    ("provenance", "threads"),
    ("provenance", "dtype"),
    ("provenance", "packages"),
)


def compare(one: Record, other: Record) -> Record:
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
    ratio = second["value"] / first["value"]
    verdict = "same within the intervals"
    if second["low"] > first["high"] or second["high"] < first["low"]:
        verdict = "faster" if ratio > 1 else "slower"
    return {
        "verdict": verdict,
        "ratio": ratio,
        "speedups": [one["speedup"]["value"], other["speedup"]["value"]],
        "tokens_per_second": [first["value"], second["value"]],
        "warnings": list(_warnings(one, other)),
    }


def comparison_lines(found: Record) -> Iterator[str]:
    """A comparison for the terminal."""
    for warning in found["warnings"]:
        yield f"warning: {warning}"
    speeds, speedups = found["tokens_per_second"], found["speedups"]
    yield f"speculative   {speeds[0]:8.1f} -> {speeds[1]:8.1f} tokens/s"
    yield f"speed-up      {speedups[0]:8.2f} -> {speedups[1]:8.2f} x"
    yield f"ratio         {found['ratio']:8.2f}  ({found['verdict']})"


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
