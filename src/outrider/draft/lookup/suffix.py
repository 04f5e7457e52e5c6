"""The suffix drafter: repeat what followed the longest match of the newest tokens.

After prompt lookup decoding (Saxena 2023; Hugging Face's `prompt_lookup_num_tokens`) and
SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975), over one session's prompt and output.
It knows tokens only, no model.

* The match is the longest suffix of the context that occurred before, found by a suffix automaton.
* Of several occurrences the most recent one is continued: in edited text the newest version is
  the one that goes on. (The automaton may name an older one for a suffix that was never among the
  16 longest ones; the draft is still a true continuation.)
* A copy that differs from its source in places goes on after them and repeats its edits, until a
  longer match turns up: see `copying`.
* The longer the match, the longer the draft: one token at `min_match`, `growth` more for each
  token matched beyond it.
* A continuation that reaches the newest token goes on with itself, so loops are drafted whole.
* The optimistic suffix is matched, never indexed.
* Memory is bounded: see `Generations`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.draft.lookup.automaton import SuffixAutomaton
from outrider.draft.lookup.copying import Copyist
from outrider.draft.lookup.generations import LookupDrafter
from outrider.errors import ConfigError
from outrider.records import Context, Draft


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixSettings:
    """`min_match` tokens must match; `capacity` tokens are indexed at most.

    The defaults were the best or close to it when code, prose and edited code in the demo's tokens
    were replayed as `benchmarks/lookup.py` does, at 0.05 to 0.1 of a plain step a row verified.
    """

    min_match: int = 1
    growth: int = 2
    capacity: int = 65_536

    def __post_init__(self) -> None:
        for key, least in (("min_match", 1), ("growth", 0), ("capacity", 2)):
            value = getattr(self, key)
            if value < least:
                raise ConfigError(f"suffix drafter: {key} = {value} must be {least} or more.")


class SuffixDrafter(LookupDrafter[SuffixAutomaton]):
    """Continues the longest repeated suffix of one session, or a copy with edits."""

    name = "suffix"

    def __init__(self, settings: SuffixSettings | None = None) -> None:
        self._settings = settings or SuffixSettings()
        super().__init__(SuffixAutomaton, self._settings.capacity)

    def close(self) -> None:
        """Drop the index and the copy."""
        super().close()
        self._copyist = Copyist()

    def propose(self, context: Context, budget: int) -> Draft | None:
        """Return what follows in the copy, else what followed the longest match of `context`."""
        self._check(context)
        index = self._index.current
        self._copyist.advance(context.committed, index.length[index.match], index.match_end + 1)
        copy = self._copyist.ahead(context.suffix, *self._match(context.suffix))
        if copy.run < self._settings.min_match:
            return None
        longest = 1 + self._settings.growth * (copy.run - self._settings.min_match)
        tokens = self._copyist.copied(copy, min(budget, longest))
        return Draft(tokens=tokens, source=self.name)

    def _match(self, suffix: Sequence[int]) -> tuple[int, int]:
        """Return the length of the longest match and the place after its earlier occurrence."""
        index = self._index.current
        state, matched, end = index.match, index.length[index.match], index.match_end
        for token in suffix:
            state, matched = index.follow(state, matched, token)
            end = index.end[state]
        return matched, end + 1
