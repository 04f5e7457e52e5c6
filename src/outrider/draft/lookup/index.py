"""Indexes of the tokens of one session, and the common part of drafters that look them up.

`SuffixAutomaton` knows every substring of the tokens (Blumer et al. 1985): `follow` finds the
longest suffix of anything that occurs in them in amortised constant time per token, and appending
is amortised constant too. States and transitions lie in flat arrays, and only states with several
transitions own a dict, so a token costs about 150 bytes. `NgramCounts` counts what followed each
context of a few tokens. Both only grow; `LookupDrafter` bounds their memory.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from outrider.draft.base import Drafter
from outrider.errors import StateError
from outrider.records import Commit, Context

ROOT = 0
_NONE = -1
_TOKEN_BITS = 32


class SuffixAutomaton:
    """Substrings of the tokens from absolute position `base` on, each with a recent occurrence.

    `end[state]` is the position of the last token of an occurrence of the state's substrings.
    Appending refreshes it for the `refreshed` longest suffixes that occurred before, so it is the
    most recent occurrence unless a suffix was never among the longest ones when it occurred.
    """

    def __init__(self, base: int, *, refreshed: int = 16) -> None:
        self.base = base
        self.size = 0
        self.length = array("q", [0])
        self.end = array("q", [base - 1])
        self.match = ROOT
        """State of the longest suffix of the tokens that occurred before; its `length` counts."""
        self.match_end = base - 1
        """Where that earlier occurrence ends."""
        self._refreshed = refreshed
        self._link = array("q", [_NONE])
        self._token = array("q", [_NONE])
        self._target = array("q", [_NONE])
        self._more: dict[int, dict[int, int]] = {}
        self._last = ROOT

    def append(self, token: int) -> None:
        """Add the token at position `base + size`."""
        position = self.base + self.size
        self.size += 1
        state = self._add_state(self.length[self._last] + 1, position)
        self._link[state] = self._link_for(state, token)
        self._last = state
        self.match = self._link[state]
        self.match_end = self.end[self.match]
        self._refresh(self.match, position)

    def step(self, state: int, token: int) -> int:
        """Return the state after `token`, or -1 if no occurrence of `state` goes on with it."""
        if self._token[state] == token:
            return self._target[state]
        more = self._more.get(state)
        return _NONE if more is None else more.get(token, _NONE)

    def follow(self, state: int, matched: int, token: int) -> tuple[int, int]:
        """Return (state, length) of the longest suffix of (`matched` tokens + `token`) known.

        The first `matched` tokens are the suffix of that length that `state` represents.
        """
        target = self.step(state, token)
        while target == _NONE and state != ROOT:
            state = self._link[state]
            matched = self.length[state]
            target = self.step(state, token)
        return (ROOT, 0) if target == _NONE else (target, matched + 1)

    def _add_state(self, length: int, end: int) -> int:
        self.length.append(length)
        self.end.append(end)
        self._link.append(ROOT)
        self._token.append(_NONE)
        self._target.append(_NONE)
        return len(self.length) - 1

    def _link_for(self, state: int, token: int) -> int:
        """Lead all suffixes that never went on with `token` to `state`; return its suffix link."""
        at = self._last
        while at != _NONE and self.step(at, token) == _NONE:
            self._set(at, token, state)
            at = self._link[at]
        if at == _NONE:
            return ROOT
        target = self.step(at, token)
        if self.length[target] == self.length[at] + 1:
            return target
        return self._split(at, token, target)

    def _split(self, at: int, token: int, target: int) -> int:
        """Cut the substrings of at most `length[at] + 1` tokens out of `target`; return them."""
        clone = self._add_state(self.length[at] + 1, self.end[target])
        self._link[clone] = self._link[target]
        self._token[clone], self._target[clone] = self._token[target], self._target[target]
        if target in self._more:
            self._more[clone] = self._more[target].copy()
        self._link[target] = clone
        while at != _NONE and self.step(at, token) == target:
            self._set(at, token, clone)
            at = self._link[at]
        return clone

    def _set(self, state: int, token: int, target: int) -> None:
        if self._token[state] in (_NONE, token):
            self._token[state], self._target[state] = token, target
        else:
            self._more.setdefault(state, {})[token] = target

    def _refresh(self, state: int, position: int) -> None:
        for _ in range(self._refreshed):
            if state == ROOT:
                return
            self.end[state] = position
            state = self._link[state]


@dataclass(slots=True)
class Followers:
    """Tokens that followed one context: counts per token, their sum and the most frequent token."""

    counts: dict[int, int]
    total: int
    best: int

    def add(self, token: int) -> None:
        """Count `token` once more."""
        count = self.counts.get(token, 0) + 1
        self.counts[token] = count
        self.total += 1
        if count > self.counts[self.best]:
            self.best = token


class NgramCounts:
    """Followers of every context of up to `orders` tokens.

    A context seen once holds its follower as a plain int, which most contexts never outgrow.
    """

    def __init__(self, orders: int) -> None:
        self._tables: list[dict[int, int | Followers]] = [{} for _ in range(orders)]
        self._recent: list[int] = []

    def append(self, token: int) -> None:
        """Count `token` as the follower of each context that ends before it."""
        key = 0
        for order, table in enumerate(self._tables[: len(self._recent)]):
            key |= self._recent[-1 - order] << (_TOKEN_BITS * order)
            _count(table, key, token)
        self._recent.append(token)
        del self._recent[: -len(self._tables)]

    def favourites(self, context: list[int]) -> list[tuple[int, int, int, int]]:
        """Return (order, token, count, total) for each known context ending `context`.

        Longest first; order 0 is the context of one token.
        """
        found = []
        key = 0
        for order, table in enumerate(self._tables[: len(context)]):
            key |= context[-1 - order] << (_TOKEN_BITS * order)
            entry = table.get(key)
            if entry is None:
                break
            if isinstance(entry, int):
                found.append((order, entry, 1, 1))
            else:
                found.append((order, entry.best, entry.counts[entry.best], entry.total))
        found.reverse()
        return found


def _count(table: dict[int, int | Followers], key: int, token: int) -> None:
    entry = table.setdefault(key, -1)
    if entry == -1:
        table[key] = token
    elif isinstance(entry, int):
        table[key] = Followers(counts={entry: 1}, total=1, best=entry)
        _count(table, key, token)
    else:
        entry.add(token)


IndexT = TypeVar("IndexT", bound=SuffixAutomaton | NgramCounts)


class LookupDrafter(Drafter, Generic[IndexT]):
    """Keeps an index over the newest tokens: at least `capacity / 2`, at most `capacity` of them.

    Once the current index holds half of the capacity, a young one is fed as well; when the current
    one is full, the young one takes its place, and the oldest half is forgotten. So the cost per
    token stays constant and never comes in one lump.
    """

    def __init__(self, make: Callable[[int], IndexT], capacity: int) -> None:
        """`make(base)` returns an empty index whose first token will be at position `base`."""
        self._make, self._half = make, max(1, capacity // 2)
        self.close()

    def observe(self, commit: Commit) -> None:
        """Index the committed tokens; StateError if some are missing."""
        if commit.position != self._length:
            raise StateError(
                f"the {self.name} drafter has seen {self._length} tokens and was told of tokens at "
                f"position {commit.position}; commits must come in order, each once."
            )
        for token in commit.tokens:
            self._append(token)

    def close(self) -> None:
        """Drop the index."""
        self._base = self._length = 0
        self._young: IndexT | None = None
        self._index = self._make(0)

    def _append(self, token: int) -> None:
        held = self._length - self._base
        if held == 2 * self._half and self._young is not None:
            self._index, self._young = self._young, None
            self._base += self._half
            held = self._half
        if held == self._half:
            self._young = self._make(self._length)
        self._index.append(token)
        if self._young is not None:
            self._young.append(token)
        self._length += 1

    def _check(self, context: Context) -> None:
        """Raise StateError unless the drafter has observed exactly the committed tokens."""
        if self._length != len(context.committed):
            raise StateError(
                f"the {self.name} drafter has seen {self._length} tokens of "
                f"{len(context.committed)} committed ones; observe every commit before the next "
                "proposal."
            )
