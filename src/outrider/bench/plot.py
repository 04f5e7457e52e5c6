"""Plots as numbers: where lines and bars stand, for the page's template to draw. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
