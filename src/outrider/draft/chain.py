"""Two drafters in a row: the second is asked only where the first has nothing."""

from collections.abc import Callable

from outrider.core_types import Commit, Context, Draft, Needs
from outrider.draft.base import Drafter
from outrider.errors import ConfigError

Limit = Callable[[str, int], int]
"""From a drafter's name and the round's budget to what that drafter may propose, 0 for nothing."""


def whole_budget(name: str, budget: int) -> int:
    """Let every drafter use the whole budget."""
    del name
    return budget


class ChainDrafter:
    """`first`, and `second` behind it; each draft keeps the source that it came from.

    The second one's rounds of rest cost it nothing now and one longer pass later. Neither may need
    taps, since their features would have to be kept for the one that is not asked.
    """

    def __init__(self, first: Drafter, second: Drafter, *, limit: Limit = whole_budget) -> None:
        for drafter in (first, second):
            if drafter.needs.taps:
                raise ConfigError(
                    f"method {first.name}+{second.name}: {drafter.name} needs hidden states of "
                    f"the target and cannot be chained; use it alone."
                )
        self._drafters = (first, second)
        self._limit = limit

    @property
    def name(self) -> str:
        """Both names, such as `suffix+draft`."""
        return "+".join(drafter.name for drafter in self._drafters)

    @property
    def needs(self) -> Needs:
        """Nothing."""
        return Needs()

    def propose(self, context: Context, budget: int) -> Draft | None:
        """Return the first draft that is found."""
        for drafter in self._drafters:
            allowed = min(self._limit(drafter.name, budget), budget)
            draft = drafter.propose(context, allowed) if allowed > 0 else None
            if draft is not None:
                return draft
        return None

    def observe(self, commit: Commit) -> None:
        """Tell both."""
        for drafter in self._drafters:
            drafter.observe(commit)

    def close(self) -> None:
        """Close both."""
        for drafter in self._drafters:
            drafter.close()
