"""Rotary position embedding (Su et al. 2021), halves convention, full or partial width.

A head's columns are permuted once, at load, so that each rotated pair lies half a head apart,
whatever part of the head is rotated; columns that are not rotated turn by the angle zero.
"""

import torch
from torch import Tensor


def rope_table(inverse_frequencies: Tensor, length: int, scale: float, width: int) -> Tensor:
    """cos and signed sin [2, length, width] fp32 for positions 0..length-1 of `paired` heads.

    The sine of the first half carries the minus sign of the rotation, so that `rotate` needs no
    negation.
    """
    angles = torch.outer(torch.arange(length, dtype=torch.float32), inverse_frequencies)
    still = width // 2 - len(inverse_frequencies)
    cos = torch.nn.functional.pad(angles.cos() * scale, (0, still), value=1.0)
    sin = torch.nn.functional.pad(angles.sin() * scale, (0, still))
    return torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)])


def paired(heads: Tensor, rotary: int) -> Tensor:
    """Permute the columns of heads [heads, width, ...] whose first `rotary` ones are rotated."""
    width = heads.shape[1]
    turned, still = torch.arange(rotary), torch.arange(rotary, width)
    order = [part.chunk(2)[half] for half in (0, 1) for part in (turned, still) if len(part)]
    return heads[:, torch.cat(order)]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [n, heads, width] rotated by cos, signed sin [n, 1, width], in x's dtype."""
    first, second = x.chunk(2, -1)
    return (x * cos + torch.cat([second, first], -1) * sin).to(x.dtype)
