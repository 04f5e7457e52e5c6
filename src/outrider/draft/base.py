"""A drafter as the loop sees it.

A drafter declares what it needs of the target and answers two calls. It never sees the target's
logits, the verifier or the clock. One drafter object serves one session.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from outrider.records import Commit, Context, Draft, Needs


class Drafter(Protocol):
    """Proposes the tokens that follow a context."""

    @property
    def name(self) -> str:
        """The method's name, as counted in statistics (`suffix`, `draft`, ...)."""

    @property
    def needs(self) -> Needs:
        """Hidden states that the target must hand over; constant for the drafter's life."""

    def propose(self, context: Context, budget: int) -> Draft | None:
        """Return at most `budget` tokens (budget >= 1) that may follow `context`, or None."""

    def observe(self, commit: Commit) -> None:
        """Learn what became final. Called after every commit, whoever drafted, in order."""

    def close(self) -> None:
        """Free what the drafter holds; it is not used afterwards."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A copy of what a drafter knew of some tokens; only its own kind can read it."""

    value: object
    nbytes: int


@runtime_checkable
class KeepingDrafter(Drafter, Protocol):
    """A drafter that can begin a session where another one stood.

    One that asks for taps is asked to keep when a part of the prompt was observed, and resumes
    exactly there. Others are asked at the end of a session, and find out for themselves how much of
    it the next one shares.
    """

    def keep(self) -> Kept | None:
        """A copy of what is known, None if there is nothing worth it."""

    def resume(self, kept: Kept) -> None:
        """Begin from what a drafter of the same kind kept; called before anything else."""
