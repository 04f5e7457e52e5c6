"""Bounded memory for an index that can only grow."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from outrider.errors import StateError
from outrider.records import Commit, Context, Needs


class Index(Protocol):
    """Something that tokens are appended to."""

    def append(self, token: int) -> None:
        """Add the next token."""


IndexT = TypeVar("IndexT", bound=Index)


class Generations(Generic[IndexT]):
    """Keeps an index over the newest tokens: at least `capacity / 2`, at most `capacity` of them.

    Once the current index holds half of the capacity, a young one is fed beside it; when the
    current one is full, the young one takes its place, and the oldest half is forgotten. So the
    cost per token stays constant and never comes in one lump.
    """

    def __init__(self, make: Callable[[int], IndexT], capacity: int) -> None:
        """`make(base)` returns an empty index whose first token will stand at position `base`."""
        self._make = make
        self._half = max(1, capacity // 2)
        self._base = 0
        self._young: IndexT | None = None
        self.length = 0
        self.current = make(0)

    def extend(self, name: str, commit: Commit) -> None:
        """Append the committed tokens; raise StateError, naming `name`, if some are missing."""
        if commit.position != self.length:
            raise StateError(
                f"the {name} drafter has seen {self.length} tokens and was told of tokens at "
                f"position {commit.position}; commits must come in order, each once."
            )
        for token in commit.tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        held = self.length - self._base
        if held == 2 * self._half and self._young is not None:
            self.current, self._young = self._young, None
            self._base += self._half
            held = self._half
        if held == self._half:
            self._young = self._make(self.length)
        self.current.append(token)
        if self._young is not None:
            self._young.append(token)
        self.length += 1


class LookupDrafter(Generic[IndexT]):
    """Common part of drafters over an index of committed tokens."""

    name = ""
    needs = Needs()

    def __init__(self, make: Callable[[int], IndexT], capacity: int) -> None:
        """`make` and `capacity` as for `Generations`."""
        self._make, self._capacity = make, capacity
        self.close()

    def observe(self, commit: Commit) -> None:
        """Index the committed tokens, in order."""
        self._index.extend(self.name, commit)

    def close(self) -> None:
        """Drop the index."""
        self._index = Generations(self._make, self._capacity)

    def _check(self, context: Context) -> None:
        """Raise StateError unless the drafter was told of exactly the committed tokens."""
        if self._index.length != len(context.committed):
            raise StateError(
                f"the {self.name} drafter has seen {self._index.length} tokens of "
                f"{len(context.committed)} committed ones; observe every commit before the next "
                "proposal."
            )
