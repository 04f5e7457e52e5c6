"""Verifiers: the target's token after each row of a window, equal to the row's draft if accepted.

`pick_greedy`: the largest logit, the lowest id among ties.

`pick_matching`, for deterministic drafts: draw the target's token and compare. For a draft that was
not sampled this *is* the rejection sampler: it is accepted with the target's probability of it, and
what is drawn otherwise has the right distribution. Since the number used at a position depends on
seed and position only, the tokens equal those of plain decoding.

`pick_rejection`, for sampled drafts (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023,
arXiv 2302.01318): a draft x, drawn from draft_probs, is accepted with min(1, target(x) / draft(x));
if not, the token is drawn from the positive part of target - draft, which holds no mass at x.
Either way it is distributed as the target alone would have it. Equality is of distribution, not of
tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from outrider.errors import StageError, StateError
from outrider.kernels.argmax import argmax_rows
from outrider.sampling.logits import TokenCounts, adjust, adjusts, distribution, probabilities
from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import Key, Purpose, draw


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitRows:
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


Pick = Callable[[LogitRows, SamplingParams, Key, TokenCounts | None], list[int]]
"""Returns the target's token after each row, equal to the row's draft exactly if that is accepted.

`counts`, needed with penalties only, stand before the first row's input; a verifier pushes each
row's input before it looks at the row, so they end after the last one. LogitRows after the first
mismatch saw a token that never happened: what is returned for them is of no meaning.
"""


def judge_in_turn(
    rows: LogitRows, counts: TokenCounts | None, judge: Callable[[int], int]
) -> list[int]:
    """Return `judge(row)` for each row up to the first mismatch, and fill up with the last one."""
    tokens: list[int] = []
    for row, token in enumerate(rows.inputs):
        if counts is not None:
            counts.extend((token,))
        alive = row == 0 or tokens[-1] == token
        tokens.append(judge(row) if alive else tokens[-1])
    return tokens


def pick_greedy(
    rows: LogitRows, sampling: SamplingParams, key: Key, counts: TokenCounts | None
) -> list[int]:
    """See `Pick`. Without bias and penalties, one argmax over all rows, no copy.

    Raises StageError if a row holds NaN.
    """
    if not adjusts(sampling):
        return _largest(rows.logits) if rows.largest is None else list(rows.largest)

    def judge(row: int) -> int:
        return _largest(adjust(rows.logits[row], sampling, counts)[None])[0]

    return judge_in_turn(rows, counts, judge)


def _largest(logits: torch.Tensor) -> list[int]:
    """Return the likeliest token of each row of `logits` [rows, vocab]."""
    found = argmax_rows(logits)
    if found is None:
        raise StageError(
            "the target's logits hold NaN: no token can be picked; check the checkpoint and its "
            "dtype."
        )
    return found


def pick_matching(
    rows: LogitRows, sampling: SamplingParams, key: Key, counts: TokenCounts | None
) -> list[int]:
    """See `Pick`."""

    def judge(row: int) -> int:
        found = distribution(rows.logits[row], sampling, counts)
        return found.draw(key.uniform(rows.position + row, Purpose.TARGET))

    return judge_in_turn(rows, counts, judge)


def pick_rejection(
    rows: LogitRows, sampling: SamplingParams, key: Key, counts: TokenCounts | None
) -> list[int]:
    """See `Pick`. Raises StateError if a draft has no probability of its own."""
    return judge_in_turn(rows, counts, lambda row: judge_row(rows, row, sampling, key, counts))


def judge_row(
    rows: LogitRows, row: int, sampling: SamplingParams, key: Key, counts: TokenCounts | None
) -> int:
    """Return the target's token after `row`, whose input was accepted."""
    logits, position, draft = rows.logits[row], rows.position + row, rows.draft(row)
    if draft is None or rows.draft_probs is None:
        bonus = distribution(logits, sampling, counts)
        return bonus.draw(key.uniform(position, Purpose.TARGET))
    target_probs = probabilities(logits, sampling, counts)
    draft_probs = normalized(rows.draft_probs[row], draft, position)
    if accepts(target_probs, draft_probs, draft, key.uniform(position, Purpose.ACCEPT)):
        return draft
    residual = (target_probs - draft_probs).clamp_(min=0.0)
    if not residual.any():  # Equal up to rounding: the draft is as good as the target's own.
        return draft
    return draw(residual, key.uniform(position, Purpose.RESIDUAL))


def accepts(
    target_probs: torch.Tensor, draft_probs: torch.Tensor, draft: int, uniform: float
) -> bool:
    return uniform * float(draft_probs[draft]) < float(target_probs[draft])


def normalized(weights: torch.Tensor, draft: int, position: int) -> torch.Tensor:
    """Return `weights` [vocab] as float64 probabilities, as `draw` used them."""
    if not float(weights[draft]) > 0.0:
        raise StateError(
            f"draft token {draft} at position {position} has probability "
            f"{float(weights[draft])} in its own distribution; the drafter must hand over the "
            f"distribution that it drew from."
        )
    wide = weights.double()
    return wide / wide.sum()
