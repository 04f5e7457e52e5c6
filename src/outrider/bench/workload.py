"""Prompts to measure on: the shipped sets, and files in the forms that others publish."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from outrider import demo
from outrider.errors import RequestError

MIXED = "mixed"
LONG = "long-context"
JOINED_PROMPTS = 8
"""Prompts of the code set that make one prompt of the long-context set."""
RANDOM_NAMES = ("random", "random-tokens", "random_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt; `category` groups the results (Spec-Bench's, or the shipped set's name)."""

    id: str
    text: str
    category: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Prompts in a fixed order; `version` is a hash of their texts."""

    name: str
    prompts: tuple[Prompt, ...]

    @property
    def version(self) -> str:
        """The first 12 hex digits of the SHA-256 over ids and texts."""
        text = json.dumps([(prompt.id, prompt.text) for prompt in self.prompts])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def first(self, count: int) -> "Workload":
        """`count` prompts, taken from the categories in turn."""
        names = dict.fromkeys(prompt.category for prompt in self.prompts)
        groups = [[p for p in self.prompts if p.category == name] for name in names]
        taken = list(_in_turn(groups))[:count]
        return Workload(name=self.name, prompts=tuple(taken))


def _in_turn(groups: Sequence[Sequence[Prompt]]) -> Iterator[Prompt]:
    rows = zip_longest(*groups)
    return (prompt for prompt in chain.from_iterable(rows) if prompt is not None)


def names() -> list[str]:
    """Workloads that `load` knows by name."""
    return [MIXED, *demo.workloads(), LONG]


def load(name: str) -> Workload:
    """A shipped workload by name, or the prompts of a JSON-lines file.

    Raises RequestError for an unknown name, an unreadable file or a line in an unknown form.
    """
    shipped = demo.workloads()
    if name in RANDOM_NAMES:
        raise RequestError(
            f"--workload {name} is refused: acceptance on random tokens says nothing about text; "
            f"use one of {', '.join(names())} or a file of real prompts."
        )
    if name in shipped:
        return _read(shipped[name], name)
    if name == MIXED:
        parts = [_read(path, part).prompts for part, path in shipped.items()]
        return Workload(name=name, prompts=tuple(chain.from_iterable(parts)))
    if name == LONG:
        return _long(_read(shipped["code"], "code"))
    return _read_own(Path(name))


def _long(base: Workload) -> Workload:
    """Several prompts of `base` joined into one, over and over."""
    texts = [prompt.text for prompt in base.prompts]
    starts = range(0, len(texts) - JOINED_PROMPTS + 1, JOINED_PROMPTS)
    return Workload(
        name=LONG,
        prompts=tuple(
            Prompt(id=f"long-{n}", text="".join(texts[start:][:JOINED_PROMPTS]), category=LONG)
            for n, start in enumerate(starts)
        ),
    )


def _read_own(path: Path) -> Workload:
    if not path.is_file():
        raise RequestError(
            f"--workload {path} is neither a shipped workload ({', '.join(names())}) nor a file: "
            "name one of them or a JSON-lines file."
        )
    return _read(path, path.name)


def _read(path: Path, name: str) -> Workload:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"--workload {path} cannot be read ({error}): name a UTF-8 file.") from (
            None
        )
    rows = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise RequestError(f"--workload {path} is empty: give one JSON object per line.")
    prompts = tuple(_prompt(line, f"{path} line {number}", name) for number, line in rows)
    return Workload(name=name, prompts=prompts)


def _prompt(line: str, place: str, category: str) -> Prompt:
    """One line: `prompt` (HumanEval's and the shipped form) or `turns` (Spec-Bench, MT-bench)."""
    try:
        row: Any = json.loads(line)
    except ValueError as error:
        raise RequestError(f"--workload {place} is not JSON ({error}): correct it.") from None
    keys = list(row) if isinstance(row, dict) else []
    text = row["turns"][0] if "turns" in keys and row["turns"] else None
    text = row["prompt"] if "prompt" in keys else text
    if not isinstance(text, str) or not text:
        raise RequestError(
            f"--workload {place} has no text under 'prompt' or 'turns' (found "
            f"{', '.join(map(str, keys)) or 'no object'}): use HumanEval's or Spec-Bench's form."
        )
    name = next((row[key] for key in ("id", "task_id", "question_id") if key in keys), place)
    return Prompt(id=str(name), text=text, category=str(row.get("category", category)))
