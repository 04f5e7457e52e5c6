"""What the loop knows of a drafter.

A drafter declares what it needs of the target and answers two calls. It never sees the target's
logits, the verifier or the clock. One drafter object serves one session.
"""

from typing import Protocol

from outrider.core_types import Commit, Context, Draft, Needs


class Drafter(Protocol):
    """Proposes the tokens that follow a context."""

    @property
    def name(self) -> str:
        """The method's name, as counted in statistics (`suffix`, `draft`, ...)."""

    @property
    def needs(self) -> Needs:
        """What the target must hand over; constant for the drafter's life."""

    def propose(self, context: Context, budget: int) -> Draft | None:
        """Return at most `budget` tokens (budget >= 1) that may follow `context`, or None."""

    def observe(self, commit: Commit) -> None:
        """Learn what became final. Called after every commit, whoever drafted, in order."""

    def close(self) -> None:
        """Free what the drafter holds; it is not used afterwards."""
