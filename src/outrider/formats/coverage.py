"""The most text that one token can stand for, read from the parts of a tokenizer.

A text that is longer than its context times that can never fit, which is known without encoding it:
a prompt of megabytes takes seconds and hundreds of MiB. Wherever a part could drop text or put
it together without limit, nothing is claimed, so that no text is refused that would have fitted.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from outrider.formats.spelling import BYTE_ALPHABET

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
