"""How often drafts are accepted, learned class by class with forgetting."""

from collections.abc import Hashable


class Acceptance:
    """Decayed counts per class of (accepted, judged), and the rate with a prior mixed in.

    Time is the number of `tick`s; evidence loses 1 - `decay` of its count with each.
    """

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._counts: dict[Hashable, tuple[float, float, int]] = {}
        self._clock = 0

    def tick(self) -> None:
        """A round has passed."""
        self._clock += 1

    def add(self, key: Hashable, accepted: bool) -> None:
        """One draft token of class `key`, all before it accepted, was judged."""
        kept, judged = self._faded(key, 0.0)
        self._counts[key] = kept + accepted, judged + 1.0, self._clock

    def rate(self, key: Hashable, prior: float, weight: float, least: float = 0.0) -> float:
        """Chance that a token of this class is accepted if all before it were.

        The prior counts as `weight` cases. Evidence does not fade below `least` cases: these still
        say which way it went, and new evidence soon outweighs them.
        """
        kept, judged = self._faded(key, least)
        return (kept + weight * prior) / (judged + weight)

    def _faded(self, key: Hashable, least: float) -> tuple[float, float]:
        entry = self._counts.get(key)
        if entry is None:
            return 0.0, 0.0
        kept, judged, stamp = entry
        factor = self._decay ** (self._clock - stamp)
        if judged * factor < least:
            factor = min(1.0, least / judged)
        return kept * factor, judged * factor
