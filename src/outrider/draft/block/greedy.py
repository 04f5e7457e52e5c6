"""Greedy tokens of a whole block in one compiled call."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outrider.draft.block.heads import ConfidenceHead, MarkovHead
from outrider.ops.fused import Fused, Product


@dataclass(frozen=True, slots=True)
class GreedyRows:
    """What `outrider.ops.jit_draft.choose_rows` needs of the heads, as arrays."""

    fused: Fused
    code: Any
    weight: Any
    ids: Any
    by_token: Any

    def choose(
        self, logits: Tensor, parts: Tensor | None, token: int, least: float
    ) -> list[tuple[int, float]]:
        """Tokens and confidence of rows [n, draft vocab] behind `token`; the token of a row with less
        than `least`, or without numbers, is -1, and what follows it means nothing.

        parts: the hidden states' part of the confidence [n], where a head tells it.
        """
        tokens, sure = torch.empty(len(logits), dtype=torch.int64), torch.empty(len(logits))
        given = torch.empty(0) if parts is None else parts
        heads = self.code, self.weight, self.ids, given.numpy(), self.by_token
        found = tokens.numpy(), sure.numpy()
        self.fused.choose(logits.numpy(), *heads, token, least, *found)
        return list(zip(tokens.tolist(), sure.tolist(), strict=True))


def greedy_rows(
    fused: Fused | None,
    markov: MarkovHead | None,
    confidence: ConfidenceHead | None,
    ids: Tensor | None,
) -> GreedyRows | None:
    """The compiled choice for these heads; None where there is none, as for states of a Markov head
    that depend on more than the token before."""
    product = markov.out.kernel if markov else None
    if fused is None or (markov and (markov.mix or not isinstance(product, Product))):
        return None
    weight, code = torch.empty(0, 0, fused.jit.BLOCK).numpy(), torch.empty(0, 0)
    if markov and isinstance(product, Product):
        weight, code = product.weight, markov.code
    by_token = confidence.by_token if confidence else None
    return GreedyRows(
        fused,
        code.contiguous().numpy(),
        weight,
        (torch.empty(0, dtype=torch.int64) if ids is None else ids).numpy(),
        (torch.empty(0) if by_token is None else by_token).numpy(),
    )
