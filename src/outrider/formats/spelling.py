"""From a token as the vocabulary spells it to the bytes that it adds to a text, and back. Pure.

Decoding an id alone cannot tell: a part of a character becomes U+FFFD there, and the space that a
text begins with is stripped. Two forms are common: byte-level vocabularies, in which each letter
stands for a byte, and pieces in the manner of SentencePiece (a mark for spaces, bytes as `<0xE2>`).
Decoders are known by the JSON of `tokenizer.json`, not by the library.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]
Step = tuple[str, str, str]
"""A kind of decoder, and what it replaces by what (where it replaces anything)."""

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_PIECES = re.compile("(Replace )*(ByteFallback )?(Fuse (Strip )?)?")
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
# Bytes without a letter of their own have those from U+0100 on, in order.
_LETTERS = {byte: chr(byte) for byte in _PRINTABLE} | {
    byte: chr(0x100 + place) for place, byte in enumerate(_OTHERS)
}
_BYTES = {letter: byte for byte, letter in _LETTERS.items()}
BYTE_ALPHABET = frozenset(_BYTES)
"""The letters that byte-level vocabularies write bytes as."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """How one vocabulary spells bytes.

    `strip` is how many spaces a text loses at its start, as far as it has them; None where a text
    is more than the bytes of its tokens one after the other.
    """

    steps: tuple[Step, ...]
    strip: int | None = None

    @classmethod
    def of(cls, decoder: Json | None) -> "Spelling | None":
        """The spelling that a decoder undoes; None for kinds that look at neighbouring tokens."""
        steps = _steps([decoder] if decoder else [])
        return cls(tuple(steps), _strip(decoder or {})) if steps else None

    def bytes_of(self, token: str) -> bytes:
        """The bytes of a token in the midst of a text."""
        for kind, old, new in self.steps:
            if kind == "Replace":
                token = token.replace(old, new)
            elif kind == "ByteFallback" and (found := _BYTE.fullmatch(token)):
                return bytes([int(found[1], 16)])
            elif kind == "ByteLevel" and all(letter in _BYTES for letter in token):
                return bytes(_BYTES[letter] for letter in token)
        return token.encode()

    def of_text(self, text: str) -> str:
        """How the vocabulary spells `text`, if as one token that is no lone byte."""
        for kind, old, new in reversed(self.steps):
            if kind == "Replace":
                text = text.replace(new, old) if new else text
            elif kind == "ByteLevel":
                text = "".join(_LETTERS[byte] for byte in text.encode())
        return text


class TokenBytes(dict[int, bytes]):
    """Bytes of each token by id, found when first asked for; see `Spelling.strip`."""

    def __init__(self, bytes_of: Callable[[int], bytes], strip: int) -> None:
        super().__init__()
        self._bytes_of = bytes_of
        self.strip = strip

    def __missing__(self, token: int) -> bytes:
        self[token] = self._bytes_of(token)
        return self[token]


def _steps(decoders: Sequence[Json]) -> list[Step] | None:
    """Effect of decoders on each token alone; None where one does more than that."""
    found: list[Step] = []
    for decoder in decoders:
        kind = decoder["type"]
        if kind == "Sequence":
            inner = _steps(decoder["decoders"])
            if inner is None:
                return None
            found += inner
        elif kind == "Replace" and "String" in decoder["pattern"]:
            found.append((kind, decoder["pattern"]["String"], decoder["content"]))
        elif kind == "Metaspace":
            found.append(("Replace", decoder["replacement"], " "))
        elif kind in ("ByteLevel", "ByteFallback", "Fuse"):
            found.append((kind, "", ""))
        elif kind != "Strip" or ("Fuse", "", "") not in found:
            return None  # Once tokens are fused, stripping concerns the text's ends only.
    return found


def _strip(decoder: Json) -> int | None:
    """`Spelling.strip` of a decoder whose steps are known."""
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    names = "".join(f"{step['type']} " for step in steps)
    if names != "ByteLevel " and not _PIECES.fullmatch(names):
        return None
    strips = [step for step in steps if step["type"] == "Strip"]
    if not all(step["content"] == " " and step["stop"] == 0 for step in strips):
        return None
    return sum(int(step["start"]) for step in strips)
