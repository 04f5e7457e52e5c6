"""Copies of states at the last grid point of prompts, for a chat's next turn to go on from.

Held in bytes, least recently used first to go. An owner (an API key) sees only its own: whether a
prompt was seen before can be told by the time that it takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from outrider.engine.session import GRID, Session
from outrider.stage.base import KeepingStage


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """`tokens` consumed by the state that the stage keeps under `key`, `size` bytes."""

    key: int
    owner: str
    tokens: tuple[int, ...]
    size: int


class PrefixCache:
    """What a stage keeps of prompts, `max_bytes` at most."""

    def __init__(self, stage: KeepingStage, max_bytes: int) -> None:
        self.stage = stage
        self.bytes = 0
        self._max_bytes = max_bytes
        self._keys = count()
        self._kept: dict[int, Prefix] = {}

    @property
    def held(self) -> int:
        """How many prefixes are kept."""
        return len(self._kept)

    def find(self, owner: str, prompt: Sequence[int]) -> Prefix | None:
        """The longest prefix of `prompt`, shorter than it, that `owner` left here."""
        best: Prefix | None = None
        for prefix in self._kept.values():
            size = len(prefix.tokens)
            longer = size < len(prompt) and (best is None or size > len(best.tokens))
            if longer and prefix.owner == owner and prefix.tokens == tuple(prompt[:size]):
                best = prefix
        if best is not None:
            self._kept[best.key] = self._kept.pop(best.key)
        return best

    def keep(self, session: Session) -> None:
        """Copy the state of a session that has just consumed `keep_at` tokens of its prompt."""
        tokens = tuple(session.tokens[: session.keep_at])
        session.keep_at = 0
        known = [p for p in self._kept.values() if p.owner == session.owner and p.tokens == tokens]
        if known:
            return
        key = next(self._keys)
        size = self.stage.keep(session.id, key)
        self._kept[key] = Prefix(key=key, owner=session.owner, tokens=tokens, size=size)
        self.bytes += size
        while self.bytes > self._max_bytes:
            self._forget(next(iter(self._kept.values())))

    def clear(self) -> None:
        """Free everything."""
        for prefix in list(self._kept.values()):
            self._forget(prefix)

    def _forget(self, prefix: Prefix) -> None:
        del self._kept[prefix.key]
        self.bytes -= prefix.size
        self.stage.forget(prefix.key)


def place_to_keep(prompt_len: int, reused: int) -> int:
    """The last grid point inside a prompt; 0 where nothing is won beyond the `reused` tokens."""
    place = (prompt_len - 1) // GRID * GRID
    return place if place > reused else 0
