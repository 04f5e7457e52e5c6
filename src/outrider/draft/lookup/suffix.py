"""The suffix drafter: repeat what followed the longest match of the newest tokens.

After prompt lookup decoding (Saxena 2023; Hugging Face's `prompt_lookup_num_tokens`) and
SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975), over one session's prompt and output.
It knows tokens only, no model.

* The match is the longest suffix of the context that occurred before, found by a suffix automaton.
* Of several occurrences the most recent one is continued: in edited text the newest version is
  the one that goes on. (The automaton may name an older one for a suffix that was never among the
  16 longest ones; the draft is still a true continuation.)
* A copy that differs from its source in places goes on after them and repeats its edits, until a
  longer match turns up: see `EditCopier`.
* The longer the match, the longer the draft: one token at `min_match`, `growth` more for each
  token matched beyond it.
* A continuation that reaches the newest token goes on with itself, so loops are drafted whole.
* The optimistic suffix is matched, never indexed.
* Memory is bounded: see `LookupDrafter`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from outrider.draft.lookup.index import LookupDrafter, SuffixAutomaton
from outrider.errors import ConfigError
from outrider.records import Context, Draft

RESUME_WITHIN = 6
"""Tokens after its place at which a copy that differs may go on."""
MIN_RUN = 8
"""A copy of fewer tokens ends at the first that differs."""
FADE, FADED_RUN = 4, 8
"""Of a longer copy that differs, the run counts one part in FADE from then on, and FADED_RUN at
most, so that a longer match elsewhere takes over."""


class SuffixDrafter(LookupDrafter[SuffixAutomaton]):
    """Continues the longest repeated suffix of one session, or a copy with edits."""

    name = "suffix"

    def __init__(self, *, min_match: int = 1, growth: int = 2, capacity: int = 65_536) -> None:
        """`min_match` tokens must match; `capacity` tokens are indexed at most.

        The defaults were the best or close to it when code, prose and edited code in the demo's
        tokens were replayed as `benchmarks/lookup.py` does, at 0.05 to 0.1 of a plain step a row
        verified.
        """
        checks = ("min_match", min_match, 1), ("growth", growth, 0), ("capacity", capacity, 2)
        for key, value, least in checks:
            if value < least:
                raise ConfigError(f"suffix drafter: {key} = {value} must be {least} or more.")
        self._min_match, self._growth = min_match, growth
        super().__init__(SuffixAutomaton, capacity)

    def close(self) -> None:
        """Drop the index and the copy."""
        super().close()
        self._copier = EditCopier()

    def propose(self, context: Context, budget: int) -> Draft | None:
        """Return what follows in the copy, else what followed the longest match of `context`."""
        self._check(context)
        index = self._index
        self._copier.advance(context.committed, index.length[index.match], index.match_end + 1)
        copy = self._copier.ahead(context.suffix, *self._match(context.suffix))
        if copy.run < self._min_match:
            return None
        longest = 1 + self._growth * (copy.run - self._min_match)
        tokens = self._copier.copied(copy, min(budget, longest))
        return Draft(tokens=tokens, source=self.name)

    def _match(self, suffix: Sequence[int]) -> tuple[int, int]:
        """Return the length of the longest match and the place after its earlier occurrence."""
        index = self._index
        state, matched, end = index.match, index.length[index.match], index.match_end
        for token in suffix:
            state, matched = index.follow(state, matched, token)
            end = index.end[state]
        return matched, end + 1


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


class EditCopier:
    """The copy that a session is making of its own tokens, with the edits that it makes.

    In a text that is repeated with changes, the match that a suffix drafter reads from ends at each
    change, and what follows matches almost nothing at first. So the place that the copy is read
    from is kept: tokens that differ replace some of those at that place, and where a token there
    comes up again, the copy goes on after it. The edit is remembered and expected the next time, so
    a name that was replaced once is replaced from then on.

    All of it is guessing in favour of short edits. Where such guesses fail more often than they
    hold in a session, they are no longer made: text that merely resembles itself is better left to
    matches.
    """

    def __init__(self) -> None:
        self._text: list[int] = []
        """The committed tokens and what was drafted after them."""
        self._committed = 0
        self._copy = Copy(0, 0)
        self._edits: dict[int, Edit] = {}
        """By the first old token. Where there is none, by the complement of the token before; by
        the token after if the same stood before it twice."""
        self._before: dict[int, tuple[int, ...]] = {}
        self._swaps = False
        """True if the newest edit put as many tokens in the place of others."""
        self._resumed = self._edited = 0
        """How often copies went on at once, and edits were made again, less how often not."""

    def advance(self, committed: Sequence[int], matched: int, end: int) -> None:
        """Follow the tokens committed since; the last `matched` of them also occur before `end`."""
        seen, self._committed = self._committed, len(committed)
        self._text[seen:] = committed[seen:]
        self._copy = _better(self._follow(self._copy, seen, learn=True), matched, end)

    def ahead(self, suffix: Sequence[int], matched: int, end: int) -> Copy:
        """The copy after `suffix`, whose last `matched` tokens also occur before `end`."""
        self._text += suffix
        copy = _better(self._follow(self._copy, self._committed), matched, end)
        if copy.instead and matched and self._resumed < 0 and not self._edit(copy, len(self._text)):
            return Copy(end, matched)
        return copy

    def copied(self, copy: Copy, count: int) -> tuple[int, ...]:
        """The next `count` tokens; the copy may come to read what it copied."""
        text = self._text
        end = len(text) + count
        while len(text) < end:
            place, run, instead = copy
            plain = 0 if instead else self._plain(place, end - len(text))
            if plain:
                text += text[place : place + plain]
                copy = Copy(place + plain, run)
            else:
                token, copy = self._expect(copy, len(text))
                text.append(token)
        return tuple(text[-count:])

    def _follow(self, copy: Copy, start: int, *, learn: bool = False) -> Copy:
        """The copy after the text's tokens from `start` on."""
        text = self._text
        while copy.run and start < len(text):
            place, run, instead = copy
            plain = 0 if instead else self._plain(place, len(text) - start)
            same = _same(text[start : start + plain], text[place : place + plain])
            if same:
                copy = Copy(place + same, run + same)
            else:
                then = self._step(copy, start)
                if learn:
                    self._learn(copy, then, start)
                copy = then
            start += same or 1
        return copy

    def _plain(self, place: int, most: int) -> int:
        """Number of tokens from `place` on, `most` at most, that no edit concerns."""
        text, edits = self._text, self._edits
        most = min(most, len(text) - place)
        if edits and self._edited >= 0:
            for at in range(place, place + most):
                if text[at] in edits or ~text[at - 1] in edits:
                    return at - place
        return most

    def _expect(self, copy: Copy, end: int) -> tuple[int, Copy]:
        """The token at `end`, which follows what `copy` has seen, and the copy after it."""
        place, run, instead = copy
        edit = self._edit(copy, end)
        if edit is not None:
            if len(instead) < len(edit.new):
                token = edit.new[len(instead)]
                return token, Copy(place, run + 1, (*instead, token))
            place += len(edit.old)
        elif self._swaps:
            place = min(place + len(instead), end - 1)
        return self._text[place], Copy(place + 1, run + 1)

    def _edit(self, copy: Copy, end: int) -> Edit | None:
        """The edit that is being made at the place, or begins there."""
        if self._edited < 0 or not self._edits:
            return None
        text, (place, _, instead) = self._text, copy
        for key in (text[place], ~text[place - 1]):
            edit = self._edits.get(key)
            if edit is not None and edit.new[: len(instead)] == instead:
                after = place + len(edit.old)
                if after < end and tuple(text[place:after]) == edit.old:
                    return edit
        return None

    def _step(self, copy: Copy, position: int) -> Copy:
        """The copy after the token at `position`."""
        place, run, instead = copy
        text = self._text
        token = text[position]
        expected, then = self._expect(copy, position)
        if token == expected:
            return then
        if not instead:
            if token == text[place]:
                return Copy(place + 1, run + 1)
            if run < MIN_RUN:
                return Copy(place, 0)
            run = min(run // FADE, FADED_RUN)
        for after in range(place, min(place + RESUME_WITHIN, position)):
            if token == text[after]:
                return Copy(after + 1, run)
        return Copy(place, run // 2 if instead else run, (*instead, token))

    def _learn(self, copy: Copy, then: Copy, position: int) -> None:
        """Learn from the token at `position`, which led from `copy` to `then`."""
        text, (place, _, instead) = self._text, copy
        right = text[position] == self._expect(copy, position)[0]
        if len(instead) == 1:
            self._resumed += 1 if right else -1
        edit = self._edit(copy, position)
        if edit and not instead:
            self._edited += 1 if right else -1
        if edit and not right:
            self._edits = {key: known for key, known in self._edits.items() if known is not edit}
        elif not edit and (then.place > place + 1 or (instead and then.place > place)):
            edit = Edit(tuple(text[place : then.place - 1]), instead)
            key = edit.old[0] if edit.old else ~text[place - 1]
            if not edit.old and self._before.get(text[place]) == instead:
                key = text[place]
            self._before[text[place]] = instead
            self._edits[key] = edit
            self._swaps = len(edit.old) == len(edit.new)


def _same(one: list[int], other: list[int]) -> int:
    """Length of the common beginning."""
    if one == other:
        return len(one)
    return next(
        at for at, (left, right) in enumerate(zip(one, other, strict=True)) if left != right
    )


def _better(copy: Copy, matched: int, end: int) -> Copy:
    """A longer match, or one as long that is more recent, is a better place to read from."""
    if matched > copy.run or (matched == copy.run and not copy.instead):
        return Copy(end, matched)
    return copy
