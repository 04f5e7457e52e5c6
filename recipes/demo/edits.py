"""The edit task: a chunk of code, a comment that asks for one rename, the chunk again, renamed.

It teaches the model to copy its context, which makes re-emitting a file a real workload for
drafters that look in the context.
"""

from __future__ import annotations

import builtins
import keyword
import random
import re
import textwrap
from dataclasses import dataclass

NAME = re.compile(r"\b[A-Za-z_][A-Za-z0-9_]{2,}\b")
RESERVED = frozenset((*keyword.kwlist, *dir(builtins), "self", "cls"))
CHARS_PER_TOKEN = 3.0


@dataclass(frozen=True)
class Edit:
    """An edit's prompt (chunk and request) and the text that answers it."""

    prompt: str
    answer: str
    old: str
    new: str


def names_of(text: str) -> list[str]:
    """Identifiers of a text in order of appearance, repeats included."""
    return [name for name in NAME.findall(text) if name not in RESERVED]


def rename(text: str, old: str, new: str) -> str:
    return re.sub(rf"\b{re.escape(old)}\b", new, text)


def cut_chunk(rng: random.Random, text: str, tokens: int) -> str:
    """A dedented run of whole lines of about `tokens` tokens, starting on a non-blank line."""
    lines = text.splitlines(keepends=True)
    size = int(tokens * CHARS_PER_TOKEN)
    start = rng.randrange(max(1, len(lines) - tokens // 12))
    while start + 1 < len(lines) and not lines[start].strip():
        start += 1
    end, length = start, 0
    while end < len(lines) and length + len(lines[end]) <= size:
        length += len(lines[end])
        end += 1
    return textwrap.dedent("".join(lines[start:end])).strip("\n") + "\n"


def scramble(rng: random.Random, text: str, pool: list[str]) -> str:
    """Replace most identifiers by random ones, so that only the context can predict them."""
    for name in sorted(set(names_of(text))):
        if rng.random() < 0.7:
            text = rename(text, name, new_name(rng, pool))
    return text


def new_name(rng: random.Random, pool: list[str]) -> str:
    """A name from the corpus or, one time in four, made of two of them."""
    if rng.random() < 0.75:
        return rng.choice(pool)
    return f"{rng.choice(pool)[:10].strip('_')}_{rng.choice(pool)[:8].strip('_')}"


def make_edit(rng: random.Random, chunk: str, pool: list[str]) -> Edit | None:
    """A rename of one identifier of the chunk, preferring names that occur more than once."""
    names = names_of(chunk)
    if not names:
        return None
    repeated = [name for name in names if names.count(name) > 1]
    old = rng.choice(repeated or names)
    new = new_name(rng, pool)
    if new in names:
        return None
    prompt = f"{chunk}# Edit: rename `{old}` to `{new}`\n"
    return Edit(prompt, rename(chunk, old, new), old, new)
