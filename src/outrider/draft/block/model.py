"""A block drafter's weights for one target, and one block drafted with them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.draft.block.compiled import GreedyRows
from outrider.draft.block.formats import BlockConfig
from outrider.draft.block.heads import ConfidenceHead, MarkovHead
from outrider.draft.block.layout import BlockLayout
from outrider.draft.block.trunk import BlockContext, Trunk
from outrider.draft.choice import Choice, Chooser, GreedyChooser, check_finite, top_probabilities
from outrider.draft.reach import Reach
from outrider.kernels.linear import Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockModel:
    """Trunk, heads, embedding and head matrix, the last two often the target's own.

    added: what log-SNR conditioning adds to the embeddings of anchor and masks [2, hidden], or
    None. ids: target ids int64 [rows of the head matrix], None where they are the same. greedy: the
    compiled way to choose, where these heads have one. reach: is told when a text has outgrown it.
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
    reach: Reach | None = None

    @property
    def layout(self) -> BlockLayout:
        return self.config.layout

    def describe(self) -> dict[str, object]:
        """The configuration, and what runs compiled."""
        return {
            **self.config.describe(),
            "trunk": "compiled" if self.trunk.compiled else "torch",
            "greedy_drafts": "compiled" if self.greedy else "torch",
        }

    def draft(
        self, context: BlockContext, anchor: int, count: int, chooser: Chooser, least: float
    ) -> list[Choice]:
        """Up to `count` tokens after `anchor`, which stands right after the context.

        A draft ends where `chooser` ends it, or where the confidence head says less than `least`:
        it has seen the tokens before a row and never the row's own.
        """
        first = self.layout.first_row
        block = self.trunk.run(self._embed(anchor), context, first + count)
        hidden, choices = block.narrow(0, first, count), list[Choice]()
        # What another kind of chooser does with a row is its own affair.
        if self.greedy and type(chooser) is GreedyChooser and chooser.vocab_size == self.vocab_size:
            least = max(least if self.confidence else 0.0, chooser.min_probability)
            found = self.greedy.choose(self.head(hidden), block, anchor, least)
            return list(_until_unlikely(found, context.length + 1))
        state = self.markov.start(block[:first], anchor) if self.markov else None
        for row, sure in self._rows(hidden, state, anchor, choices):
            if self.confidence is not None and sure is not None and sure < least:
                break
            choice = chooser.choose(row, context.length + 1 + len(choices), sure)
            if choice is None:
                break
            choices.append(choice)
        return choices

    def _embed(self, anchor: int) -> Tensor:
        """The rows of a block [block size, hidden]."""
        ids = torch.full((self.layout.block_size,), self.layout.mask_token)
        ids[0] = anchor
        rows = self.embedding[ids.to(self.embedding.device)]
        if self.added is not None:
            rows[0] += self.added[0]
            rows[1:] += self.added[1]
        return rows

    def _rows(
        self, hidden: Tensor, state: Tensor | None, token: int, choices: list[Choice]
    ) -> Iterator[tuple[Tensor, float | None]]:
        """Each row's logits [1, vocab], corrected by the token chosen before it, and confidence."""
        logits = self.head(hidden).float()
        parts = self.confidence.of_rows(hidden) if self.confidence else None
        tops = None if self.markov or self.confidence else top_probabilities(logits)
        for place, row in enumerate(logits.split(1)):
            token = choices[-1].token if choices else token
            if self.markov is not None and state is not None:
                bias, state = self.markov.bias(token, hidden.narrow(0, place, 1), state)
                row = row + bias.float()
            sure = tops[place] if tops else None
            if self.confidence and parts:
                sure = self.confidence.value(parts[place], token)
            yield self._spread(row), sure

    def _spread(self, row: Tensor) -> Tensor:
        """A row over the draft vocabulary as one over the target's, -inf where it has no token."""
        if self.ids is None:
            return row
        return row.new_full((1, self.vocab_size), float("-inf")).index_copy_(1, self.ids, row)


def _until_unlikely(found: Sequence[tuple[int, float]], position: int) -> Iterator[Choice]:
    """Tokens that `GreedyRows.choose` found, for positions from `position` on."""
    for place, (token, sure) in enumerate(found, start=position):
        check_finite(sure, place)
        if token < 0:
            break
        yield Choice(token=token, confidence=sure)
