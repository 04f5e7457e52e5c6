"""Root-mean-square normalisation (Zhang & Sennrich 2019) and what is built from it."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., width] over its last axis, computed in fp32, times weight [width]; in x's dtype."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight).to(x.dtype)
