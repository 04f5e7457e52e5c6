"""Weight-only int8: each output row of a matrix in 8 bits under a scale of its own.

The few inputs that are much larger than others stay whole (`Int8Mixed`).

On the CPU torch's own kernel multiplies bfloat16 activations with it and sums in fp32. It reads
whole vectors and checks nothing, so the inner width is padded to a multiple of their length.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

KEPT_SHARE = 12
"""One input in so many stays whole: 48 of 576, 128 of 1536."""

FEWEST_ROWS = 4

Product = Callable[[Tensor], Tensor]

LEVELS = 127
VECTOR = 32
REFINED = 64


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """codes [out, in] int8 and scale [out] bfloat16; the matrix is codes * scale."""

    codes: Tensor
    scale: Tensor

    def rows(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows at `index` [n], as numbers [n, in] in `dtype`."""
        return self.codes[index].to(dtype) * self.scale[index].to(dtype)[:, None]


def quantise(matrix: Tensor) -> Int8Matrix:
    """Round a matrix [out, in] to int8; the scale is rounded first, so it adds no error."""
    largest = matrix.float().abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny)
    scale = (largest / LEVELS).bfloat16()
    codes = (matrix.float() / scale.float()[:, None]).round_().clamp_(-128, LEVELS)
    return Int8Matrix(codes.to(torch.int8), scale)


def can_multiply(matrix: Tensor) -> bool:
    """Whether torch has its int8 kernel for this matrix's device."""
    return matrix.device.type == "cpu" and hasattr(torch.ops.aten, "_weight_int8pack_mm")


class Int8Product:
    """y = x W^T + b by torch's CPU kernel; result in x's dtype, rounded to bfloat16 before b."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._missing = -weight.shape[1] % VECTOR
        self.matrix = quantise(functional.pad(weight, (0, self._missing)))
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        half = x.bfloat16()
        if self._missing:
            half = functional.pad(half, (0, self._missing))
        y = torch.ops.aten._weight_int8pack_mm(half, self.matrix.codes, self.matrix.scale)
        result: Tensor = y.to(x.dtype)
        return result if self._bias is None else result + self._bias


class Int8Mixed:
    """y = x W^T + b with most inputs' columns in int8 and those at `kept` [k] whole.

    After LLM.int8() (Dettmers et al. 2022, arXiv 2208.07339): in language models a few inputs of a
    layer are many times larger than the others in every row, and so is their rounding error.
    """

    def __init__(self, rounded: Product, weight: Tensor, kept: Tensor) -> None:
        """`rounded` multiplies all inputs, with zeros at `kept`, and adds b."""
        self._rounded, self._kept = rounded, kept
        self._whole = weight[:, kept].t().contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        inputs = x.index_select(1, self._kept)
        # MKL sums products of fewer rows in another order.
        missing = max(FEWEST_ROWS - len(x), 0)
        if missing:
            inputs = functional.pad(inputs, (0, 0, 0, missing))
        return self._rounded(x).add_(torch.mm(inputs, self._whole)[: len(x)])


def largest_inputs(weight: Tensor, rows: Tensor) -> Tensor:
    """Which inputs of W [out, in] rounding would cost most, judged by `rows` [n, in]: int64 [k]."""
    size = rows.float().square().mean(0).sqrt() * weight.float().abs().amax(0)
    return size.topk(weight.shape[1] // KEPT_SHARE).indices.sort().values


class Int8Logits:
    """As `Int8Product` for a head, with each row's largest entries summed again in fp32.

    bfloat16 has steps of an eighth where logits are near 20, wider than many a lead of the best
    token over the second; the entries far below need no more.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._product = Int8Product(weight, bias)
        self._bias = bias
        self._count = min(REFINED, weight.shape[0])

    def __call__(self, x: Tensor) -> Tensor:
        rough = self._product(x).float()
        best = rough.topk(self._count, sorted=False).indices
        matrix = self._product.matrix
        rows = matrix.codes[best][..., : x.shape[1]].float()
        exact = (rows * x.float()[:, None]).sum(-1) * matrix.scale[best].float()
        if self._bias is not None:
            exact = exact + self._bias.float()[best]
        return rough.scatter_(1, best, exact).to(x.dtype)


class Int8Fallback:
    """The same numbers without the kernel: codes are widened for every product.

    Half the memory of bfloat16 and slower than it; for graphics processors, and where a build of
    torch lacks the kernel.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._matrix = quantise(weight)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        y = functional.linear(x, self._matrix.codes.to(x.dtype)) * self._matrix.scale.to(x.dtype)
        return y if self._bias is None else y + self._bias
