"""The question that every verifier answers: what does the target say after each of these rows?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from outrider.sampling.counts import TokenCounts
from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The wanted rows of one window.

    `logits` [rows, vocab] are the target's own, fp32; `inputs[i]` is the token that row i
    consumed, so the draft judged by row i is `inputs[i + 1]` and the last row judges none.
    Row i picks the token of absolute position `position + i`. `draft_probs` [rows - 1, vocab]
    holds the distribution that each draft was drawn from, or None for deterministic drafts.
    `largest`, where known, is what a greedy pick would find in each row of `logits`.
    """

    logits: torch.Tensor
    inputs: tuple[int, ...]
    position: int
    draft_probs: torch.Tensor | None = None
    largest: Sequence[int] | None = None

    def draft(self, row: int) -> int | None:
        """Return the draft that `row` judges, None for the last row."""
        return self.inputs[row + 1] if row + 1 < len(self.inputs) else None


Pick = Callable[[Rows, SamplingParams, Key, TokenCounts | None], list[int]]
"""Returns the target's token after each row, equal to the row's draft exactly if that is accepted.

`counts`, needed with penalties only, stand before the first row's input; a verifier pushes each
row's input before it looks at the row, so they end after the last one. Rows after the first
mismatch saw a token that never happened: what is returned for them is of no meaning.
"""


def judge_in_turn(rows: Rows, counts: TokenCounts | None, judge: Callable[[int], int]) -> list[int]:
    """Return `judge(row)` for each row up to the first mismatch, and fill up with the last one."""
    tokens: list[int] = []
    for row, token in enumerate(rows.inputs):
        if counts is not None:
            counts.extend((token,))
        alive = row == 0 or tokens[-1] == token
        tokens.append(judge(row) if alive else tokens[-1])
    return tokens
