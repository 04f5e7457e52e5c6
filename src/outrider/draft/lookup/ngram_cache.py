"""The n-gram cache drafter: say what usually follows the last few tokens.

After the n-gram caches of prompt lookup decoding (Saxena 2023) and llama.cpp, and the frequency
counts of SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975), over one session's prompt and
output. For each context of 1 to 4 tokens it counts what came next, and drafts token by token: the
longest context whose favourite is trusted decides; where none is, the draft ends. So a draft goes
on as long as the text is predictable, however short the repeated passages are.

A favourite is trusted if it was seen often enough and took a large enough share of the context's
continuations; short contexts are held to more. Of equally frequent tokens, the one that reached
the count first stays. The optimistic suffix is read as context, never counted. Memory is bounded:
see `Generations`.
"""

from dataclasses import dataclass

from outrider.draft.lookup.generations import LookupDrafter
from outrider.errors import ConfigError
from outrider.records import Context, Draft

_TOKEN_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramSettings:
    """Trust per context length, shortest first: how often, and in which share of cases."""

    min_count: tuple[int, ...] = (3, 2, 1, 1)
    min_share: tuple[float, ...] = (0.6, 0.6, 0.6, 0.6)
    capacity: int = 65_536

    def __post_init__(self) -> None:
        orders = len(self.min_count)
        if not 1 <= orders <= 4 or orders != len(self.min_share):
            raise ConfigError(
                f"ngram-cache drafter: min_count has {orders} and min_share {len(self.min_share)} "
                f"entries; give both the same number, 1 to 4."
            )
        if min(self.min_count) < 1 or not all(0 < share <= 1 for share in self.min_share):
            raise ConfigError(
                f"ngram-cache drafter: min_count = {self.min_count} must be 1 or more and "
                f"min_share = {self.min_share} above 0 and at most 1."
            )
        if self.capacity < 2:
            raise ConfigError(f"ngram-cache drafter: capacity = {self.capacity} must be 2 or more.")


@dataclass(slots=True)
class Followers:
    """Tokens that followed one context: counts per token, their sum and the most frequent token."""

    counts: dict[int, int]
    total: int
    best: int

    def add(self, token: int) -> None:
        """Count `token` once more."""
        count = self.counts.get(token, 0) + 1
        self.counts[token] = count
        self.total += 1
        if count > self.counts[self.best]:
            self.best = token


class NgramCounts:
    """Followers of every context of up to `orders` tokens.

    A context seen once holds its follower as a plain int, which most contexts never outgrow.
    """

    def __init__(self, orders: int) -> None:
        self._tables: list[dict[int, int | Followers]] = [{} for _ in range(orders)]
        self._recent: list[int] = []

    def append(self, token: int) -> None:
        """Count `token` as the follower of each context that ends before it."""
        key = 0
        for order, table in enumerate(self._tables[: len(self._recent)]):
            key |= self._recent[-1 - order] << (_TOKEN_BITS * order)
            _count(table, key, token)
        self._recent.append(token)
        del self._recent[: -len(self._tables)]

    def favourites(self, context: list[int]) -> list[tuple[int, int, int, int]]:
        """Return (order, token, count, total) for each known context ending `context`.

        Longest first; order 0 is the context of one token.
        """
        found = []
        key = 0
        for order, table in enumerate(self._tables[: len(context)]):
            key |= context[-1 - order] << (_TOKEN_BITS * order)
            entry = table.get(key)
            if entry is None:
                break
            if isinstance(entry, int):
                found.append((order, entry, 1, 1))
            else:
                found.append((order, entry.best, entry.counts[entry.best], entry.total))
        found.reverse()
        return found


class NgramCacheDrafter(LookupDrafter[NgramCounts]):
    """Drafts the most frequent follower of the last tokens while it is trusted."""

    name = "ngram-cache"

    def __init__(self, settings: NgramSettings | None = None) -> None:
        self._settings = settings or NgramSettings()
        orders = len(self._settings.min_count)
        super().__init__(lambda base: NgramCounts(orders), self._settings.capacity)

    def propose(self, context: Context, budget: int) -> Draft | None:
        """Return up to `budget` tokens, each a trusted follower of what stands before it."""
        self._check(context)
        recent = _last(context, len(self._settings.min_count))
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
        for order, token, count, total in self._index.current.favourites(recent):
            often = count >= self._settings.min_count[order]
            if often and count >= self._settings.min_share[order] * total:
                return token, count / (total + 1)
        return None


def _count(table: dict[int, int | Followers], key: int, token: int) -> None:
    entry = table.setdefault(key, -1)
    if entry == -1:
        table[key] = token
    elif isinstance(entry, int):
        table[key] = Followers(counts={entry: 1}, total=1, best=entry)
        _count(table, key, token)
    else:
        entry.add(token)


def _last(context: Context, count: int) -> list[int]:
    """Return the last `count` tokens of the context, fewer if it is shorter."""
    suffix = list(context.suffix[-count:])
    missing = count - len(suffix)
    return [*context.committed[-missing:], *suffix] if missing else suffix
