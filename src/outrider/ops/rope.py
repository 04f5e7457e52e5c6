"""Rotary position embedding (Su et al. 2021), halves convention, full or partial width."""

import torch
from torch import Tensor


def tables(inverse_frequencies: Tensor, length: int, scale: float) -> tuple[Tensor, Tensor]:
    """cos and signed sin [length, rotary width] fp32 for positions 0..length-1.

    The sine of the first half carries the minus sign of the rotation, so that `rotate` needs no
    negation.
    """
    angles = torch.outer(torch.arange(length, dtype=torch.float32), inverse_frequencies)
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first columns of x [n, heads, width] by cos, sin [n, 1, rotary width]."""
    width = cos.shape[-1]
    part = x[..., :width]
    first, second = part.chunk(2, -1)
    turned = part * cos + torch.cat([second, first], -1) * sin
    return turned if width == x.shape[-1] else torch.cat([turned, x[..., width:]], -1)
