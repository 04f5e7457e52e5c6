"""Root-mean-square normalisation (Zhang & Sennrich 2019, arXiv 1910.07467).

The root mean square is the Euclidean length over sqrt(width). So a norm divides by a length, and
the constant sqrt(width) is part of its scale.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """x * weight / rms(x) over the last axis.

    scale: fp32 weight [..., width] times sqrt(width). eps: the checkpoint's times width, which is
    added to the sum of squares.
    """

    scale: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., width]; computed in fp32, in x's dtype."""
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        share = length.mul_(length).add_(self.eps).rsqrt_()
        normed: Tensor = (wide * share).mul_(self.scale)
        return normed.to(x.dtype)


def rms_norm(weight: Tensor, eps: float) -> RmsNorm:
    """The norm with fp32 `weight` [..., width] and the checkpoint's `eps`."""
    width = weight.shape[-1]
    return RmsNorm(weight * math.sqrt(width), eps * width)
