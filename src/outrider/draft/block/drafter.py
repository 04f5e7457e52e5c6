"""The block drafter of one session."""

import torch
from torch import Tensor

from outrider.draft.base import Kept
from outrider.draft.block.model import BlockModel
from outrider.draft.block.trunk import BlockContext
from outrider.draft.choice import Chooser, as_draft
from outrider.draft.features import TapDrafter
from outrider.records import Context, Draft


class BlockDrafter(TapDrafter):
    """Drafts a block in one pass."""

    def __init__(self, model: BlockModel, chooser: Chooser, min_confidence: float = 0.0) -> None:
        super().__init__(model.layout.lineage.value, model.layout.taps, chooser)
        self._model, self._least = model, min_confidence
        self._context = BlockContext(model.trunk)

    @torch.inference_mode()
    def propose(self, context: Context, budget: int) -> Draft | None:
        """Return up to `budget` tokens, None if unsure at once or beyond the drafter's length.

        Takes one pass over the features that came since the last proposal and one over a block.
        """
        self._backlog.check(self.name, context)
        layout = self._model.layout
        if self._backlog.end + layout.block_size > self._model.trunk.max_length:
            if self._model.reach:
                self._model.reach.ended(self._model.trunk.max_length)
            return None
        self._catch_up()
        count = min(budget, layout.max_drafts)
        choices = self._model.draft(self._context, context.last, count, self._chooser, self._least)
        return as_draft(choices, self.name)

    def keep(self) -> Kept | None:
        """The context, and the features that are not in it."""
        size = self._context.storage.nbytes + self._backlog.nbytes()
        return Kept((self._context.copy(), self._backlog.copy()), size)

    def resume(self, kept: Kept) -> None:
        """Go on from there."""
        assert isinstance(kept.value, tuple)
        context, backlog = kept.value
        self._context, self._backlog = context.copy(), backlog.copy()

    def close(self) -> None:
        """Free the context."""
        self._context = BlockContext(self._model.trunk)

    def _consume(self, features: Tensor, tokens: Tensor) -> None:
        """Add to the context; what lies beyond the drafter's length is of no use to it."""
        room = self._model.trunk.max_length - self._context.length
        self._model.trunk.consume(features[:room], self._context)
