"""Rejection sampling, for sampled drafts (Leviathan et al. 2023, arXiv 2211.17192; Chen et al.
2023, arXiv 2302.01318).

A draft x, drawn from draft_probs, is accepted with min(1, target(x) / draft(x)); if not, the
token is drawn from the positive part of target - draft, which holds no mass at x. Either way it is
distributed as the target alone would have it. Equality is of distribution, not of tokens.
"""

import torch

from outrider.errors import StateError
from outrider.sampling.counts import TokenCounts
from outrider.sampling.logits import distribution, probabilities
from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import Key, Purpose, draw
from outrider.verify.rows import Rows, judge_in_turn


def pick(rows: Rows, sampling: SamplingParams, key: Key, counts: TokenCounts | None) -> list[int]:
    """See `verify.rows.Pick`. Raises StateError if a draft has no probability of its own."""
    return judge_in_turn(rows, counts, lambda row: _judge(rows, row, sampling, key, counts))


def _judge(
    rows: Rows, row: int, sampling: SamplingParams, key: Key, counts: TokenCounts | None
) -> int:
    """Return the target's token after `row`, whose input was accepted."""
    logits, position, draft = rows.logits[row], rows.position + row, rows.draft(row)
    if draft is None or rows.draft_probs is None:
        bonus = distribution(logits, sampling, counts)
        return bonus.draw(key.uniform(position, Purpose.TARGET))
    target_probs = probabilities(logits, sampling, counts)
    draft_probs = _normalized(rows.draft_probs[row], draft, position)
    if _accepts(target_probs, draft_probs, draft, key.uniform(position, Purpose.ACCEPT)):
        return draft
    residual = (target_probs - draft_probs).clamp_(min=0.0)
    if not residual.any():  # Equal up to rounding: the draft is as good as the target's own.
        return draft
    return draw(residual, key.uniform(position, Purpose.RESIDUAL))


def _accepts(
    target_probs: torch.Tensor, draft_probs: torch.Tensor, draft: int, uniform: float
) -> bool:
    return uniform * float(draft_probs[draft]) < float(target_probs[draft])


def _normalized(weights: torch.Tensor, draft: int, position: int) -> torch.Tensor:
    """Return `weights` [vocab] as float64 probabilities, as `draw` used them."""
    if not float(weights[draft]) > 0.0:
        raise StateError(
            f"draft token {draft} at position {position} has probability "
            f"{float(weights[draft])} in its own distribution; the drafter must hand over the "
            f"distribution that it drew from."
        )
    wide = weights.double()
    return wide / wide.sum()
