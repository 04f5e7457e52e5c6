"""Several drafters in a row: one is asked only where those before it have nothing worth having."""

from collections.abc import Callable

from outrider.draft.base import Drafter, KeepingDrafter, Kept
from outrider.errors import ConfigError
from outrider.records import Commit, Context, Draft, Needs

Limit = Callable[[str, int], int]
"""From a drafter's name and the round's budget to what that drafter may propose, 0 for nothing."""

Keep = Callable[[Draft], Draft | None]
"""From a draft to the part of it that is worth verifying, None for nothing of it."""


class ChainDrafter:
    """Asks drafters in order; each draft keeps the source that it came from.

    The rounds of rest of a drafter cost it nothing now and one longer pass later. In a chain of
    several nobody may need taps: their features would have to be kept for those not asked. A chain
    of one lets `limit` and `keep` apply to a single drafter.
    """

    def __init__(
        self,
        *drafters: Drafter,
        limit: Limit = lambda name, budget: budget,
        keep: Keep = lambda draft: draft,
    ) -> None:
        self._drafters, self._limit, self._keep = drafters, limit, keep
        for drafter in drafters:
            if drafter.needs.taps and len(drafters) > 1:
                raise ConfigError(
                    f"method {self.name}: {drafter.name} needs hidden states of the target and "
                    f"cannot be chained; use it alone."
                )

    @property
    def name(self) -> str:
        """All names, such as `suffix+draft`."""
        return "+".join(drafter.name for drafter in self._drafters)

    @property
    def needs(self) -> Needs:
        """Needs of a single drafter; none for several."""
        return self._drafters[0].needs

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
        """Tell all."""
        for drafter in self._drafters:
            drafter.observe(commit)

    def keep(self) -> Kept | None:
        """State that each of them keeps, None if none does."""
        parts = [one.keep() if isinstance(one, KeepingDrafter) else None for one in self._drafters]
        size = sum(part.nbytes for part in parts if part)
        return Kept(parts, size) if any(parts) else None

    def resume(self, kept: Kept) -> None:
        """Hand each its own part."""
        assert isinstance(kept.value, list)
        for drafter, part in zip(self._drafters, kept.value, strict=True):
            if part is not None and isinstance(drafter, KeepingDrafter):
                drafter.resume(part)

    def close(self) -> None:
        """Close all."""
        for drafter in self._drafters:
            drafter.close()
