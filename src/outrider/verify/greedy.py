"""Greedy verification: the target's token is the likeliest one, the lowest id among ties."""

import torch

from outrider.errors import StageError
from outrider.kernels.likeliest import likeliest
from outrider.sampling.counts import TokenCounts
from outrider.sampling.logits import adjust, adjusts
from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import Key
from outrider.verify.rows import Rows, judge_in_turn


def pick(rows: Rows, sampling: SamplingParams, key: Key, counts: TokenCounts | None) -> list[int]:
    """See `verify.rows.Pick`. Without bias and penalties, one argmax over all rows, no copy.

    Raises StageError if a row holds NaN.
    """
    if not adjusts(sampling):
        return _largest(rows.logits) if rows.largest is None else list(rows.largest)

    def judge(row: int) -> int:
        return _largest(adjust(rows.logits[row], sampling, counts)[None])[0]

    return judge_in_turn(rows, counts, judge)


def _largest(logits: torch.Tensor) -> list[int]:
    """Return the likeliest token of each row of `logits` [rows, vocab]."""
    found = likeliest(logits)
    if found is None:
        raise StageError(
            "the target's logits hold NaN: no token can be picked; check the checkpoint and its "
            "dtype."
        )
    return found
