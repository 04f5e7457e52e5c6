"""The report as one self-contained HTML page, made from the JSON record alone. Pure."""

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files

from outrider.bench.plot import Bar, Series, bars, chart
from outrider.bench.record import Record

PARTS = ("verify", "draft", "rollback", "host")


def render(record: Record) -> str:
    """The page; it loads nothing from anywhere."""
    style = files("outrider.bench").joinpath("page.css").read_text(encoding="utf-8")
    title = f"{record['method']} on {record['workload']['name']}: {record['verdict']}"
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Outrider bench: {escape(title)}</title><style>{style}</style></head>"
    )
    return f"{head}<body><main>{''.join(_body(record))}</main></body></html>\n"


def _body(record: Record) -> Iterator[str]:
    yield f'<p class="kicker">outrider bench, {escape(record["method"])}</p>'
    yield f'<h1 class="{record["verdict"].replace(" ", "-")}">{escape(record["sentence"])}</h1>'
    yield _tiles(record)
    yield f'<section class="figures">{"".join(_figures(record))}</section>'
    yield "<h2>Gates</h2>" + _table(
        ("", "gate", "seen"), [(g["state"], g["name"], g["detail"]) for g in record["gates"]]
    )
    yield from _tables(record)
    yield "<h2>Where this comes from</h2>" + _facts(record)


def _tiles(record: Record) -> str:
    """The figures that people quote, each with its definition."""
    formulas, seen = record["formulas"], record["acceptance"]
    tiles = [
        ("acceptance rate", f"{seen['rate']:.1%}", formulas["acceptance_rate"]),
        (
            "mean acceptance length",
            f"{seen['mean_acceptance_length']:.2f}",
            formulas["mean_acceptance_length"],
        ),
        ("copied text", f"{record['workload']['copied']:.0%}", formulas["copied"]),
    ]
    if up := record["speedup"]:
        bounds = f"{up['low']:.2f} to {up['high']:.2f}; {formulas['speedup']}"
        tiles.insert(0, ("speed-up", f"{up['value']:.2f}x", bounds))
    if model := record["model"]:
        chance = model["prediction"]["break_even_acceptance"]
        text = "none" if chance is None else f"{chance:.0%}"
        tiles.append(("break-even acceptance", text, formulas["break_even"]))
    cells = [
        f"<div><span>{name}</span><b>{value}</b><small>{escape(formula)}</small></div>"
        for name, value, formula in tiles
    ]
    return f'<section class="tiles">{"".join(cells)}</section>'


def _figures(record: Record) -> Iterator[str]:
    formulas, seen = record["formulas"], record["acceptance"]
    if record["speeds"]:
        yield _figure(
            "Speed, tokens/s", _speeds(record), f"With 95 % intervals: {formulas['speed']}."
        )
    if seen["per_position"]:
        note = f"Of verified: {formulas['per_position']}. Conditional: {formulas['conditional']}."
        yield _figure("Acceptance by position", _acceptance(seen), note)
    if model := record["model"]:
        yield _figure("Cost in plain steps", _costs(model), "Measured apart from the rounds.")
        note = f"Predicted: {formulas['predicted']}."
        yield _figure("Speed-up by draft length", _sweep(record), note)
    if record["round"]:
        note = "Milliseconds of the mean round; host is what no other part accounts for."
        yield _figure("Where a round goes", _round(record), note)
    if record["context"]:
        yield _figure("Speed over context length", _context(record), "Tokens/s while it grew.")


def _figure(title: str, plot: str, note: str) -> str:
    return f"<figure><h2>{title}</h2>{plot}<figcaption>{escape(note)}</figcaption></figure>"


def _speeds(record: Record) -> str:
    rows = [row for row in record["speeds"] if row["refused"] is None]
    styles = {"plain": 3, "speculative": 0}
    return bars(
        [
            Bar(
                name=row["name"],
                parts=[(row["name"], row["value"], styles.get(row["name"], 2))],
                low=row["low"],
                high=row["high"],
            )
            for row in rows
        ],
        "speed",
    )


def _acceptance(seen: Record) -> str:
    return chart(
        [
            Series(name="of verified", points=_numbered(seen["per_position"]), style=0),
            Series(name="conditional", points=_numbered(seen["conditional"]), style=1, dashed=True),
        ],
        "position in the draft",
        "acceptance",
        percent=True,
    )


