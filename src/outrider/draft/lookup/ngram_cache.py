"""The n-gram cache drafter: say what usually follows the last few tokens.

After the n-gram caches of prompt lookup decoding (Saxena 2023) and llama.cpp, and the frequency
counts of SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975), over one session's prompt and
output. For each context of 1 to 4 tokens it counts what came next, and drafts token by token: the
longest context whose favourite is trusted decides; where none is, the draft ends. So a draft goes
on as long as the text is predictable, however short the repeated passages are.

A favourite is trusted if it was seen often enough and took a large enough share of the context's
continuations; short contexts are held to more. Of equally frequent tokens, the one that reached
the count first stays. The optimistic suffix is read as context, never counted. Memory is bounded:
see `LookupDrafter`.
"""

from outrider.draft.lookup.index import LookupDrafter, NgramCounts
from outrider.errors import ConfigError
from outrider.records import Context, Draft


class NgramCacheDrafter(LookupDrafter[NgramCounts]):
    """Drafts the most frequent follower of the last tokens while it is trusted."""

    name = "ngram-cache"

    def __init__(
        self,
        *,
        min_count: tuple[int, ...] = (3, 2, 1, 1),
        min_share: tuple[float, ...] = (0.6, 0.6, 0.6, 0.6),
        capacity: int = 65_536,
    ) -> None:
        """Trust per context length, shortest first: how often, and in which share of cases."""
        orders = len(min_count)
        if not 1 <= orders <= 4 or orders != len(min_share):
            raise ConfigError(
                f"ngram-cache drafter: min_count has {orders} and min_share {len(min_share)} "
                f"entries; give both the same number, 1 to 4."
            )
        if min(min_count) < 1 or not all(0 < share <= 1 for share in min_share):
            raise ConfigError(
                f"ngram-cache drafter: min_count = {min_count} must be 1 or more and "
                f"min_share = {min_share} above 0 and at most 1."
            )
        if capacity < 2:
            raise ConfigError(f"ngram-cache drafter: capacity = {capacity} must be 2 or more.")
        self._min_count, self._min_share = min_count, min_share
        super().__init__(lambda base: NgramCounts(orders), capacity)

    def propose(self, context: Context, budget: int) -> Draft | None:
        """Return up to `budget` tokens, each a trusted follower of those before it."""
        self._check(context)
        recent = _last(context, len(self._min_count))
        found: list[tuple[int, float]] = []
        while len(found) < budget and (trusted := self._trusted(recent)) is not None:
            found.append(trusted)
            recent = [*recent[-3:], trusted[0]]
        if not found:
            return None
        tokens, confidence = zip(*found, strict=True)
        return Draft(tokens=tokens, source=self.name, confidence=confidence)

    def _trusted(self, recent: list[int]) -> tuple[int, float] | None:
        """Return the follower of the longest context that can be trusted, and its share.

        The share counts one unseen case, so that a single sighting is not certainty.
        """
        for order, token, count, total in self._index.favourites(recent):
            if count >= self._min_count[order] and count >= self._min_share[order] * total:
                return token, count / (total + 1)
        return None


def _last(context: Context, count: int) -> list[int]:
    """Return the last `count` tokens of the context, fewer if it is shorter."""
    suffix = list(context.suffix[-count:])
    missing = count - len(suffix)
    return [*context.committed[-missing:], *suffix] if missing else suffix
