"""Plays random sessions with a drafter, and says what a fresh run would draft."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from outrider.draft.base import Drafter
from outrider.models.decoder import Decoder
from outrider.records import Commit, Context
from outrider.state.spec import Policy
from tests.helpers.checkpoints import VOCAB
from tests.helpers.runs import run

Drafted = tuple[tuple[int, ...], tuple[float, ...]]
"""Tokens, and the largest probability of each row: equal only if the logits are, bit for bit."""


@torch.inference_mode()
def fresh_draft(decoder: Decoder, policy: Policy, tokens: list[int], count: int) -> Drafted:
    """Greedy continuation by a state that has seen nothing else; shares no code with drafters.

    Snapshots fold every row into the base at once, so their bits are those of their own policy.
    """
    state = decoder.new_state(policy, 0)
    rows = [run(decoder, state, tokens, revocable=False)[-1]]
    drafted = [int(rows[0].argmax())]
    while len(drafted) < count:
        rows.append(run(decoder, state, drafted[-1:], revocable=False)[-1])
        drafted.append(int(rows[-1].argmax()))
    return tuple(drafted), tuple(1.0 / float((row - row.max()).exp().sum()) for row in rows)


@dataclass
class Session:
    """Committed tokens and an optimistic suffix, changed as an engine would."""

    drafter: Drafter
    chance: random.Random
    committed: list[int] = field(default_factory=list)
    suffix: list[int] = field(default_factory=list)
    rejected: int = 0

    @property
    def context(self) -> Context:
        return Context(self.committed, self.suffix)

    def open(self, prompt: list[int]) -> None:
        self._commit(prompt)

    def judge(self, drafts: list[int]) -> None:
        """Keep some of the drafts (suffix included) and commit the target's next token."""
        kept = self.chance.randint(0, len(drafts))
        self.rejected += kept < len(drafts)
        bonus = self.chance.randrange(VOCAB)
        self.suffix = []
        self._commit([*drafts[:kept], bonus])

    def settle(self, drafts: list[int]) -> None:
        """Commit the first part of the drafts in flight; the rest stays in flight."""
        kept = self.chance.randint(0, len(drafts))
        self.suffix = drafts[kept:]
        self._commit(drafts[:kept])

    def rest(self) -> None:
        """All drafts are wrong, then another drafter, or none, works for some rounds."""
        self.rejected += 1
        self.suffix = []
        for _ in range(self.chance.randint(1, 4)):
            self._commit([self.chance.randrange(VOCAB) for _ in range(self.chance.randint(1, 5))])

    def _commit(self, tokens: list[int]) -> None:
        if tokens:
            commit = Commit(position=len(self.committed), tokens=tuple(tokens))
            self.committed.extend(tokens)
            self.drafter.observe(commit)


def play(
    session: Session, rounds: int, *, depth: int, longest: int = 6
) -> Iterator[tuple[list[int], int, Drafted]]:
    """Yield (context tokens, budget, what was drafted) of `rounds` proposals."""
    for _ in range(rounds):
        budget = session.chance.randint(1, longest)
        whole = [*session.committed, *session.suffix]
        draft = session.drafter.propose(session.context, budget)
        assert draft is not None
        yield whole, budget, (draft.tokens, draft.confidence or ())
        _go_on(session, [*session.suffix, *draft.tokens], depth)


def _go_on(session: Session, drafts: list[int], depth: int) -> None:
    move = session.chance.random()
    if depth > 1 and move < 0.4 and len(drafts) < 6 * depth:
        session.suffix = drafts
    elif depth > 1 and move < 0.6:
        session.settle(drafts)
    elif move < 0.85:
        session.judge(drafts)
    else:
        session.rest()
