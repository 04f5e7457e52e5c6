"""Activations from operations that give an element the same bits at every tensor size.

torch's own silu, sigmoid and softplus round differently in the scalar tails of their loops, so a
row would depend on how many rows run beside it (docs/decisions/row-invariance.md).

Models fold signs into the weights before an activation, so that the cheap form `one_plus_exp` is
all that a pass computes.
"""

import torch
from torch import Tensor

ONE = torch.ones(())
"""A tensor, because torch converts a Python number anew at every call, at twice the cost."""


def one_plus_exp(x: Tensor) -> Tensor:
    """1 + exp(x), elementwise: sigmoid(y) is its reciprocal at x = -y, silu(y) is y over it."""
    return torch.exp(x).add_(ONE)
