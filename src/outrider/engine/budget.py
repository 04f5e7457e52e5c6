"""How many tokens to ask a drafter for."""

from typing import Protocol


class Budget(Protocol):
    """Chooses the number of drafts round by round; 0 is plain decoding."""

    def choose(self) -> int:
        """Drafts to ask for in the next window at most."""

    def learn(self, source: str | None, verified: int, accepted: int) -> None:
        """A window was judged: `verified` drafts of `source`, the first `accepted` kept."""

    def timed(self, rows: int, verify_ms: float, drafted: int, draft_ms: float) -> None:
        """A pass of `rows` rows took `verify_ms`, drafting `drafted` tokens for it `draft_ms`."""


class FixedBudget:
    """The same number every round."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def choose(self) -> int:
        return self._tokens

    def learn(self, source: str | None, verified: int, accepted: int) -> None:
        del source, verified, accepted

    def timed(self, rows: int, verify_ms: float, drafted: int, draft_ms: float) -> None:
        del rows, verify_ms, drafted, draft_ms
