"""From a token as the vocabulary spells it to the bytes that it adds to a text, and back. Pure.

Decoding an id alone cannot tell: a part of a character becomes U+FFFD there, and the space that a
text begins with is stripped. Two forms are common: byte-level vocabularies, in which each letter
stands for a byte, and pieces in the manner of SentencePiece (a mark for spaces, bytes as `<0xE2>`).
Decoders are known by the JSON of `tokenizer.json`, not by the library.

`Coverage` is the most text that one token can stand for: a longer prompt than its context times
that can never fit, and is refused without encoding megabytes. Wherever a part of a tokenizer could
drop text or put it together without limit, nothing is claimed.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
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


Part = Mapping[str, Any]
"""A normalizer or pre-tokenizer as `tokenizer.json` writes it."""

COMPOSED = 4
"""Characters of a text that canonical composition (NFC, NFKC) makes one of, at most: no character
decomposes into more, and a text's decomposition is never shorter than the text."""
_COMPOSING = ("NFC", "NFKC")
_LENGTHENING = ("NFD", "NFKD", "Lowercase")
"""Normalizers that make one character or more of each, and ASCII of ASCII."""
_MARKING = ("Prepend", "ByteLevel")
"""Likewise, but what they make of ASCII may be anything."""
_KEEPING = ("ByteLevel", "Metaspace", "Digits")
"""Pre-tokenizers that drop nothing; so do others that do not say `Removed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The most that a token covers: `longest` characters of normalized text, each of them made of
    `composed` characters of the text, or of `composed_ascii` where that is ASCII. `strips`: white
    space beside a token may belong to it without limit."""

    longest: int
    composed: int
    composed_ascii: int
    strips: bool

    def least_tokens(self, text: str) -> int:
        """A number of tokens that no encoding of `text` is below."""
        each = self.longest * (self.composed_ascii if text.isascii() else self.composed)
        length = _inked(text) if self.strips else len(text)
        return -(-length // each)


def find_coverage(
    model: Any,
    vocabulary: Iterable[str],
    normalizer: Part | None,
    pre_tokenizer: Part | None,
    *,
    strips: bool,
) -> Coverage | None:
    """The coverage of a tokenizer's parts; None where nothing can be claimed.

    `model` is the backend's; `vocabulary` holds every token as it is spelled, and added tokens as
    the normalizer makes them too.
    """
    tokens = frozenset(vocabulary)
    normalizers, pre_tokenizers = _parts(normalizer), _parts(pre_tokenizer)
    byte_level = "ByteLevel" in {part["type"] for part in (*normalizers, *pre_tokenizers)}
    if not (
        all(map(_lengthens, normalizers))
        and all(map(_keeps, pre_tokenizers))
        and _counts_unknown(model, tokens, BYTE_ALPHABET if byte_level else None)
    ):
        return None
    composed = COMPOSED ** sum(part["type"] in _COMPOSING for part in normalizers)
    plain = all(part["type"] in (*_COMPOSING, *_LENGTHENING) for part in normalizers)
    return Coverage(
        longest=max(map(len, tokens)),
        composed=composed,
        composed_ascii=1 if plain else composed,
        strips=strips,
    )


def _parts(part: Part | None) -> list[Part]:
    if part is None:
        return []
    if part["type"] == "Sequence":
        held = part.get("normalizers") or part.get("pretokenizers") or []
        return [leaf for one in held for leaf in _parts(one)]
    return [part]


def _lengthens(part: Part) -> bool:
    """True if a normalizer shortens no text, but for composition."""
    if part["type"] == "Replace":
        replaced = part["pattern"].get("String")
        return replaced is not None and len(part["content"]) >= len(replaced)
    return part["type"] in (*_COMPOSING, *_LENGTHENING, *_MARKING)


def _keeps(part: Part) -> bool:
    if part["type"] in ("Split", "Punctuation"):
        return bool(part["behavior"] != "Removed")
    return part["type"] in _KEEPING


def _counts_unknown(model: Any, tokens: Set[str], byte_alphabet: Set[str] | None) -> bool:
    """True if every character that is no token becomes a token or more of its own."""
    if type(model).__name__ != "BPE":
        return False
    if model.unk_token in tokens and not model.fuse_unk:
        return True
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        return False  # With these a byte may be no token within a word.
    if byte_alphabet is not None and byte_alphabet <= tokens:
        return True
    return bool(model.byte_fallback) and {f"<0x{byte:02X}>" for byte in range(256)} <= tokens


def _inked(text: str, step: int = 1 << 16) -> int:
    """Characters that are no white space, counted in pieces to stay small in memory."""
    starts = range(0, len(text), step)
    return sum(sum(map(len, text[start : start + step].split())) for start in starts)
