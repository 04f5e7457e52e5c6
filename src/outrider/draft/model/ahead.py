"""How far a draft model goes where several windows are in flight.

It stops where its drafts will hardly be reached. After each step it lets those before it in a
chain look again: what it drafted may begin something that they know.
"""

import math

from outrider.records import Commit, Context

LEAST = 0.001
"""Chance that a draft is reached, all before it being right, from which on it is made."""
STEP = 2
"""Drafts at a time. More at a time brought 1 to 4 % fewer tokens for each round trip on code."""
HITS, MISSES = 4, 1
"""Acceptance assumed of a model before anything was seen."""


class Ahead:
    """Counts how often the model was right, and its own drafts that are in flight."""

    def __init__(self) -> None:
        self._hits, self._misses = HITS, MISSES
        self._flying: dict[int, int] = {}

    def room(self, context: Context) -> int:
        """Drafts worth making now. Those of the model's own in the optimistic suffix must all be
        right first; others are taken for certain."""
        start, suffix = len(context.committed), context.suffix
        self._flying = {
            position: token
            for position, token in self._flying.items()
            if start <= position < len(context) and suffix[position - start] == token
        }
        rate = self._hits / (self._hits + self._misses)
        far = int(math.log(LEAST) / math.log(rate))
        return max(min(far - len(self._flying), STEP), 0)

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
