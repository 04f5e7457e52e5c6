"""Activations from operations that give an element the same bits at every tensor size.

torch's own silu, sigmoid and softplus round differently in the scalar tails of their loops, so a
row would depend on how many rows run beside it (docs/decisions/row-invariance.md).
"""

import torch
from torch import Tensor

SOFTPLUS_LINEAR_ABOVE = 20.0


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), elementwise."""
    return torch.exp(-x).add_(1.0).reciprocal_()


def silu(x: Tensor) -> Tensor:
    """x / (1 + exp(-x)), elementwise."""
    return x / torch.exp(-x).add_(1.0)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), elementwise; x itself where the difference is below rounding."""
    return torch.where(x > SOFTPLUS_LINEAR_ABOVE, x, torch.exp(x).log1p())
