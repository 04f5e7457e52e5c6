"""A model small enough to enumerate: logits are a fixed function of the last tokens."""

from collections.abc import Sequence
from functools import cache

import torch

VOCAB = 4


def logits_after(context: Sequence[int], *, salt: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    """Return logits [vocab] that depend on the last three tokens and their position."""
    return _logits((salt, *context[-3:], len(context)), vocab).clone()


@cache
def _logits(numbers: tuple[int, ...], vocab: int) -> torch.Tensor:
    seed = 0
    for number in numbers:
        seed = (seed * 1009 + number + 1) % (2**31)
    return 1.5 * torch.randn(vocab, generator=torch.Generator().manual_seed(seed))


def window_logits(context: Sequence[int], inputs: Sequence[int], **kind: int) -> torch.Tensor:
    """Return logits [len(inputs), vocab] of a window; `context` ends before `inputs`."""
    tokens = [*context, *inputs]
    ends = range(len(context) + 1, len(tokens) + 1)
    return torch.stack([logits_after(tokens[:end], **kind) for end in ends])
