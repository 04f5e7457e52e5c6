"""From token ids to text, piece by piece, with stop strings.

Tokens go one after the other through one machine, so text is a function of the tokens alone:
batches, streams and stops change nothing. Text that was sent stays. Half a character is held back,
and so is text that may begin a stop string.

Invariants, without a stop: all pieces and the flush joined are `decode` of all ids, where these are
valid UTF-8. Each run of bytes that begins no character, or ends before its character does, is one
U+FFFD (Unicode's "maximal subpart"), and what surrounds it is as if it were not there.
"""

from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.errors import RequestError
from outrider.formats.spelling import TokenBytes
from outrider.formats.tokenizer import Tokenizer

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_MAX_UNFINISHED = 3
"""A character has at most 4 bytes, so 3 of them at most can still become one."""
_SHORT_TAIL = 12
"""No more ids than this are decoded again and again rather than cut: that takes a decoding too."""
_MAX_PENDING = 24
"""More ids than this without a whole character are no text: all but the last marks are final."""
_UTF8 = getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalText:
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

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int] = ()) -> None:
        """Start after `context`: some 5 ids before the output, not part of it.

        They matter to tokenizers that decode an id by the ones before (a leading space, say), and
        where they end inside a character, which is text of the output then.
        """
        known = tokenizer.spelling
        self._machine = _Redecoded(tokenizer) if known is None else _Spelled(known)
        self.texts(context)

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text that each of `ids` completes, empty where it completes none."""
        return [self._machine.push(token) for token in ids]

    def push(self, ids: Sequence[int]) -> str:
        """Return the text that `ids` complete."""
        return "".join(self.texts(ids))

    def flush(self) -> str:
        """Return what was held back: the output has ended, unfinished characters stay so."""
        return self._machine.flush()


class _Spelled:
    """Text of tokens whose bytes are known: an incremental UTF-8 decoder."""

    def __init__(self, spelling: TokenBytes) -> None:
        self._spelling = spelling
        self._strip = spelling.strip
        self._utf8 = _UTF8("replace")

    def push(self, token: int) -> str:
        text = self._utf8.decode(self._spelling[token])
        return self._stripped(text) if self._strip and text else text

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)

    def _stripped(self, text: str) -> str:
        """Return `text` without the spaces that the start of the whole text loses."""
        rest = text.lstrip(" ")
        lost = min(len(text) - len(rest), self._strip)
        self._strip = 0 if rest else self._strip - lost
        return text[lost:]


class _Redecoded:
    """Text of tokens that only `decode` makes: a short tail is decoded again with each of them.

    `_behind` is where decoding starts: two or more clean pieces, `_known` their text. `_pending`
    are the ids after them, of whose text `_given` characters were returned.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._behind: list[int] = []
        self._last: list[int] = []
        self._known = ""
        self._pending: list[int] = []
        self._given = 0

    def push(self, token: int) -> str:
        self._pending.append(token)
        text = self._text()
        if text and not text.endswith(_UNFINISHED):
            return self._settle(text)
        patient = len(self._pending) <= _MAX_PENDING
        finished = text.rstrip(_UNFINISHED) if patient else _but_one_character(text)
        new, self._given = finished[self._given :], max(self._given, len(finished))
        if not patient:
            self._let_go()
        return new

    def flush(self) -> str:
        text = self._text()
        new, self._given = text[self._given :], len(text)
        return new

    def _text(self) -> str:
        """Return the text of the pending ids.

        Some decoders show a whole run of byte tokens as U+FFFD while any of it is no character,
        text already sent included; then the pending ids, which begin with such a byte, stand alone.
        """
        if not self._pending:
            return ""
        text = self._tokenizer.decode([*self._behind, *self._pending])
        if text.startswith(self._known):
            return text[len(self._known) :]
        return self._tokenizer.decode(self._pending)

    def _settle(self, text: str) -> str:
        """Return what `text`, whole characters now, has that is new."""
        new, self._given = text[self._given :], 0
        self._behind += self._pending
        if len(self._behind) > _SHORT_TAIL:
            self._behind = [*self._last, *self._pending]
        self._last, self._pending = self._pending, []
        self._known = self._tokenizer.decode(self._behind)
        return new

    def _let_go(self) -> None:
        """Forget most of the pending ids, whose marks are final but for the last ones."""
        self._pending = self._pending[-_MAX_PENDING // 2 :]
        self._given = len(_but_one_character(self._text()))


class TextStream:
    """The text of one output, cut at the first stop string."""

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str] = (), context: Sequence[int] = ()
    ) -> None:
        """Cut at any of `stops`, as `stop_strings` gives them; `context` as for `Detokenizer`."""
        self._detokenizer = Detokenizer(tokenizer, context)
        self._stops = stop_strings(stops)
        self._held = ""

    def push(self, ids: Sequence[int]) -> FinalText:
        """Return the text that `ids` complete; after a piece with a stop, push no more."""
        texts = self._detokenizer.texts(ids)
        whole = self._held + "".join(texts)
        if any(stop in whole for stop in self._stops):
            return self._cut(texts)
        free = len(whole) - _begun_stop(whole, self._stops)
        self._held = whole[free:]
        return FinalText(text=whole[:free], kept=len(ids))

    def flush(self) -> FinalText:
        """Return the text held back; the output has ended. A stop string is still cut."""
        text, self._held = self._held + self._detokenizer.flush(), ""
        start, stop = _first_stop(text, self._stops) or (len(text), None)
        return FinalText(text=text[:start], kept=0, stop=stop)

    def _cut(self, texts: Sequence[str]) -> FinalText:
        """Return the text up to the stop string that one of `texts`, a token's each, completes."""
        text, hit, kept = self._held, None, 0
        while hit is None:
            text += texts[kept]
            hit, kept = _first_stop(text, self._stops), kept + 1
        self._held = ""
        return FinalText(text=text[: hit[0]], kept=kept, stop=hit[1])


def stop_strings(stop: object) -> tuple[str, ...]:
    """Return `stop`, one string, several or None, as a tuple.

    Raises RequestError for what is no string, and for an empty one, which every text begins with.
    """
    given = () if stop is None else (stop,) if isinstance(stop, str) else stop
    if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
        raise RequestError(
            f"stop = {stop!r} is neither a text nor a list of texts: give those that end the "
            "output, or leave it out."
        )
    if "" in given:
        raise RequestError("stop = '' would end every output at once; leave it out or give a text.")
    return tuple(given)


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