def _numbered(values: Sequence[float]) -> list[tuple[float, float]]:
    return [(place, value) for place, value in enumerate(values, 1)]


def _costs(model: Record) -> str:
    unit = model["plain_step"]
    verify = [(rows, (ms + model["host"]) / unit) for rows, ms in model["verify"]]
    draft = [(drafts, ms / unit) for drafts, ms in model["draft"] if drafts]
    return chart(
        [
            Series(name="verify pass of n rows", points=verify, style=0),
            Series(name="drafting n tokens", points=draft, style=1),
        ],
        "n",
        "cost",
    )


def _sweep(record: Record) -> str:
    model = record["model"]
    points = [(point["k"], point["speedup"]) for point in model["sweep"]]
    used = len(record["acceptance"]["per_position"]) or 1
    ends = [k for k, _ in points] or [1]
    return chart(
        [
            Series(name="predicted", points=points, style=0),
            Series(name="measured", points=[(used, model["measured"])], style=1),
            Series(name="plain", points=[(min(ends), 1), (max(ends), 1)], style=3, dashed=True),
        ],
        "most drafts per round",
        "speed-up",
    )


def _round(record: Record) -> str:
    seen, model = record["round"], record["model"]
    rows = [
        Bar(name="plain step", parts=[("plain step", seen["plain_step"], 3)]),
        Bar(name="speculative round, measured", parts=_parts(seen)),
    ]
    if model:
        rows.append(Bar(name="the same, predicted", parts=_parts(model["prediction"]["round"])))
    return bars(rows, "round", digits=2)


def _parts(cost: Record) -> list[tuple[str, float, int]]:
    return [(name, cost[name], style) for style, name in enumerate(PARTS)]


def _context(record: Record) -> str:
    def line(kind: str, style: int) -> Series:
        found = [(one["low"], one["speeds"][kind]) for one in record["context"]]
        return Series(name=kind, points=found, style=style)

    return chart([line("speculative", 0), line("plain", 3)], "tokens in the context, from", "speed")


def _tables(record: Record) -> Iterator[str]:
    if record["speeds"]:
        names = ("", "tokens/s", "95 % interval", "")
        yield "<h2>Speeds</h2>" + _table(names, [_speed_row(row) for row in record["speeds"]])
    if record["categories"]:
        kinds = ("text", "plain", "speculative", "speed-up", "acceptance", "length", "copied")
        rows = [_category(row) for row in record["categories"]]
        yield "<h2>By kind of text</h2>" + _table(kinds, rows)
    if record["prompts"]:
        names = ("prompt", "its tokens", "tokens", "speed-up")
        yield f"<details><summary>Prompts</summary>{_table(names, _prompts(record))}</details>"


def _prompts(record: Record) -> list[tuple[str, ...]]:
    return [
        (one["id"], str(one["prompt_tokens"]), str(one["tokens"]), f"{one['speedup']:.2f}x")
        for one in record["prompts"]
    ]


def _speed_row(row: Record) -> tuple[str, ...]:
    if row["refused"] is not None:
        return row["name"], "refused", "", row["refused"]
    note = "its output differs" if row.get("same_output") is False else ""
    return row["name"], f"{row['value']:.1f}", f"{row['low']:.1f}\u2013{row['high']:.1f}", note


def _category(row: Record) -> tuple[str, ...]:
    up = row["speedup"]
    return (
        row["name"],
        f"{row['plain']:.1f}",
        f"{row['speculative']:.1f}",
        f"{up['value']:.2f}x ({up['low']:.2f}\u2013{up['high']:.2f})",
        f"{row['acceptance_rate']:.0%}",
        f"{row['mean_acceptance_length']:.2f}",
        f"{row['copied']:.0%}",
    )


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _facts(record: Record) -> str:
    """Settings and provenance as an outline."""
    groups = {key: record[key] for key in ("workload", "settings", "counters", "provenance")}
    return "".join(
        f"<details><summary>{name}</summary><dl>{''.join(_outline(group))}</dl></details>"
        for name, group in groups.items()
    )


def _outline(group: Record) -> Iterator[str]:
    for key, value in group.items():
        yield f"<dt>{escape(str(key))}</dt>"
        if isinstance(value, dict):
            yield f"<dd><dl>{''.join(_outline(value))}</dl></dd>"
        else:
            yield f"<dd>{escape(_shown(value))}</dd>"


def _shown(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(_shown, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
