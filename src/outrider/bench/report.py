"""The report for people, made from the JSON record alone: terminal, summary, one HTML page. Pure.

`page.html` is the page's template and `page.css` its style; the figures' numbers are computed here.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jinja2

from outrider.bench.record import Record


def fill(name: str, **values: object) -> str:
    """The template `name` (`.html`: what is filled in is escaped); raises where a value lacks."""
    writer = jinja2.Environment(
        autoescape=name.endswith(".html"), trim_blocks=True, undefined=jinja2.StrictUndefined
    )
    writer.filters["shown"] = _shown
    return writer.from_string(text(name)).render(**values)


def text(name: str) -> str:
    """A file beside this one."""
    return files("outrider.bench").joinpath(name).read_text(encoding="utf-8")


def _shown(value: object) -> str:
    """A setting or fact in words."""
    if isinstance(value, list):
        return " ".join(map(_shown, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


COPIED = ("schema", "verdict", "sentence", "method", "workload", "speedup")


def summary(record: Record) -> Record:
    """The last line of `--json`: small enough to read, whole figures in the report."""
    model = record["model"]
    speeds = {row["name"]: row["value"] for row in record["speeds"]}
    return {
        **{key: record[key] for key in COPIED},
        "tokens_per_second": speeds,
        "acceptance_rate": record["acceptance"]["rate"],
        "mean_acceptance_length": record["acceptance"]["mean_acceptance_length"],
        "predicted_speedup": model["prediction"]["speedup"] if model else None,
        "prediction_flagged": model["flagged"] if model else None,
        "best_max_draft_tokens": model["best_k"] if model else None,
        "failed_gates": [g["name"] for g in record["gates"] if g["state"] != "passed"],
    }


def lines(record: Record) -> list[str]:
    """The text for the terminal, gates first; each figure with its formula."""
    return fill("summary.txt", record=record).splitlines()


WIDTH, HEIGHT = 400, 240
LEFT, RIGHT, TOP, BOTTOM = 46, 388, 12, 198
ROW = 50

Plot = dict[str, Any]
"""`width`, `height`, `legend` [(name, style)], and either what `chart` or what `bars` adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one line; `style` is its colour's number."""

    name: str
    points: Sequence[tuple[float, float]]
    style: int
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A row of parts laid end to end (name, value, style); an interval where there is one."""

    name: str
    parts: Sequence[tuple[str, float, int]]
    low: float | None = None
    high: float | None = None


def ticks(high: float, most: int = 5) -> list[float]:
    """Round values from 0 to beyond `high`, at most about `most` steps."""
    if high <= 0:
        return [0.0, 1.0]
    raw = high / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * power for unit in (1, 2, 5, 10) if unit * power >= raw * 0.999)
    return [step * index for index in range(math.ceil(high / step - 1e-9) + 1)]


def chart(series: Sequence[Series], x_name: str, percent: bool = False) -> Plot:
    """Lines with their points over a common pair of axes; y begins at 0."""
    shown = [line for line in series if line.points]
    xs = sorted({x for line in shown for x, _ in line.points}) or [0.0]
    marks = ticks(1.0 if percent else max((y for s in shown for _, y in s.points), default=1.0))
    wide = xs[-1] - xs[0] or 1

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - xs[0]) / wide * (RIGHT - LEFT)
        return round(across, 1), round(BOTTOM - y / marks[-1] * (BOTTOM - TOP), 1)

    def drawn(line: Series) -> Plot:
        points = [(*at(x, y), f"{x:g}", _number(y, percent)) for x, y in line.points]
        path = "L".join(f"{x} {y}" for x, y, *_ in points)
        style = {"name": line.name, "style": line.style, "dashed": line.dashed}
        return style | {"path": path, "points": points}

    below = xs[:: math.ceil(len(xs) / 10)]
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "legend": [(line.name, line.style) for line in shown],
        "x_name": x_name,
        "left": LEFT,
        "right": RIGHT,
        "bottom": BOTTOM,
        "levels": [(at(xs[0], mark)[1], _number(mark, percent)) for mark in marks],
        "below": [(at(x, 0)[0], f"{x:g}") for x in below],
        "lines": [drawn(line) for line in shown],
    }


def bars(rows: Sequence[Bar], digits: int = 1) -> Plot:
    """Horizontal bars from 0, each under its name, its sum written at its end."""
    ends = [max(sum(value for _, value, _ in row.parts), row.high or 0) for row in rows]
    scale = (WIDTH - 70) / (max(ends, default=0) or 1)
    parts = {name: style for row in rows for name, _, style in row.parts if len(row.parts) > 1}
    return {
        "width": WIDTH,
        "height": len(rows) * ROW + 8,
        "legend": list(parts.items()),
        "rows": [_bar(row, scale, digits) | {"top": index * ROW} for index, row in enumerate(rows)],
    }


def _bar(row: Bar, scale: float, digits: int) -> Plot:
    boxes, x = [], 0.0
    for name, value, style in row.parts:
        box = {"x": round(x, 1), "width": round(max(value, 0) * scale, 1)}
        boxes.append(box | {"name": name, "style": style, "value": f"{value:.{digits}f}"})
        x += max(value, 0) * scale
    interval = None
    if row.low is not None and row.high is not None:
        interval = round(row.low * scale, 1), round(row.high * scale, 1)
        x = max(x, row.high * scale)
    total = f"{sum(value for _, value, _ in row.parts):.{digits}f}"
    return {
        "name": row.name,
        "boxes": boxes,
        "interval": interval,
        "end": round(x, 1),
        "total": total,
    }


def _number(value: float, percent: bool) -> str:
    if percent:
        return f"{value:.0%}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


PARTS = ("verify", "draft", "rollback", "host")

Figure = tuple[str, Plot, str]
"""Title, plot and note."""


def render(record: Record) -> str:
    """The page; it loads nothing from anywhere."""
    figures = list(_figures(record))
    return fill("page.html", record=record, style=text("page.css"), figures=figures) + "\n"


def _figures(record: Record) -> Iterator[Figure]:
    formulas, seen = record["formulas"], record["acceptance"]
    if record["speeds"]:
        note = f"With 95 % intervals: {formulas['speed']}."
        yield "Speed, tokens/s", bars(_speeds(record["speeds"])), note
    if seen["per_position"]:
        note = f"Of verified: {formulas['per_position']}. Conditional: {formulas['conditional']}."
        plot = chart(_acceptance(seen), "position in the draft", percent=True)
        yield "Acceptance by position", plot, note
    if model := record["model"]:
        yield "Cost in plain steps", chart(_costs(model), "n"), "Measured apart from the rounds."
        plot = chart(_sweep(record, model), "most drafts per round")
        yield "Speed-up by draft length", plot, f"Predicted: {formulas['predicted']}."
    if record["round"]:
        note = "Milliseconds of the mean round; host is what no other part accounts for."
        yield "Where a round goes", bars(_round(record), digits=2), note
    if record["context"]:
        plot = chart(_context(record["context"]), "tokens in the context, from")
        yield "Speed over context length", plot, "Tokens/s while it grew."


def _speeds(rows: Sequence[Record]) -> list[Bar]:
    styles = {"plain": 3, "speculative": 0}
    return [
        Bar(
            name=row["name"],
            parts=[(row["name"], row["value"], styles.get(row["name"], 2))],
            low=row["low"],
            high=row["high"],
        )
        for row in rows
        if row["refused"] is None
    ]


def _acceptance(seen: Record) -> list[Series]:
    of_verified, conditional = (
        list(enumerate(seen[key], 1)) for key in ("per_position", "conditional")
    )
    return [
        Series(name="of verified", points=of_verified, style=0),
        Series(name="conditional", points=conditional, style=1, dashed=True),
    ]


def _costs(model: Record) -> list[Series]:
    unit = model["plain_step"]
    verify = [(rows, (ms + model["host"]) / unit) for rows, ms in model["verify"]]
    draft = [(drafts, ms / unit) for drafts, ms in model["draft"] if drafts]
    return [
        Series(name="verify pass of n rows", points=verify, style=0),
        Series(name="drafting n tokens", points=draft, style=1),
    ]


def _sweep(record: Record, model: Record) -> list[Series]:
    points = [(point["k"], point["speedup"]) for point in model["sweep"]]
    used = len(record["acceptance"]["per_position"]) or 1
    ends = [k for k, _ in points] or [1]
    return [
        Series(name="predicted", points=points, style=0),
        Series(name="measured", points=[(used, model["measured"])], style=1),
        Series(name="plain", points=[(min(ends), 1), (max(ends), 1)], style=3, dashed=True),
    ]


def _round(record: Record) -> list[Bar]:
    seen, model = record["round"], record["model"]
    step = Bar(name="plain step", parts=[("plain step", seen["plain_step"], 3)])
    rounds = {"speculative round, measured": seen}
    if model:
        rounds["the same, predicted"] = model["prediction"]["round"]
    return [step, *(Bar(name=name, parts=_parts(cost)) for name, cost in rounds.items())]


def _parts(cost: Record) -> list[tuple[str, float, int]]:
    return [(name, cost[name], style) for style, name in enumerate(PARTS)]


def _context(bins: Sequence[Record]) -> list[Series]:
    return [
        Series(name=kind, points=[(one["low"], one["speeds"][kind]) for one in bins], style=style)
        for kind, style in (("speculative", 0), ("plain", 3))
    ]
