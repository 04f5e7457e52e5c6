"""Block drafters, DFlash and DSpark: a loaded model, and the drafter of one session."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.draft.base import DrafterSnapshot, LengthWarning
from outrider.draft.block.block_config import BlockConfig
from outrider.draft.block.block_heads import ConfidenceHead, GreedyRows, MarkovHead
from outrider.draft.block.block_trunk import BlockContext, Trunk
from outrider.draft.tap_drafter import TapDrafter
from outrider.draft.token_choice import (
    Chooser,
    DraftToken,
    GreedyChooser,
    as_draft,
    check_finite,
    spread_logits,
    top_probabilities,
)
from outrider.kernels.operations import Linear
from outrider.records import Context, Draft


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockModel:
    """Trunk, heads, embedding and head matrix, the last two often the target's own.

    added: what log-SNR conditioning adds to the embeddings of anchor and masks [2, hidden], or
    None. ids: target ids int64 [rows of the head matrix], None where they are the same. greedy: the
    compiled way to choose, where these heads have one. warning: given when a text has outgrown it.
    """

    config: BlockConfig
    trunk: Trunk
    embedding: Tensor
    head: Linear
    vocab_size: int
    markov: MarkovHead | None = None
    confidence: ConfidenceHead | None = None
    added: Tensor | None = None
    ids: Tensor | None = None
    greedy: GreedyRows | None = None
    warning: LengthWarning | None = None

    def describe(self) -> dict[str, object]:
        """The configuration, and what runs compiled."""
        return {
            **self.config.describe(),
            "trunk": "compiled" if self.trunk.compiled else "torch",
            "greedy_drafts": "compiled" if self.greedy else "torch",
        }

    def draft(
        self,
        context: BlockContext,
        anchor: int,
        count: int,
        chooser: Chooser,
        min_confidence: float = 0.0,
    ) -> list[DraftToken]:
        """Up to `count` tokens after `anchor`, which comes right after the context.

        A draft ends where `chooser` ends it, or where the confidence head says less than
        `min_confidence`: it has seen the tokens before a row and never the row's own.
        """
        first = self.config.first_row
        block = self.trunk.run(self._embed(anchor), context, first + count)
        # Another kind of chooser must see the rows themselves.
        if self.greedy and type(chooser) is GreedyChooser and chooser.vocab_size == self.vocab_size:
            least = max(min_confidence if self.confidence else 0.0, chooser.min_probability)
            logits = self.head(block.narrow(0, first, count))
            found = self.greedy.choose(logits, block, anchor, least)
            return list(_until_unlikely(found, context.length + 1))
        return self._choose(block, anchor, context.length + 1, chooser, min_confidence)

    def _embed(self, anchor: int) -> Tensor:
        """The rows of a block [block size, hidden]."""
        ids = torch.full((self.config.block_size,), self.config.mask_token)
        ids[0] = anchor
        rows = self.embedding[ids.to(self.embedding.device)]
        if self.added is not None:
            rows[0] += self.added[0]
            rows[1:] += self.added[1]
        return rows

    def _choose(
        self, block: Tensor, token: int, position: int, chooser: Chooser, min_confidence: float
    ) -> list[DraftToken]:
        """Tokens for positions from `position` on, each row in the light of the one before it.

        block: normed outputs [n, hidden], with the row before those that predict, if there is one.
        """
        first = self.config.first_row
        hidden, choices = block[first:], list[DraftToken]()
        logits = self.head(hidden).float()
        state = self.markov.start(block[:first], token) if self.markov else None
        parts = self.confidence.of_rows(hidden) if self.confidence else None
        tops = None if self.markov or self.confidence else top_probabilities(logits)
        for place, row in enumerate(logits.split(1)):
            if self.markov and state is not None:
                bias, state = self.markov.bias(token, hidden.narrow(0, place, 1), state)
                row = row + bias.float()
            confidence = tops[place] if tops else None
            if self.confidence and parts:
                confidence = self.confidence.value(parts[place], token)
                if confidence < min_confidence:
                    break
            row = spread_logits(row, self.ids, self.vocab_size)
            choice = chooser.choose(row, position + place, confidence)
            if choice is None:
                break
            choices.append(choice)
            token = choice.token
        return choices


def _until_unlikely(found: Sequence[tuple[int, float]], position: int) -> Iterator[DraftToken]:
    """Tokens that `GreedyRows.choose` found, for positions from `position` on."""
    for place, (token, confidence) in enumerate(found, start=position):
        check_finite(confidence, place)
        if token < 0:
            break
        yield DraftToken(token=token, confidence=confidence)


class BlockDrafter(TapDrafter):
    """Drafts a block in one pass."""

    def __init__(self, model: BlockModel, chooser: Chooser, min_confidence: float = 0.0) -> None:
        super().__init__(model.config.lineage.value, model.config.taps, chooser)
        self._model, self._min_confidence = model, min_confidence
        self._context = BlockContext(model.trunk)

    @torch.inference_mode()
    def propose(self, context: Context, budget: int) -> Draft | None:
        """Return up to `budget` tokens, None if the first is too unlikely or beyond the drafter's
        length.

        Takes one pass over the features that came since the last proposal and one over a block.
        """
        self.backlog.check(self.name, context)
        config = self._model.config
        if self.backlog.end + config.block_size > self._model.trunk.max_length:
            if self._model.warning:
                self._model.warning.warn(self._model.trunk.max_length)
            return None
        self._catch_up()
        count = min(budget, config.max_drafts)
        choices = self._model.draft(
            self._context, context.last, count, self._chooser, self._min_confidence
        )
        return as_draft(choices, self.name)

    def snapshot(self) -> DrafterSnapshot | None:
        """The context, and the features that are not in it."""
        size = self._context.storage.nbytes + self.backlog.nbytes()
        return DrafterSnapshot((self._context.copy(), self.backlog.copy()), size)

    def restore(self, snapshot: DrafterSnapshot) -> None:
        """Go on from there."""
        assert isinstance(snapshot.value, tuple)
        context, backlog = snapshot.value
        self._context, self.backlog = context.copy(), backlog.copy()

    def close(self) -> None:
        """Free the context."""
        self._context = BlockContext(self._model.trunk)

    def _consume(self, features: Tensor, tokens: Tensor) -> None:
        """Add to the context; what lies beyond the drafter's length is of no use to it."""
        room = self._model.trunk.max_length - self._context.length
        self._model.trunk.consume(features[:room], self._context)
