"""A drafter as the loop sees it, and several drafters in a row.

A drafter declares what it needs of the target and answers two calls. It never sees the target's
logits, the verifier or the clock. One drafter object serves one session.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from outrider.errors import ConfigError
from outrider.records import Commit, Context, Draft, Needs

LOG = logging.getLogger(__name__)

Limit = Callable[[str, int], int]
"""From a drafter's name and the round's budget to what that drafter may propose, 0 for nothing."""

Keep = Callable[[Draft], Draft | None]
"""From a draft to the part of it that is worth verifying, None for nothing of it."""


@dataclass(frozen=True, slots=True)
class DrafterSnapshot:
    """A copy of what a drafter knew of some tokens; only its own kind can read it."""

    value: object
    nbytes: int


class Drafter(ABC):
    """Proposes the tokens that follow a context.

    name: the method's, as counted in statistics (`suffix`, `draft`, ...). needs: hidden states that
    the target must hand over; constant for the drafter's life.
    """

    name: str
    needs = Needs()

    @abstractmethod
    def propose(self, context: Context, budget: int) -> Draft | None:
        """Return at most `budget` tokens (budget >= 1) that may follow `context`, or None."""

    def observe(self, commit: Commit) -> None:
        """Learn what became final; called after every commit, in order, whoever drafted."""
        del commit

    def snapshot(self) -> DrafterSnapshot | None:
        """A copy of what is known, for a session that begins with the same tokens; None if there
        is nothing worth it.

        A drafter that asks for taps is asked when a part of the prompt was observed, and continues
        exactly there. Others are asked at the end of a session, and find out for themselves how
        much of it the next one shares.
        """
        return None

    def restore(self, snapshot: DrafterSnapshot) -> None:
        """Begin from a snapshot of a drafter of the same kind; called before anything else."""
        del snapshot

    def close(self) -> None:
        """Free what the drafter holds; it is not used afterwards."""
        return


class ChainDrafter(Drafter):
    """Asks drafters in order: one only where those before it have nothing worth verifying.

    Each draft keeps the source that it came from. A drafter that is not asked pays nothing now and
    one longer pass later. In a chain of several none may need taps: their features would have to
    be kept for those not asked. A chain of one applies `limit` and `keep` to a single drafter.
    """

    def __init__(
        self,
        *drafters: Drafter,
        limit: Limit = lambda name, budget: budget,
        keep: Keep = lambda draft: draft,
    ) -> None:
        self._drafters, self._limit, self._keep = drafters, limit, keep
        self.name = "+".join(drafter.name for drafter in drafters)
        self.needs = drafters[0].needs
        for drafter in drafters:
            if drafter.needs.taps and len(drafters) > 1:
                raise ConfigError(
                    f"method {self.name}: {drafter.name} needs hidden states of the target and "
                    f"cannot be chained; use it alone."
                )

    def propose(self, context: Context, budget: int) -> Draft | None:
        """Return the first draft of which something is kept."""
        for drafter in self._drafters:
            allowed = min(self._limit(drafter.name, budget), budget)
            draft = drafter.propose(context, allowed) if allowed > 0 else None
            kept = None if draft is None else self._keep(draft)
            if kept is not None:
                return kept
        return None

    def observe(self, commit: Commit) -> None:
        """Pass the commit to all."""
        for drafter in self._drafters:
            drafter.observe(commit)

    def snapshot(self) -> DrafterSnapshot | None:
        """The snapshots of all, None if there is none."""
        parts = [drafter.snapshot() for drafter in self._drafters]
        size = sum(part.nbytes for part in parts if part)
        return DrafterSnapshot(parts, size) if any(parts) else None

    def restore(self, snapshot: DrafterSnapshot) -> None:
        """Hand each its own part."""
        assert isinstance(snapshot.value, list)
        for drafter, part in zip(self._drafters, snapshot.value, strict=True):
            if part is not None:
                drafter.restore(part)

    def close(self) -> None:
        """Close all."""
        for drafter in self._drafters:
            drafter.close()


class LengthWarning:
    """Warns once that a text has outgrown the context of a drafter's own model.

    Only a text that long shows it, so there is no warning at the start. Belongs to the loaded model
    and is shared by all sessions: a server warns once, not once a request.
    """

    def __init__(self, name: str) -> None:
        """`name` is that of the model, for the message."""
        self._name, self._warned = name, False

    def warn(self, length: int) -> None:
        """A text has outgrown the model's context of `length` tokens."""
        if self._warned:
            return
        self._warned = True
        LOG.warning(
            "%s has a context of %d tokens, and a text has outgrown it: from there on it drafts "
            "nothing, in this request and in every other. Use one with a longer context, or set "
            "target.max_length = %d.",
            *(self._name, length, length),
        )
