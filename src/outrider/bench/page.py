"""The report as one self-contained HTML page, made from the JSON record alone. Pure.

`page.html` is its template, `page.css` its style; the figures' numbers are computed here.
"""

from collections.abc import Iterator, Sequence

from outrider.bench.plot import Bar, Plot, Series, bars, chart
from outrider.bench.record import Record
from outrider.bench.template import fill, text

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
