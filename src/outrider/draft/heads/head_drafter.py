"""Drafting with a one-token head: MTP, and EAGLE-3 (Li et al. 2025, arXiv 2503.01840) as a chain.

The head's state holds true pairs only, features that the target made. What it drafts on its own
features is dropped after every proposal, accepted or not: those positions are run again when their
true features have come.
"""

import torch
from torch import Tensor

from outrider.draft.base import Kept
from outrider.draft.choice import Choice, Chooser, as_draft
from outrider.draft.features import TapDrafter
from outrider.draft.heads.one_token import Head
from outrider.records import Context, Draft


class HeadDrafter(TapDrafter):
    """Drafts for one session."""

    def __init__(self, head: Head, chooser: Chooser) -> None:
        super().__init__(head.name, head.taps, chooser)
        self._head = head
        self._state = head.new_state()
        self._newest: Tensor | None = None

    @torch.inference_mode()
    def propose(self, context: Context, budget: int) -> Draft | None:
        """Return up to `budget` tokens, None if unsure at once.

        Takes one pass over the pairs that came since the last proposal, and one per further token.
        """
        self._backlog.check(self.name, context)
        rows = self._head.layers.max_length - self._backlog.end + 1
        self._catch_up()
        return self._chain(len(context), min(budget, rows))

    def keep(self) -> Kept | None:
        """The state, and the features that it has not consumed."""
        size = self._state.nbytes() + self._backlog.nbytes()
        return Kept((self._state.copy(), self._backlog.copy(), self._newest), size)

    def resume(self, kept: Kept) -> None:
        """Go on from there."""
        assert isinstance(kept.value, tuple)
        state, backlog, self._newest = kept.value
        self._state, self._backlog = state.copy(), backlog.copy()

    def close(self) -> None:
        """Free the state."""
        self._state = self._head.new_state()
        self._newest = None

    def _consume(self, features: Tensor, tokens: Tensor) -> None:
        """Run over true pairs; the last output stays."""
        self._state.settle(self._backlog.start)  # of a pass that failed, nothing stays
        outputs = self._head.run(self._head.read(features), tokens, self._state)
        self._newest = outputs[-1:].clone()

    def _chain(self, position: int, count: int) -> Draft | None:
        assert self._newest is not None, "the first commit came before the first proposal"
        choices: list[Choice] = []
        output = self._newest
        try:
            while len(choices) < count:
                logits, feature = self._head.conclude(output)
                choice = self._chooser.choose(logits, position + len(choices))
                if choice is None:
                    break
                choices.append(choice)
                if len(choices) < count:
                    token = torch.tensor([choice.token], device=output.device)
                    output = self._head.run(feature, token, self._state)
        finally:
            self._state.settle(self._backlog.end)
        return as_draft(choices, self.name)
