"""Prompts to measure on: the shipped sets, and files in the forms that others publish.

Acceptance depends on the text as much as on the drafter: a lookup drafter lives on copied text, and
on random tokens no drafter can be right. Both are measured here, so that a figure is not read
without them.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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


GRAM = 8
LEAST_PAIRS = 2_000
"""Pairs of tokens below which coincidences tell nothing."""
BROKEN = "\N{REPLACEMENT CHARACTER}"
MOST_BROKEN = 0.001
LEAST_COINCIDENCE = 3.0
"""Uniformly random tokens give 1; text gives tens (bytes) to thousands (large vocabularies)."""


def copied_share(prompt: Sequence[int], output: Sequence[int], gram: int = GRAM) -> float:
    """Share of output tokens that end a run of `gram` tokens seen earlier in the context.

    What a lookup could have known, whichever drafter was used. 0.0 for an empty output.
    """
    tokens = [*prompt, *output]
    seen: set[tuple[int, ...]] = set()
    copied = 0
    for end in range(gram, len(tokens) + 1):
        run = tuple(tokens[end - gram : end])
        copied += end > len(prompt) and run in seen
        seen.add(run)
    return copied / len(output) if output else 0.0


def coincidence(prompts: Iterable[Sequence[int]], vocab_size: int) -> tuple[float, int]:
    """Ratio by which two tokens of a prompt are likelier equal than random ones, and the pairs
    seen."""
    equal = pairs = 0
    for prompt in prompts:
        equal += sum(count * (count - 1) // 2 for count in Counter(prompt).values())
        pairs += len(prompt) * (len(prompt) - 1) // 2
    return (equal * vocab_size / pairs if pairs else 0.0), pairs


def refuse_random(
    texts: Sequence[str], prompts: Sequence[Sequence[int]], vocab_size: int, name: str
) -> None:
    """Raise RequestError where the prompts look like uniformly random tokens.

    Written out as text and read again they no longer look so, but half characters betray them:
    vocabularies hold single bytes, and bytes in random order are no UTF-8.
    """
    found, pairs = coincidence(prompts, vocab_size)
    broken = sum(text.count(BROKEN) for text in texts)
    if broken > MOST_BROKEN * sum(map(len, texts)):
        raise RequestError(
            f"--workload {name} looks like random tokens written out as text ({broken} characters "
            "are broken): acceptance on it would be meaningless, so use real prompts."
        )
    if pairs >= LEAST_PAIRS and found < LEAST_COINCIDENCE:
        raise RequestError(
            f"--workload {name} looks like random tokens (two tokens of a prompt are equal "
            f"{found:.1f} times as often as by chance, in text at least {LEAST_COINCIDENCE:g} "
            "times): acceptance on it would be meaningless, so use real prompts."
        )
