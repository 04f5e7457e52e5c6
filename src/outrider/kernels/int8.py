"""Weight-only int8: each output row of a matrix in 8 bits under a scale of its own.

A row's scale follows its largest entry, so one large column costs all the others precision, and a
column under large inputs needs more of it than others. Both are met by how inputs are handed over
(`Int8Inputs`): columns are made even by factors, and the columns that matter most are there twice,
with the second digits of their entries. A step pays one gather and one product for it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

DOUBLED_SHARE = 20
"""At least one input in so many has columns for both digits: 32 of 576, 96 of 1536."""

LEVELS = 127
DIGITS = 256
"""Second digits count in 256ths of a first, which keeps their inputs' factors exact."""

VECTOR = 32
"""torch's CPU kernel reads whole vectors of this length and checks nothing."""

EVENNESS = 0.7
"""Of a column's largest entry the power that it is divided by."""

REFINED = 64
FEWEST = 64
"""No row's step is smaller than that of its largest entry over so many."""


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """codes [out, k] int8 and scale [out] bfloat16; the matrix is codes * scale."""

    codes: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True)
class Int8Inputs:
    """Which of a layer's inputs, times what, the columns of codes stand for.

    index int64 [k], factor [k] in the weights' dtype, 0 where a column only fills a vector.
    """

    index: Tensor
    factor: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Rows x [n, in] as the codes' inputs [n, k]."""
        return x.index_select(1, self.index).mul_(self.factor)


Multiply = Callable[[Tensor, Int8Matrix], Tensor]
"""Inputs [n, k] and a matrix to products [n, out]."""


def round_matrix(weight: Tensor, rows: Tensor | None) -> tuple[Int8Inputs, Int8Matrix, Tensor]:
    """A weight [out, in] in two digits: inputs, first digits, and second ones int8 [out, in].

    `rows` [n, in] of typical inputs tell which columns get their second digits among the codes, by
    the size of input and column (outliers as in LLM.int8(), Dettmers et al. 2022, arXiv
    2208.07339); none do without. Other columns are divided by the root of their largest entry
    (SmoothQuant, Xiao et al. 2023, arXiv 2211.10438, with a share of 0 for the inputs' size: it
    costs nothing in a product of floating-point inputs). Factors and scales are rounded first, so
    that they add no error.
    """
    wide, out_dtype = weight.float(), weight.dtype
    column = wide.abs().amax(0).clamp_min(torch.finfo(torch.float32).tiny)
    factor = column.pow(EVENNESS).to(out_dtype)
    doubled = column.new_empty(0, dtype=torch.int64) if rows is None else _largest(column, rows)
    scale = _scale(wide / factor.float(), doubled)
    # A doubled column may be larger than its row's step allows: its input takes the rest.
    fitting = (wide[:, doubled].abs() / scale.float()[:, None]).amax(0) / LEVELS
    factor[doubled] = torch.maximum(fitting.to(out_dtype), factor[doubled])
    steps = wide / factor.float() / scale.float()[:, None]
    first = _code(steps)
    second = _code((steps - first) * DIGITS)
    missing = -(len(factor) + len(doubled)) % VECTOR
    index = torch.arange(len(factor), device=weight.device)
    index = torch.cat([index, doubled, index.new_zeros(missing)])
    factor = torch.cat([factor, factor[doubled] / DIGITS, factor.new_zeros(missing)])
    codes = functional.pad(torch.cat([first, second[:, doubled]], 1), (0, missing))
    return Int8Inputs(index, factor), Int8Matrix(codes, scale), second


def _largest(column: Tensor, rows: Tensor) -> Tensor:
    """Inputs that rounding would cost most, filling whole vectors with the others: int64 [d]."""
    width = len(column)
    filled = -(-(width + width // DOUBLED_SHARE) // VECTOR) * VECTOR
    size = rows.float().square().mean(0).sqrt() * column
    return size.topk(min(filled - width, width)).indices.sort().values


def _scale(even: Tensor, doubled: Tensor) -> Tensor:
    """Each row's step by its largest entry that has one digit."""
    single = even.abs().index_fill(1, doubled, 0.0).amax(1)
    least = even.abs().amax(1) / FEWEST
    largest = torch.maximum(single, least).clamp_min(torch.finfo(torch.float32).tiny)
    return (largest / LEVELS).bfloat16()


def _code(steps: Tensor) -> Tensor:
    return steps.round().clamp_(-LEVELS - 1, LEVELS).to(torch.int8)


def can_multiply(matrix: Tensor) -> bool:
    """True if torch has its int8 kernel for this matrix's device."""
    return matrix.device.type == "cpu" and hasattr(torch.ops.aten, "_weight_int8pack_mm")


def multiply(x: Tensor, matrix: Int8Matrix) -> Tensor:
    """By torch's CPU kernel: inputs and results rounded to bfloat16, sums in fp32."""
    y: Tensor = torch.ops.aten._weight_int8pack_mm(x.bfloat16(), matrix.codes, matrix.scale)
    return y


def multiply_widened(x: Tensor, matrix: Int8Matrix) -> Tensor:
    """Without the kernel: codes are widened for every product.

    Half the memory of bfloat16 and slower than it; for graphics processors, and where a build of
    torch lacks the kernel.
    """
    return functional.linear(x, matrix.codes.to(x.dtype)) * matrix.scale.to(x.dtype)


class Int8Product:
    """y = x W^T + b for x [n, in], in x's dtype; b is added last."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, by: Multiply, rows: Tensor | None
    ) -> None:
        """`rows`: see `round_matrix`."""
        self._inputs, self._matrix, _ = round_matrix(weight, rows)
        self._bias, self._multiply = bias, by

    def __call__(self, x: Tensor) -> Tensor:
        y = self._multiply(self._inputs(x), self._matrix)
        return y.to(x.dtype) if self._bias is None else y.to(x.dtype).add_(self._bias)


class Int8Logits:
    """The same for a head; each row's largest results are summed again, with both digits.

    bfloat16 has steps of an eighth where logits are near 20, wider than many a lead of the best
    token over the second; the entries far below need no more.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, by: Multiply) -> None:
        self._inputs, self._matrix, self._second = round_matrix(weight, None)
        self._bias, self._multiply = bias, by
        self._count = min(REFINED, weight.shape[0])

    def __call__(self, x: Tensor) -> Tensor:
        inputs = self._inputs(x)
        rough = self._multiply(inputs, self._matrix).float()
        best = rough.topk(self._count, sorted=False).indices
        width = x.shape[1]
        rows = self._matrix.codes[best][..., :width].float()
        rows.add_(self._second[best].float(), alpha=1 / DIGITS)
        exact = (rows * inputs[:, None, :width].float()).sum(-1) * self._matrix.scale[best].float()
        y = rough.scatter_(1, best, exact).to(x.dtype)
        return y if self._bias is None else y + self._bias
