"""How far ahead of what is certain a draft model is worth its time."""

import math

from outrider.core_types import Commit, Context

LEAST = 0.001
"""Chance that a draft is reached, all before it being right, from which on it is made."""
HITS, MISSES = 4, 1
"""What is believed of a model before anything was seen."""


class Ahead:
    """Counts how often the model was right, and its own drafts that are in flight."""

    def __init__(self) -> None:
        self._hits, self._misses = HITS, MISSES
        self._flying: dict[int, int] = {}

    def room(self, context: Context) -> int:
        """Drafts worth making behind the optimistic suffix; those that it holds of the model's own
        must all be right first. Others are taken for certain."""
        start, suffix = len(context.committed), context.suffix
        self._flying = {
            position: token
            for position, token in self._flying.items()
            if start <= position < len(context) and suffix[position - start] == token
        }
        rate = self._hits / (self._hits + self._misses)
        return max(int(math.log(LEAST) / math.log(rate)) - len(self._flying), 0)

    def propose(self, position: int, tokens: tuple[int, ...]) -> None:
        """The model drafts `tokens` from `position` on."""
        self._flying.update(enumerate(tokens, position))

    def observe(self, commit: Commit) -> None:
        """Judge drafts of committed places; a token of the target's own ends all others."""
        for position, token in enumerate(commit.tokens, commit.position):
            draft = self._flying.pop(position, None)
            self._hits += draft == token
            self._misses += draft not in (None, token)
        if commit.accepted < len(commit.tokens):
            self._flying.clear()
