"""Where tokens begin in the text that they make, as it grows, and how they are told in
log-probabilities: their names and bytes.
"""

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from outrider.engine.scheduler import Scheduler, TokenLogprob
from outrider.formats.tokenizer import Tokenizer


@dataclass(slots=True)
class Names:
    """Names and bytes of tokens, each worked out once: as many entries as the vocabulary at most.

    May be used by several threads, which at worst work out the same.
    """

    tokenizer: Tokenizer
    _names: dict[int, str] = field(default_factory=dict)
    _bytes: dict[int, list[int]] = field(default_factory=dict)

    def name(self, token: int) -> str:
        """The token's text, or what stands for it where that is no text."""
        found = self._names.get(token)
        if found is None:
            found = self._names[token] = self.tokenizer.token_name(token)
        return found

    def bytes(self, token: int) -> list[int]:
        """The text that the token adds; nothing where the text leaves it out."""
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = list(self.tokenizer.token_bytes(token))
        return found

    def alternatives(self, entry: TokenLogprob) -> list[tuple[str, int, float]]:
        """(name, id, log-probability) of each alternative, no name twice: the chosen token keeps
        its own, and a second one of that name is told by its id."""
        used, found = {self.name(entry.token)}, []
        for token, logprob in entry.top:
            name = self.name(token)
            if token != entry.token and name in used:
                name = f"token_id:{token}"
            used.add(name)
            found.append((name, token, logprob))
        return found


MARK = "\N{REPLACEMENT CHARACTER}"


@dataclass(slots=True)
class Places:
    """Gives each token the place of its first character in a text of which `length` is known.

    A token in the midst of a character has the place of that character. While a character is
    incomplete, its tokens wait: what follows decides whether they become one.
    """

    length: int = 0
    _waiting: list[bytes] = field(default_factory=list)

    def add(self, raw: bytes, text: str) -> list[int]:
        """Take the bytes of the next token and the text that it completed; returns the places of
        those tokens that wait no more, in their order."""
        if not self._waiting and raw == text.encode():  # As nearly all tokens are.
            self.length += len(text)
            return [self.length - len(text)]
        self._waiting.append(raw)
        joined = b"".join(self._waiting).decode(errors="replace")
        if not text and joined:
            return []
        return self._settle(joined, text)

    def finish(self, text: str) -> list[int]:
        """Take what else the text ends with; returns the places of all tokens that wait."""
        joined = b"".join(self._waiting).decode(errors="replace")
        found = self._settle(joined, text)
        left = [self.length] * len(self._waiting)
        self._waiting = []
        return found + left

    def _settle(self, joined: str, text: str) -> list[int]:
        """Places of waiting tokens, of which `text` is what they make and `joined` their bytes'."""
        start = self.length
        self.length += len(text)
        if text != joined and joined.endswith(text) and not text.strip(MARK):
            # Of bytes that make no text for long, the last ones stay in doubt.
            within = [at for at in _characters(self._waiting) if at < len(text)]
        else:
            within = self._within(joined, text)
        del self._waiting[: len(within)]
        return [start + at for at in within]

    def _within(self, joined: str, text: str) -> list[int]:
        """The place of every waiting token in `text`.

        Some decoders leave a space at the text's beginning out, or show a mark for every byte.
        """
        if joined.endswith(text):
            more = len(joined) - len(text)
            return [max(at - more, 0) for at in _characters(self._waiting)]
        lengths = [len(raw.decode(errors="replace")) for raw in self._waiting]
        ends = accumulate(reversed(lengths))
        return [max(len(text) - behind, 0) for behind in ends][::-1]


def _characters(tokens: Sequence[bytes]) -> list[int]:
    """For each token, how many characters of all their bytes end before its own first one."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    found, count = [], 0
    for raw in tokens:
        first = decoder.decode(raw[:1])
        count += len(first)
        # The first byte is part of the character that it completed, if it completed one.
        found.append(count - (bool(raw) and not decoder.getstate()[0]))
        count += len(decoder.decode(raw[1:]))
    return found


def prompt_places(scheduler: Scheduler, tokens: Sequence[int], text: str) -> list[int]:
    """Where each token of a prompt begins in its `text`, as it is given back.

    Special tokens have the width that they have in a prompt given as text, and none otherwise.
    Where a tokenizer changed the text before it cut it (normal forms), places are right before the
    first change and after the last.
    """
    tokenizer, spell = scheduler.tokenizer, scheduler.speller(())
    as_decoded = tokenizer.decode(tokens) == text
    written = _nothing if as_decoded else _special(scheduler, text)
    places, found, parts = Places(), list[int](), list[str]()
    for token in tokens:
        part, raw = spell(token), tokenizer.token_bytes(token)
        if not raw and (content := written(token, places.length)):
            part, raw = content, content.encode()
        parts.append(part)
        found += places.add(raw, part)
    built = "".join(parts)
    found += places.finish(text[len(built) :] if text.startswith(built) else "")
    return found if text.startswith(built) else _shifted(found, built, text)


def _shifted(places: Sequence[int], built: str, text: str) -> list[int]:
    """Places in `built` as places in `text`, which differs somewhere."""
    pairs = enumerate(zip(built, text, strict=False))
    same = next((at for at, (one, other) in pairs if one != other), len(text))
    more = len(text) - len(built)
    return [at if at <= same else max(same, at + more) for at in places]


def _nothing(token: int, place: int) -> str:
    del token, place
    return ""


def _special(scheduler: Scheduler, text: str) -> Callable[[int, int], str]:
    """A function that gives the text of a special token that was written at a place in `text`."""
    tokenizer = scheduler.tokenizer

    def written(token: int, place: int) -> str:
        content = tokenizer.token_bytes(token, skip_special=False).decode(errors="replace")
        return content if content and text.startswith(content, place) else ""

    return written
