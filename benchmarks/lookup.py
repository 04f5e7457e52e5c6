"""What the lookup drafters cost and what they are worth, without any model.

    python benchmarks/lookup.py

Replays a text as if it were the target's output: the prompt is the text so far, each proposal is
judged against what really follows. `code` is this repository's own source cut into words, `random`
has nothing to find. Prints microseconds per indexed token, per proposal (median and worst), the
share of drafts accepted, and the mean acceptance length, bonus included.
"""

import random
import re
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from outrider.draft.base import Drafter
from outrider.draft.lookup.ngram_cache import NgramCacheDrafter
from outrider.draft.lookup.suffix import SuffixDrafter
from outrider.records import Commit, Context

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = (500, 4_000, 32_000)
REPLAYED = 400
BUDGET = 8
MAKERS = {"suffix": SuffixDrafter, "ngram-cache": NgramCacheDrafter}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One row of the table; times in microseconds."""

    index_us: float
    propose_us: tuple[float, ...]
    proposed: int
    accepted: int
    passes: int


def code_tokens(count: int) -> list[int]:
    """Return `count` ids of the words, spaces and signs of the repository's Python files."""
    words: dict[str, int] = {}
    tokens: list[int] = []
    for path in sorted(ROOT.glob("src/**/*.py")) + sorted(ROOT.glob("tests/**/*.py")):
        for word in re.findall(r"\w+|\s+|[^\w\s]", path.read_text()):
            tokens.append(words.setdefault(word, len(words)))
            if len(tokens) == count:
                return tokens
    raise SystemExit(f"the sources hold {len(tokens)} tokens, fewer than {count}")


def random_tokens(count: int) -> list[int]:
    chance = random.Random(0)
    return [chance.randrange(8_000) for _ in range(count)]


def measure(drafter: Drafter, tokens: list[int]) -> Measured:
    """Index all but the last tokens, then decode those."""
    context = tokens[:-REPLAYED]
    started = time.perf_counter()
    drafter.observe(Commit(position=0, tokens=tuple(context)))
    index_us = 1e6 * (time.perf_counter() - started) / len(context)
    times: list[float] = []
    proposed = accepted = 0
    while len(context) < len(tokens):
        started = time.perf_counter()
        draft = drafter.propose(Context(context), BUDGET)
        times.append(1e6 * (time.perf_counter() - started))
        guesses = draft.tokens if draft else ()
        kept = agreeing(guesses, tokens[len(context) :])
        proposed, accepted = proposed + len(guesses), accepted + kept
        new = tuple(tokens[len(context) : len(context) + kept + 1])
        drafter.observe(Commit(position=len(context), tokens=new, accepted=kept))
        context += new
    return Measured(
        index_us=index_us,
        propose_us=tuple(times),
        proposed=proposed,
        accepted=accepted,
        passes=len(times),
    )


def agreeing(guesses: tuple[int, ...], truth: list[int]) -> int:
    kept = 0
    while kept < min(len(guesses), len(truth)) and guesses[kept] == truth[kept]:
        kept += 1
    return kept


def table() -> Iterator[str]:
    heading = (
        "drafter",
        "text",
        "tokens",
        "us/token",
        "us/proposal",
        "worst",
        "accepted",
        "length",
    )
    yield "{:12} {:8} {:>7} {:>9} {:>12} {:>8} {:>9} {:>7}".format(*heading)
    for name, make in MAKERS.items():
        for kind, source in (("code", code_tokens), ("random", random_tokens)):
            for count in LENGTHS:
                row = measure(make(), source(count + REPLAYED))
                share = row.accepted / row.proposed if row.proposed else 0.0
                yield (
                    f"{name:12} {kind:8} {count:7} {row.index_us:9.2f} "
                    f"{statistics.median(row.propose_us):12.2f} {max(row.propose_us):8.1f} "
                    f"{share:9.1%} {REPLAYED / row.passes:7.2f}"
                )


if __name__ == "__main__":
    for line in table():
        print(line)
