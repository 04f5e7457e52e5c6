"""The edit task: a chunk of a file, a comment that asks for one rename, the chunk again, renamed.

It teaches the model to copy its context, which makes re-emitting a file a real workload for
drafters that look in the context. The file's name comes before both, so that the place to start
copying from can be found. The new name is the old one and a suffix of one token: a model of this
size, asked to put any other name in its place, had learned half of the renames after 2.7 M tokens,
and lost its place after most of them.
"""

from __future__ import annotations

import builtins
import keyword
import random
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import Tokenizer

NAME = re.compile(r"\b[A-Za-z_][A-Za-z0-9_]{2,}\b")
RESERVED = frozenset((*keyword.kwlist, *dir(builtins), "self", "cls"))
CHARS_PER_TOKEN = 3.0
SUFFIX = re.compile(r"_[a-z]{4,}")


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


@dataclass(frozen=True)
class Renames:
    """Names that may be changed, and the single tokens that may be added to a name."""

    names: list[str]
    suffixes: list[str]

    @classmethod
    def of(cls, tokenizer: Tokenizer, texts: Iterable[str]) -> Renames:
        """Names of the texts of at most two tokens, with a space before them or without."""
        names = sorted({name for text in texts for name in names_of(text)})
        lengths = [
            [len(e.ids) for e in tokenizer.encode_batch([space + name for name in names])]
            for space in ("", " ")
        ]
        short = [name for name, *sizes in zip(names, *lengths, strict=True) if max(sizes) <= 2]
        return cls(short, sorted(filter(SUFFIX.fullmatch, tokenizer.get_vocab())))


def make_edit(rng: random.Random, chunk: str, renames: Renames) -> Edit | None:
    """A rename of a name that occurs often rather than seldom, and in no other word: a suffix."""
    names, known = names_of(chunk), set(renames.names)
    candidates = [n for n in names if n in known and chunk.count(n) == names.count(n)]
    if not candidates:
        return None
    old = rng.choice(candidates)
    new = old + rng.choice(renames.suffixes)
    if new in names:
        return None
    title = f"# {rng.choice(renames.names)}_{rng.choice(renames.names)}.py\n"
    prompt = f"{title}{chunk}# Edit: rename `{old}` to `{new}`\n{title}"
    return Edit(prompt, rename(chunk, old, new), old, new)
