"""The bytes of tokens, where a tokenizer's decoder is of a form that joins them. Pure.

Two forms are known: byte-level vocabularies, in which each letter stands for a byte, and pieces in
the manner of SentencePiece (a mark for spaces, bytes as `<0xE2>`, a leading space to strip). They
cover nearly every causal language model; texts of others come from their decoder alone.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_PIECES = re.compile(r"(Replace )*(ByteFallback )?(Fuse (Strip )?)?")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

Spell = Callable[[str], bytes]
NameOf = Callable[[int], str | None]


class Spelling(dict[int, bytes]):
    """Bytes of each token by id, found when first asked for.

    `name_of` gives a token as the vocabulary spells it, None where it adds nothing to a text. A
    text loses up to `strip` spaces at its start.
    """

    def __init__(self, name_of: NameOf, spell: Spell, strip: int = 0) -> None:
        super().__init__()
        self._name_of = name_of
        self._spell = spell
        self.strip = strip

    def __missing__(self, token: int) -> bytes:
        name = self._name_of(token)
        self[token] = b"" if name is None else self._spell(name)
        return self[token]


def find_spelling(decoder: Mapping[str, Any], name_of: NameOf) -> Spelling | None:
    """Return the spelling under a `decoder` as tokenizer.json states it; None for other forms."""
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    names = "".join(f"{step['type']} " for step in steps)
    if names == "ByteLevel ":
        return Spelling(name_of, _byte_level())
    if not _PIECES.fullmatch(names):
        return None
    replaced = [(_pattern(step), step["content"]) for step in steps if step["type"] == "Replace"]
    strips = [step for step in steps if step["type"] == "Strip"]
    if not all(pattern for pattern, _ in replaced) or not all(map(_leads, strips)):
        return None
    spell = _pieces(replaced, fallback="ByteFallback " in names)
    return Spelling(name_of, spell, sum(step["start"] for step in strips))


def _pattern(step: Mapping[str, Any]) -> str:
    """The string that a step replaces, empty where that is a regular expression."""
    return str(step["pattern"].get("String", ""))


def _leads(step: Mapping[str, Any]) -> bool:
    """Whether a step strips leading spaces and nothing else."""
    return bool(step["content"] == " " and step["stop"] == 0)


def _byte_level() -> Spell:
    """A letter is a byte; a token with a letter that is none is its own text."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printed]
    # Bytes without a letter of their own have those from U+0100 on, in order.
    bytes_of = {chr(byte): byte for byte in printed}
    bytes_of |= {chr(0x100 + place): byte for place, byte in enumerate(hidden)}

    def spell(token: str) -> bytes:
        if bytes_of.keys() >= set(token):
            return bytes(bytes_of[letter] for letter in token)
        return token.encode()

    return spell


def _pieces(replaced: Sequence[tuple[str, str]], *, fallback: bool) -> Spell:
    def spell(token: str) -> bytes:
        for old, new in replaced:
            token = token.replace(old, new)
        byte = _BYTE.fullmatch(token) if fallback else None
        return bytes([int(byte[1], 16)]) if byte else token.encode()

    return spell
