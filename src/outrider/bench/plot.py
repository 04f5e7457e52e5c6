"""Plots as inline SVG, coloured by the page's style (classes `s0`, `s1`, ...). Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 400, 240
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 42
BAR, GAP, LABEL = 20, 30, 15


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


def chart(series: Sequence[Series], x_name: str, y_name: str, percent: bool = False) -> str:
    """Lines with their points over a common pair of axes; y begins at 0."""
    shown = [line for line in series if line.points]
    xs = [x for line in shown for x, _ in line.points] or [0.0]
    marks = ticks(1.0 if percent else max((y for s in shown for _, y in s.points), default=1.0))
    left, right = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - left) / (right - left) * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - y / marks[-1] * (HEIGHT - TOP - BOTTOM)

    body = [_level(at(left, mark)[1], _number(mark, percent)) for mark in marks]
    body += [_below(at(x, 0)[0], f"{x:g}") for x in _some(sorted(set(xs)))]
    middle = (LEFT + WIDTH - RIGHT) / 2
    body.append(f'<text class="name" x="{middle}" y="{HEIGHT - 6}">{escape(x_name)}</text>')
    for line in shown:
        body.append(_line(line, [at(x, y) for x, y in line.points], percent))
    return _legend([(line.name, line.style) for line in shown]) + _svg(HEIGHT, body, y_name)


def bars(rows: Sequence[Bar], y_name: str, digits: int = 1) -> str:
    """Horizontal bars from 0, each under its name, its sum written at its end."""
    height = len(rows) * (BAR + GAP) + 8
    ends = [max(sum(value for _, value, _ in row.parts), row.high or 0) for row in rows]
    scale = (WIDTH - 70) / (max(ends, default=0) or 1)
    body = []
    for index, row in enumerate(rows):
        body.append(_bar(row, index * (BAR + GAP), scale, digits))
    parts = {name: style for row in rows for name, _, style in row.parts if len(row.parts) > 1}
    return _legend(list(parts.items())) + _svg(height, body, y_name)


def _bar(row: Bar, top: float, scale: float, digits: int) -> str:
    y, x = top + LABEL + 4, 0.0
    drawn = [f'<text class="left" x="0" y="{top + LABEL}">{escape(row.name)}</text>']
    for name, value, style in row.parts:
        title = f"<title>{escape(name)}: {value:.{digits}f}</title>"
        width = max(value, 0) * scale
        box = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}"'
        drawn.append(f'<rect class="s{style}" {box}>{title}</rect>')
        x += width
    if row.low is not None and row.high is not None:
        low, high, middle = row.low * scale, row.high * scale, y + BAR / 2
        drawn.append(f'<path class="range" d="M{low:.1f} {middle}H{high:.1f}"/>')
        x = max(x, high)
    total = sum(value for _, value, _ in row.parts)
    drawn.append(f'<text class="left" x="{x + 6:.1f}" y="{y + 15}">{total:.{digits}f}</text>')
    return "".join(drawn)


def _line(line: Series, places: Sequence[tuple[float, float]], percent: bool) -> str:
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dash = " dashed" if line.dashed else ""
    drawn = [f'<path class="line l{line.style}{dash}" d="{path}"/>']
    for (x, y), (at, value) in zip(places, line.points, strict=True):
        title = f"<title>{escape(line.name)} at {at:g}: {_number(value, percent)}</title>"
        circle = f'cx="{x:.1f}" cy="{y:.1f}" r="3.5"'
        drawn.append(f'<circle class="s{line.style}" {circle}>{title}</circle>')
    return "".join(drawn)


def _number(value: float, percent: bool) -> str:
    if percent:
        return f"{value:.0%}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _some(values: Sequence[float]) -> Sequence[float]:
    return values[:: max(1, math.ceil(len(values) / 10))]


def _level(y: float, name: str) -> str:
    line = f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
    return f'{line}<text class="right" x="{LEFT - 6}" y="{y + 4:.1f}">{name}</text>'


def _below(x: float, name: str) -> str:
    return f'<text class="middle" x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}">{name}</text>'


def _legend(entries: Sequence[tuple[str, int]]) -> str:
    if len(entries) < 2:
        return ""
    keys = [f'<span><i class="k{style}"></i>{escape(name)}</span>' for name, style in entries]
    return f'<p class="legend">{"".join(keys)}</p>'


def _svg(height: float, body: Sequence[str], name: str) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(name)}">'
    return f"{head}{''.join(body)}</svg>"
