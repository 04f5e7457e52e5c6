"""Structured text from a seed: JSON, CSV, log lines, SQL inserts and HTML tables.

Each document draws its own schema, then repeats it over many records, so that a model can be sure
of most tokens without the text being a loop. Held-out seeds start at `HELD_OUT_SEED`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

HELD_OUT_SEED = 1_000_000_000

FIRST = [
    "Ada",
    "Alan",
    "Barbara",
    "Carl",
    "Clara",
    "David",
    "Diana",
    "Edgar",
    "Elena",
    "Emil",
    "Frank",
    "Grace",
    "Hanna",
    "Henry",
    "Ida",
    "Ivan",
    "Jane",
    "John",
    "Karen",
    "Karl",
    "Laura",
    "Leo",
    "Maria",
    "Mark",
    "Nadia",
    "Niels",
    "Olga",
    "Oscar",
    "Paul",
    "Petra",
    "Quinn",
    "Rosa",
    "Ruth",
    "Samuel",
    "Sara",
    "Tom",
    "Ursula",
    "Victor",
    "Wendy",
    "Yusuf",
]
LAST = [
    "Adams",
    "Baker",
    "Becker",
    "Brown",
    "Clark",
    "Costa",
    "Davis",
    "Evans",
    "Fischer",
    "Garcia",
    "Green",
    "Hall",
    "Hansen",
    "Ito",
    "Jones",
    "Keller",
    "Kim",
    "Lopez",
    "Martin",
    "Meyer",
    "Miller",
    "Moore",
    "Nguyen",
    "Olsen",
    "Patel",
    "Perez",
    "Reed",
    "Rossi",
    "Sato",
    "Schmidt",
    "Silva",
    "Smith",
    "Stone",
    "Taylor",
    "Turner",
    "Walker",
    "Weber",
    "White",
    "Wilson",
    "Young",
]
CITY = [
    "Athens",
    "Berlin",
    "Bergen",
    "Boston",
    "Cairo",
    "Dublin",
    "Geneva",
    "Hamburg",
    "Helsinki",
    "Kyoto",
    "Lagos",
    "Lima",
    "Lisbon",
    "London",
    "Lyon",
    "Madrid",
    "Milan",
    "Nairobi",
    "Osaka",
    "Oslo",
    "Paris",
    "Porto",
    "Prague",
    "Quito",
    "Riga",
    "Rome",
    "Seoul",
    "Sofia",
    "Turin",
    "Vienna",
]
THING = [
    "anchor",
    "basket",
    "battery",
    "bottle",
    "bracket",
    "cable",
    "camera",
    "candle",
    "chair",
    "clock",
    "compass",
    "cushion",
    "drill",
    "engine",
    "filter",
    "folder",
    "funnel",
    "gasket",
    "hammer",
    "handle",
    "hinge",
    "jacket",
    "kettle",
    "ladder",
    "lamp",
    "lever",
    "magnet",
    "mirror",
    "motor",
    "needle",
    "paddle",
    "pencil",
    "pillow",
    "pump",
    "ribbon",
    "saddle",
    "sensor",
    "shovel",
    "socket",
    "spring",
    "switch",
    "tablet",
    "ticket",
    "tractor",
    "tunnel",
    "valve",
    "wallet",
    "wheel",
    "window",
    "wrench",
]
STATUS = ["active", "pending", "closed", "failed", "shipped", "paid", "open", "draft"]
SERVICE = [
    "auth",
    "billing",
    "cache",
    "gateway",
    "indexer",
    "mailer",
    "queue",
    "scheduler",
    "search",
    "storage",
    "worker",
]
LEVEL = ("INFO", "INFO", "INFO", "INFO", "DEBUG", "WARNING", "ERROR")


@dataclass
class Field:
    """A column: its name and a function from the record number to a value."""

    name: str
    value: Callable[[int], object]


def _counter(rng: random.Random) -> Callable[[int], object]:
    start = rng.choice((1, 1, 10, 100, rng.randrange(1000, 9000)))
    step = rng.choice((1, 1, 1, 2, 5, 10))
    return lambda i: start + step * i


def _cycle(rng: random.Random, values: list[str]) -> Callable[[int], object]:
    chosen = rng.sample(values, rng.randint(2, 4))
    return lambda i: chosen[i % len(chosen)]


def _pick(rng: random.Random, values: list[str]) -> Callable[[int], object]:
    return lambda i: rng.choice(values)


def _date(rng: random.Random) -> Callable[[int], object]:
    year, month, first = rng.randint(2015, 2024), rng.randint(1, 12), rng.randint(1, 28)
    return lambda i: f"{year}-{month:02d}-{(first + i - 1) % 28 + 1:02d}"


def _score(rng: random.Random) -> Callable[[int], object]:
    return lambda i: rng.randrange(1, 20) * 5


def _price(rng: random.Random) -> Callable[[int], object]:
    return lambda i: rng.randrange(2, 60) + rng.choice((0.25, 0.5, 0.75, 0.99))


def _code(rng: random.Random) -> Callable[[int], object]:
    prefix = "".join(rng.choice("ABCDEFGHKLMNPRSTVWXYZ") for _ in range(rng.randint(2, 3)))
    start = rng.randrange(100, 900)
    return lambda i: f"{prefix}-{start + i}"


def _flag(rng: random.Random) -> Callable[[int], object]:
    weight = rng.choice((0.1, 0.9, 0.5))
    return lambda i: rng.random() < weight


def schema(rng: random.Random) -> list[Field]:
    """A random record type of 3 to 7 fields, the first of them a counter or a code."""
    pool = [
        Field("name", lambda i: f"{rng.choice(FIRST)} {rng.choice(LAST)}"),
        Field("first_name", _pick(rng, FIRST)),
        Field("last_name", _pick(rng, LAST)),
        Field("city", _pick(rng, CITY)),
        Field("region", _cycle(rng, ["north", "south", "east", "west"])),
        Field("item", _pick(rng, THING)),
        Field("category", _cycle(rng, THING)),
        Field("status", _cycle(rng, STATUS)),
        Field("state", _pick(rng, STATUS[:3])),
        Field("date", _date(rng)),
        Field("score", _score(rng)),
        Field("quantity", _score(rng)),
        Field("price", _price(rng)),
        Field("enabled", _flag(rng)),
        Field("verified", _flag(rng)),
        Field("service", _cycle(rng, SERVICE)),
        Field("position", _counter(rng)),
    ]
    key = rng.choice(
        (Field("id", _counter(rng)), Field("id", _counter(rng)), Field("code", _code(rng)))
    )
    return [key, *rng.sample(pool, rng.randint(2, 6))]


def records(rng: random.Random) -> list[dict[str, object]]:
    """Records of one random schema."""
    fields = schema(rng)
    return [{f.name: f.value(i) for f in fields} for i in range(rng.randint(8, 40))]


def as_json(rng: random.Random) -> str:
    rows = records(rng)
    indent = rng.choice((None, None, 2, 4))
    if indent is None and rng.random() < 0.6:
        return "\n".join(json.dumps(row) for row in rows) + "\n"
    if indent is None:
        return "[\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]\n"
    return json.dumps({rng.choice(THING) + "s": rows}, indent=indent) + "\n"


def as_csv(rng: random.Random) -> str:
    rows = records(rng)
    comma = rng.choice((",", ",", ",", ";", "\t"))
    lines = [comma.join(rows[0])]
    lines += [comma.join(str(value) for value in row.values()) for row in rows]
    return "\n".join(lines) + "\n"


def as_sql(rng: random.Random) -> str:
    rows = records(rng)
    table = rng.choice(THING) + "s"
    columns = ", ".join(rows[0])

    def literal(value: object) -> str:
        return f"'{value}'" if isinstance(value, str) else str(value).upper()

    lines = [
        f"INSERT INTO {table} ({columns}) VALUES ({', '.join(map(literal, row.values()))});"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def as_html(rng: random.Random) -> str:
    rows = records(rng)
    pad = "  "
    lines = ["<table>", f"{pad}<tr>"]
    lines += [f"{pad * 2}<th>{name}</th>" for name in rows[0]] + [f"{pad}</tr>"]
    for row in rows:
        lines.append(f"{pad}<tr>")
        lines += [f"{pad * 2}<td>{value}</td>" for value in row.values()]
        lines.append(f"{pad}</tr>")
    return "\n".join([*lines, "</table>"]) + "\n"


MESSAGES = (
    "request {n} finished in {ms} ms",
    "connection from 10.0.{b}.{c} accepted",
    "connection from 10.0.{b}.{c} closed",
    "job {n} queued for {who}",
    "job {n} started",
    "job {n} done",
    "cache miss for key {what}:{n}",
    "cache hit for key {what}:{n}",
    "user {who} logged in",
    "user {who} logged out",
    "retrying {what} after timeout",
    "wrote {ms} rows to {what}",
)


def as_log(rng: random.Random) -> str:
    """Log lines with a steady clock; message kinds and services repeat within the document."""
    kinds = rng.sample(MESSAGES, rng.randint(2, 4))
    services = rng.sample(SERVICE, rng.randint(1, 3))
    layout = rng.choice(
        ("{t} {level} {service}: {m}", "[{t}] {service} {level} - {m}", "{t} [{level}] {m}")
    )
    day = f"{rng.randint(2018, 2024)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    clock, step, number = (
        rng.randrange(60_000),
        rng.choice((1, 1, 2, 5, 10)),
        rng.randrange(100, 9000),
    )
    who, what, block = rng.sample(FIRST, 3), rng.sample(THING, 3), rng.randrange(9)
    lines = []
    for i in range(rng.randint(15, 50)):
        clock, number = clock + step, number + 1
        values = {
            "n": number,
            "ms": rng.randrange(1, 20) * 5,
            "b": block,
            "c": 10 + i,
            "who": rng.choice(who).lower(),
            "what": rng.choice(what),
        }
        stamp = f"{day} {clock // 3600:02d}:{clock // 60 % 60:02d}:{clock % 60:02d}"
        message = kinds[i % len(kinds)].format(**values)
        service = services[i % len(services)]
        lines.append(layout.format(t=stamp, level=rng.choice(LEVEL), service=service, m=message))
    return "\n".join(lines) + "\n"


KINDS: dict[str, Callable[[random.Random], str]] = {
    "json": as_json,
    "csv": as_csv,
    "log": as_log,
    "sql": as_sql,
    "html": as_html,
}


def document(seed: int, kind: str | None = None) -> str:
    """One document, a function of its seed."""
    rng = random.Random(seed)
    make = KINDS[kind] if kind else KINDS[rng.choice(list(KINDS))]
    return make(rng)
