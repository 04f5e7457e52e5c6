"""Number of tokens to ask a drafter for, and number of these to verify."""

from collections.abc import Sequence
from typing import Protocol

from outrider.records import Draft


class Budget(Protocol):
    """Decides round by round; nothing drafted is plain decoding.

    A round is `choose`, then `limit` and `keep` from within the drafter, `share`, `timed` and
    `learn`; an epoch of windows in flight begins with `shape`.
    """

    def shape(self) -> tuple[int, int] | None:
        """Rows of a window and windows in flight for the epoch that begins; None: as before."""

    def choose(self) -> int:
        """Drafts to ask for in the next window at most."""

    def limit(self, source: str, budget: int) -> int:
        """Number of drafts, up to `budget`, to ask one drafter of a chain for."""

    def keep(self, draft: Draft) -> Draft | None:
        """The part of a draft that is worth verifying, None for nothing of it."""

    def share(self, rows: int, sessions: int, prompts: int) -> None:
        """The pass decoded `sessions` in `rows` rows, beside `prompts` rows of prompts."""

    def timed(self, rows: int, verify_ms: float, drafted: int, draft_ms: float) -> None:
        """The whole pass had `rows` rows and took `verify_ms`; drafting `drafted` tokens for it
        took `draft_ms`."""

    def answered(self, waited_ms: float, verify_ms: float) -> None:
        """The first window of an epoch was answered `waited_ms` after it was issued."""

    def learn(self, source: str | None, verified: int, accepted: int) -> None:
        """A window was judged: `verified` drafts of `source`, the first `accepted` kept."""

    def explain(self) -> Sequence[str]:
        """The current choice and its reason, in sentences."""

    def close(self) -> None:
        """The session has ended."""


class FixedBudget:
    """The same number every round, all of it verified."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def shape(self) -> tuple[int, int] | None:
        return None

    def choose(self) -> int:
        return self._tokens

    def limit(self, source: str, budget: int) -> int:
        del source
        return budget

    def keep(self, draft: Draft) -> Draft | None:
        return draft

    def share(self, rows: int, sessions: int, prompts: int) -> None:
        del rows, sessions, prompts

    def timed(self, rows: int, verify_ms: float, drafted: int, draft_ms: float) -> None:
        del rows, verify_ms, drafted, draft_ms

    def answered(self, waited_ms: float, verify_ms: float) -> None:
        del waited_ms, verify_ms

    def learn(self, source: str | None, verified: int, accepted: int) -> None:
        del source, verified, accepted

    def explain(self) -> Sequence[str]:
        return (f"fixed: {self._tokens} drafts a round at most",)

    def close(self) -> None:
        pass
