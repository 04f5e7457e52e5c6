"""Goes on with a copy behind an edit, and makes the same edit again.

Whoever repeats a text with changes leaves the match that a suffix drafter reads from at each of
them, and what follows a change matches next to nothing at first. So the place that the copy was
read from is kept: tokens that differ stand instead of some of those at that place, and where a
token there comes up again, the copy goes on behind it. What stood instead of what is remembered and
expected the next time, so a name that was replaced once is replaced from then on.

All of it is guessing in favour of short edits. Where such guesses fail more often than they hold in
a session, they are no longer made: text that merely resembles itself is better left to matches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

REACH = 4
"""Tokens behind the place at which a copy may go on."""
LASTING, FADED, SHARE = 8, 8, 4
"""A copy of fewer tokens ends where it differs. Of others a share counts from then on, at most so
many, and a longer match elsewhere takes over."""


@dataclass(frozen=True, slots=True)
class Text:
    """Committed tokens and more behind them."""

    committed: Sequence[int]
    more: list[int]

    def __len__(self) -> int:
        return len(self.committed) + len(self.more)

    def __getitem__(self, position: int) -> int:
        behind = position - len(self.committed)
        return self.committed[position] if behind < 0 else self.more[behind]

    def part(self, start: int, end: int) -> tuple[int, ...]:
        return tuple(self[position] for position in range(start, end))


class Copy(NamedTuple):
    """`place` holds the next token to copy, `run` tokens agreed (0: nothing is copied), `instead`
    came since the copy differed."""

    place: int
    run: int
    instead: tuple[int, ...] = ()


class Edit(NamedTuple):
    """Tokens of the place and what stood instead; either may be empty."""

    old: tuple[int, ...]
    new: tuple[int, ...]


class Copyist:
    """The copy that a session is making of its own tokens."""

    def __init__(self) -> None:
        self._copy = Copy(0, 0)
        self._seen = 0
        self._edits: dict[int, Edit] = {}
        """By the first old token; by the complement of the token before, where there is none."""
        self._resumed = self._edited = 0
        """How often copies went on at once, and edits were made again, less how often not."""

    def advance(self, committed: Sequence[int], matched: int, end: int) -> None:
        """Follow the tokens committed since; `matched` of the last ones stand before `end`, too."""
        text = Text(committed, [])
        if self._copy.run:
            for position in range(self._seen, len(committed)):
                self._judge(text, position)
                self._copy = self._follow(text, self._copy, position)
        self._seen = len(committed)
        self._copy = _better(self._copy, matched, end)

    def ahead(self, text: Text, matched: int, end: int) -> Copy:
        """The copy behind all of `text`, whose last `matched` tokens stand before `end`, too."""
        copy = self._copy
        for position in range(len(text.committed), len(text)):
            copy = self._follow(text, copy, position)
        copy = _better(copy, matched, end)
        if copy.instead and matched and self._resumed < 0 and not self._edit(text, copy, len(text)):
            return Copy(end, matched)
        return copy

    def copied(self, text: Text, copy: Copy, count: int) -> tuple[int, ...]:
        """The `count` tokens that follow `text`, to which they are added: a copy of itself goes on."""
        for _ in range(count):
            token, copy = self._expect(text, copy, len(text))
            text.more.append(token)
        return tuple(text.more[-count:])

    def _expect(self, text: Text, copy: Copy, end: int) -> tuple[int, Copy]:
        """The token at `end`, which follows what `copy` has seen, and the copy behind it."""
        place, run, instead = copy
        edit = self._edit(text, copy, end)
        if edit is not None:
            if len(instead) < len(edit.new):
                token = edit.new[len(instead)]
                return token, Copy(place, run + 1, (*instead, token))
            place += len(edit.old)
        return text[place], Copy(place + 1, run + 1)

    def _edit(self, text: Text, copy: Copy, end: int) -> Edit | None:
        """The edit that is being made at the place, or begins there."""
        if self._edited < 0:
            return None
        place, _, instead = copy
        for key in (text[place], ~text[place - 1]):
            edit = self._edits.get(key)
            if edit is not None and edit.new[: len(instead)] == instead:
                behind = place + len(edit.old)
                if behind < end and text.part(place, behind) == edit.old:
                    return edit
        return None

    def _follow(self, text: Text, copy: Copy, position: int) -> Copy:
        """The copy behind the token at `position`."""
        place, run, instead = copy
        if not run:
            return copy
        token = text[position]
        expected, then = self._expect(text, copy, position)
        if token == expected:
            return then
        if not instead:
            if token == text[place]:
                return Copy(place + 1, run + 1)
            run = min(run // SHARE, FADED) if run >= LASTING else 0
        for behind in range(place, min(place + REACH, position)):
            if token == text[behind]:
                return Copy(behind + 1, run)
        return Copy(place, run // 2 if instead else run, (*instead, token))

    def _judge(self, text: Text, position: int) -> None:
        """Learn from the token at `position`, before it is followed."""
        copy = self._copy
        if not copy.run:
            return
        expected, _ = self._expect(text, copy, position)
        right = 1 if text[position] == expected else -1
        if len(copy.instead) == 1:
            self._resumed += right
        if not copy.instead and self._edit(text, copy, position):
            self._edited += right
        then = self._follow(text, copy, position)
        if then.place > copy.place and (copy.instead or then.place > copy.place + 1):
            old = text.part(copy.place, then.place - 1)
            key = old[0] if old else ~text[copy.place - 1]
            self._edits[key] = Edit(old, copy.instead)


def _better(copy: Copy, matched: int, end: int) -> Copy:
    """A longer match, or one as long that is more recent, is a better place to read from."""
    if matched > copy.run or (matched == copy.run and not copy.instead):
        return Copy(end, matched)
    return copy
