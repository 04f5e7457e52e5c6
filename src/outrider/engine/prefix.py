"""Copies of states at the last grid point of prompts, for a chat's next turn to go on from.

Held in bytes, least recently used first to go. An owner (an API key) sees only its own: whether a
prompt was seen before can be told by the time that it takes.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from outrider.draft.base import DrafterSnapshot
from outrider.engine.session import GRID, Session
from outrider.stage.base import Stage

T = TypeVar("T")
LOG = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Prefix:
    """`tokens` consumed by the state that the stage keeps under `key`, and what the drafter knew.

    `size` is in bytes, for all of it; `follows` is the token after, which a drafter that reads
    hidden states has already seen beside the last of them.
    """

    key: int
    owner: str
    tokens: tuple[int, ...]
    follows: int
    size: int
    drafter: DrafterSnapshot | None = None


class PrefixCache:
    """Prompts whose states a stage keeps, `max_bytes` at most."""

    def __init__(self, stage: Stage, max_bytes: int) -> None:
        self.stage = stage
        self.bytes = 0
        self.max_bytes = max_bytes
        self._keys = count()
        self._prefixes: dict[int, Prefix] = {}
        self.faults = 0

    def attempt(self, what: Callable[[], T]) -> T | None:
        """Do something with the cache; None where it fails. That is no request's failure: the
        request goes on without the cache, which is said the first time."""
        try:
            return what()
        except Exception as error:
            self.faults += 1
            level = logging.WARNING if self.faults == 1 else logging.DEBUG
            LOG.log(
                level,
                "the cache of prompts failed (%s: %s): requests go on without it, and further "
                "failures are counted only",
                type(error).__name__,
                error,
                exc_info=error,
            )
            return None

    @property
    def held(self) -> int:
        """Number of prefixes that are kept."""
        return len(self._prefixes)

    def find(self, owner: str, prompt: Sequence[int], taps: Sequence[int]) -> Prefix | None:
        """The longest prefix of `prompt`, shorter than it, that `owner` left here.

        A drafter with `taps` cannot do without what one of its kind kept: the hidden states of the
        prefix will not come again.
        """
        best: Prefix | None = None
        for prefix in self._prefixes.values():
            size = len(prefix.tokens)
            longer = size < len(prompt) and (best is None or size > len(best.tokens))
            if longer and taps and (prefix.drafter is None or prompt[size] != prefix.follows):
                continue
            if longer and prefix.owner == owner and prefix.tokens == tuple(prompt[:size]):
                best = prefix
        if best is not None:
            self._prefixes[best.key] = self._prefixes.pop(best.key)
        return best

    def snapshot(self, session: Session) -> None:
        """Copy the state of a session that has just consumed `keep_at` tokens of its prompt.

        One that is larger than the whole cache is not copied: nothing else would be left.
        """
        if self.stage.snapshot_nbytes(session.id) > self.max_bytes:
            return
        *tokens, follows = session.tokens[: session.keep_at + 1]
        for old in list(self._prefixes.values()):
            if old.owner == session.owner and old.tokens == tuple(tokens):
                self._forget(old)
        key = next(self._keys)
        size = self.stage.snapshot(session.id, key)
        session.prefix = key
        self._prefixes[key] = Prefix(
            key=key, owner=session.owner, tokens=tuple(tokens), follows=follows, size=size
        )
        self.bytes += size
        self.snapshot_drafter(session, bool(session.taps))
        self._shrink()

    def snapshot_drafter(self, session: Session, now: bool = True) -> None:
        """Copy what a session's drafter knows beside the prefix that it left or began from."""
        prefix, drafter = self._prefixes.get(session.prefix), session.drafter
        if not now or prefix is None or drafter is None:
            return
        kept = drafter.snapshot()
        if kept is None:
            return
        more = kept.nbytes - (prefix.drafter.nbytes if prefix.drafter else 0)
        if prefix.size + more > self.max_bytes:
            return
        prefix.drafter, prefix.size = kept, prefix.size + more
        self.bytes += more
        self._shrink()

    def clear(self) -> None:
        """Free everything."""
        for prefix in list(self._prefixes.values()):
            self._forget(prefix)

    def _shrink(self) -> None:
        while self.bytes > self.max_bytes and self._prefixes:
            self._forget(next(iter(self._prefixes.values())))

    def _forget(self, prefix: Prefix) -> None:
        del self._prefixes[prefix.key]
        self.bytes -= prefix.size
        self.stage.drop_snapshot(prefix.key)


def place_to_keep(prompt_len: int, reused: int) -> int:
    """The last grid point inside a prompt; 0 where nothing is won beyond the `reused` tokens."""
    place = (prompt_len - 1) // GRID * GRID
    return place if place > reused else 0
