"""Linear layers whose rows have the same bits alone and among others.

On the CPU a weight is packed once for oneDNN (the pieces that torch's own compiler uses when it
freezes a model): eight rows then cost about 1.5 of one, where MKL doubles its cost at two rows.
The operators have underscore names, so they are found by feature detection and `F.linear` is their
fallback. docs/decisions/row-invariance.md has the measurements.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from outrider.kernels.fused import can_fuse, load_fused
from outrider.kernels.int8 import (
    Int8Logits,
    Int8Product,
    Multiply,
    can_multiply,
    multiply,
    multiply_widened,
)
from outrider.kernels.rows import pad_rows, padded_rows, stocked_rows

PACKED_FOR_ROWS = 8
"""Row count that weights are packed for; see docs/decisions/row-invariance.md."""

ROUNDED: dict[str, Multiply] = {"int8": multiply, "int8-widened": multiply_widened}
"""Kernels of layers that are rounded by their first rows."""

FUSED = "fused"
"""The kernel that is made of a row's own operations, whatever rows are beside it."""

LOGITS = "-logits"
"""Ends the name of a rounded head's kernel."""

Kernel = Callable[[Tensor], Tensor]
Quantize = Literal["none", "int8"]

Use = Literal["layer", "memory", "head"]
"""Result that a weight makes: a layer's rows, what later rows read of this one, or logits."""


@dataclass(frozen=True, slots=True)
class LinearPlan:
    """How a weight of one shape is multiplied: kernel name and row treatment."""

    kernel: str
    rows: int

    def __str__(self) -> str:
        return f"{self.kernel}/{'each row' if self.rows == 0 else f'rows x{self.rows}'}"


class Linear:
    """y = x W^T + b for x [n, in], W [out, in], b [out] or None; result [n, out] in x's dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None, plan: LinearPlan) -> None:
        self.out_features, self.in_features = weight.shape
        self.plan = plan
        self.kernel = _kernels()[plan.kernel](weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        multiple, num_rows = self.plan.rows, x.shape[0]
        if multiple == 0:
            return torch.cat([self.kernel(row) for row in x.split(1)])
        if self.plan.kernel == FUSED:
            return self.kernel(x)
        rows = padded_rows(stocked_rows(num_rows), multiple)
        return self.kernel(x) if rows == num_rows else self.kernel(pad_rows(x, rows))[:num_rows]


class RoundedLinear(Linear):
    """A linear layer that is rounded when its first rows come: they tell which inputs are large.

    Until then it holds the weight as it is; `models.load` sends rows through every layer.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, plan: LinearPlan) -> None:
        self.out_features, self.in_features = weight.shape
        self.plan = plan
        self._given: tuple[Tensor, Tensor | None] | None = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        if self._given is not None:
            self.kernel = Int8Product(*self._given, ROUNDED[self.plan.kernel], x)
            self._given = None
        return super().__call__(x)


def make_linear(weight: Tensor, bias: Tensor | None, plan: LinearPlan) -> Linear:
    """A layer under a plan."""
    return (RoundedLinear if plan.kernel in ROUNDED else Linear)(weight, bias, plan)


def candidates(
    weight: Tensor,
    *,
    exact: bool,
    quantize: Quantize = "none",
    use: Use = "layer",
    fused: bool = False,
) -> list[LinearPlan]:
    """Plans worth trying for a weight, fastest first; the last one is invariant by construction."""
    kernel = "packed" if _can_pack(weight) else "plain"
    if quantize == "int8":
        kernel = _rounded(weight, use)
    elif fused and can_fuse(weight):
        kernel = FUSED
    if not exact:
        return [LinearPlan(kernel, 1)]
    if quantize == "int8":
        return [LinearPlan(kernel, rows) for rows in (1, 2, 4, 8, 0)]
    plans = [LinearPlan(name, rows) for name in (kernel, "plain") for rows in (1, 2, 4, 8)]
    return [*plans, LinearPlan("plain", 0)]


def _rounded(weight: Tensor, use: Use) -> str:
    """Keys, values and recurrences pass an error on to all later rows: half precision for them."""
    if use == "memory" and _can_halve(weight):
        return "half"
    return ("int8" if can_multiply(weight) else "int8-widened") + (LOGITS if use == "head" else "")


def _can_halve(weight: Tensor) -> bool:
    """True if torch has its kernel for fp16 weights under fp32 inputs, and fp16 their range."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and "fbgemm" in torch.backends.quantized.supported_engines
        and hasattr(torch.ops.quantized, "linear_prepack_fp16")
        and float(weight.abs().max()) <= torch.finfo(torch.float16).max
    )


def _can_pack(weight: Tensor) -> bool:
    ops = torch.ops.mkldnn
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(ops, "_reorder_linear_weight")
        and hasattr(ops, "_linear_pointwise")
    )


def _packed(weight: Tensor, bias: Tensor | None) -> Kernel:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_FOR_ROWS)
    run = torch.ops.mkldnn._linear_pointwise

    def apply(x: Tensor) -> Tensor:
        result: Tensor = run(x, packed, bias, "none", [], "")
        return result

    return apply


def _fused(weight: Tensor, bias: Tensor | None) -> Kernel:
    return load_fused().linear(weight, bias)


def _plain(weight: Tensor, bias: Tensor | None) -> Kernel:
    return lambda x: functional.linear(x, weight, bias)


def _half(weight: Tensor, bias: Tensor | None) -> Kernel:
    packed = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)
    run = torch.ops.quantized.linear_dynamic_fp16

    def apply(x: Tensor) -> Tensor:
        result: Tensor = run(x, packed)
        return result

    return apply


def _kernels() -> dict[str, Callable[[Tensor, Tensor | None], Kernel]]:
    heads = {name + LOGITS: partial(Int8Logits, by=by) for name, by in ROUNDED.items()}
    return {FUSED: _fused, "packed": _packed, "plain": _plain, "half": _half, **heads}
