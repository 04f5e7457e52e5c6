"""From token ids to text, piece by piece, with stop strings.

Knows a tokenizer only as something that decodes ids. A piece never holds half a character: what
the tokenizer shows as U+FFFD at the end may still become one and is held back. Text that may begin
a stop string is held back too. Each step decodes a short tail of the ids, not all of them.

Invariant: without a stop, all pieces and the flush joined are `decode` of all ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.errors import RequestError

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_MAX_UNFINISHED = 3
"""A character has at most 4 bytes, so 3 of them at most can still become one."""
_SHORT_TAIL = 12
"""No more ids than this are decoded again and again rather than cut: that takes a decoding too."""
_MAX_TAIL = 32
"""More ids than this without a clean boundary are no text: all but the last marks are final."""


class Decoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, U+FFFD standing for bytes that are no character (yet)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Text that became final.

    `kept` of the tokens pushed are part of the output: all of them, or, where `stop` names the
    stop string that was hit, those up to and including the token that completed it. The text is
    cut before the stop string, so it may end earlier than the kept tokens do.
    """

    text: str
    kept: int
    stop: str | None = None


class Detokenizer:
    """Turns ids into text as soon as their characters are complete."""

    def __init__(self, tokenizer: Decoder, context: Sequence[int] = ()) -> None:
        """Start behind `context`: some 5 ids before the output, not part of it.

        They matter to tokenizers that decode an id by the ones before (a leading space, say).
        """
        self._tokenizer = tokenizer
        self._tail = list(context)
        text = self._decode(self._tail)
        self._sent = text.rstrip(_UNFINISHED)
        self._boundary = len(self._tail) if self._sent == text else 0

    def push(self, ids: Sequence[int]) -> str:
        """Return the text that `ids` complete."""
        text = self._decode([*self._tail, *ids])
        if text.endswith(_UNFINISHED) and len(ids) > 1:  # A clean boundary may lie inside.
            return "".join([self.push((token,)) for token in ids])
        self._tail += ids
        patient = len(self._tail) <= _MAX_TAIL
        finished = text.rstrip(_UNFINISHED) if patient else _but_one_character(text)
        piece = self._unsent(finished, clean=finished == text)
        if piece:
            self._sent = finished
        if piece and finished == text:
            self._forget()
        elif not patient:
            self._let_go()
        return piece

    def flush(self) -> str:
        """Return what was held back: the output has ended, unfinished characters stay so."""
        text = self._decode(self._tail)
        piece = self._unsent(text, clean=True)
        self._sent = text
        return piece

    def copy(self) -> "Detokenizer":
        """Return an independent one in the same state."""
        twin = Detokenizer(self._tokenizer)
        twin._tail, twin._sent, twin._boundary = list(self._tail), self._sent, self._boundary
        return twin

    def _unsent(self, text: str, *, clean: bool) -> str:
        """Return the end of `text` that was not sent.

        A tokenizer with byte fallback shows a whole run of byte tokens as U+FFFD while the run's
        last character is incomplete, text already sent included: then nothing, until it is clean.
        """
        agrees = clean or text.startswith(self._sent)
        return text[len(self._sent) :] if agrees else ""

    def _forget(self) -> None:
        """At a clean boundary, keep the ids since the one before: the next decoding's start."""
        if len(self._tail) > _SHORT_TAIL:
            self._tail = self._tail[self._boundary :]
            self._sent = self._decode(self._tail)
        self._boundary = len(self._tail)

    def _let_go(self) -> None:
        self._tail = self._tail[-_MAX_TAIL // 2 :]
        self._boundary = 0
        self._sent = _but_one_character(self._decode(self._tail))

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids) if ids else ""


class TextStream:
    """The text of one output, cut at the first stop string."""

    def __init__(
        self, tokenizer: Decoder, stops: Sequence[str] = (), context: Sequence[int] = ()
    ) -> None:
        """Cut at any of `stops`; `context` as for `Detokenizer`.

        Raises RequestError for an empty stop string, which every text would begin with.
        """
        if "" in stops:
            raise RequestError(
                "stop = '' would end every output at once; leave it out or give a text."
            )
        self._detokenizer = Detokenizer(tokenizer, context)
        self._stops = tuple(stops)
        self._held = ""

    def push(self, ids: Sequence[int]) -> Piece:
        """Return the text that `ids` complete; after a piece with a stop, push no more."""
        before, held = (self._detokenizer.copy(), self._held) if self._stops else (None, "")
        piece = self._release(self._detokenizer.push(ids), len(ids))
        if piece.stop is None or before is None or len(ids) == 1:
            return piece
        self._detokenizer, self._held = before, held
        return self._push_singly(ids)

    def flush(self) -> Piece:
        """Return the text held back; the output has ended. A stop string is still cut."""
        piece = self._release(self._detokenizer.flush(), 0)
        if piece.stop is not None:
            return piece
        held, self._held = self._held, ""
        return Piece(text=piece.text + held, kept=0)

    def _push_singly(self, ids: Sequence[int]) -> Piece:
        """Push a batch known to hold a stop, so that the same token ends it as without batches."""
        text = ""
        for count, token in enumerate(ids, start=1):
            piece = self._release(self._detokenizer.push((token,)), count)
            text += piece.text
            if piece.stop is not None:
                return Piece(text=text, kept=count, stop=piece.stop)
        return Piece(text=text, kept=len(ids))

    def _release(self, new: str, kept: int) -> Piece:
        """Add `new` to the text held back and return what can go."""
        if not new:
            return Piece(text="", kept=kept)
        text = self._held + new
        hit = _first_stop(text, self._stops)
        if hit is not None:
            self._held = ""
            return Piece(text=text[: hit[0]], kept=kept, stop=hit[1])
        free = len(text) - _begun_stop(text, self._stops)
        self._held = text[free:]
        return Piece(text=text[:free], kept=kept)


def _but_one_character(text: str) -> str:
    """Return `text` without the marks at its end that may be one character's bytes."""
    for _ in range(_MAX_UNFINISHED):
        text = text.removesuffix(_UNFINISHED)
    return text


def _first_stop(text: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """Return (start, stop string) of the hit that starts first; the longest of several there."""
    hits = [(text.find(stop), stop) for stop in stops]
    found = [hit for hit in hits if hit[0] >= 0]
    return min(found, key=lambda hit: (hit[0], -len(hit[1])), default=None)


def _begun_stop(text: str, stops: tuple[str, ...]) -> int:
    """Return the length of the longest end of `text` that a stop string begins with."""
    lengths = [
        length
        for stop in stops
        for length in range(1, min(len(stop) - 1, len(text)) + 1)
        if text.endswith(stop[:length])
    ]
    return max(lengths, default=0)
