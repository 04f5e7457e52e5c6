"""Root-mean-square normalisation (Zhang & Sennrich 2019) and what is built from it.

The root mean square is the Euclidean length over sqrt(width). So every norm here divides by a
length, and the constant sqrt(width) goes into the weight, or with it into the next matrix.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def inverse_length(x: Tensor, eps: Tensor) -> Tensor:
    """1 / sqrt(sum of squares + eps) over the last axis of fp32 x, which stays with size 1."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.addcmul(eps, length, length).rsqrt_()


def unit_rows(x: Tensor, eps: Tensor) -> Tensor:
    """x over its length along the last axis, computed in fp32; in x's dtype. eps: 0-dim."""
    if x.dtype is torch.float32:  # a conversion that changes nothing costs as much as a product
        return x * inverse_length(x, eps)
    wide = x.float()
    return (wide * inverse_length(wide, eps)).to(x.dtype)


def length_eps(eps: float, width: int) -> Tensor:
    """The epsilon of an RMS norm over `width` entries, for use beside their sum of squares."""
    return torch.tensor(eps * width)


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """x * weight / rms(x) over the last axis; `scale` is weight * sqrt(width), `eps` 0-dim."""

    scale: Tensor
    eps: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., width]; computed in fp32, in x's dtype."""
        return unit_rows(x.float(), self.eps).mul_(self.scale).to(x.dtype)


def rms_norm(weight: Tensor, eps: float) -> RmsNorm:
    """The norm with fp32 `weight` [..., width] and the checkpoint's `eps`."""
    width = weight.shape[-1]
    return RmsNorm(weight * math.sqrt(width), length_eps(eps, width).to(weight.device))


def fold_norm(matrix: Tensor, weight: Tensor) -> Tensor:
    """The matrix [out, width] that takes `unit_rows` of an input instead of its RMS norm."""
    scale = weight.float() * math.sqrt(weight.shape[-1])
    return (matrix.float() * scale).to(matrix.dtype)
