"""The operations of a layer on the CPU in fp32, each as one call of a compiled kernel.

torch takes a microsecond or more for every operation however small, and a step of a small model has
a thousand of them. `outrider.kernels.jit` and its neighbours do a layer's part in one call, row by
row. docs/decisions/fused-kernels.md has the measurements.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from outrider.kernels.loading import load_kernels
from outrider.kernels.norm import RmsNorm
from outrider.kernels.operations import AttentionMix, DeltaMix, Kernels, Linear, Mixer
from outrider.kernels.pages import Pages
from outrider.kernels.pass_plan import PassPlan
from outrider.kernels.workers import share

ROW_RATE, READ_RATE, DELTA_RATE, ATTENTION_RATE = 35, 8, 2, 10
"""Of one thread, roughly, in a nanosecond: weights times rows, weights from the cache, elements of
a recurrent layer's kernels and states times rows, and elements of attention's keys times rows."""


class Product(Linear):
    """A linear layer; weight [blocks, in, BLOCK], bias [blocks, BLOCK] as arrays in `pages`."""

    def __init__(self, weight: Tensor, bias: Tensor | None, pages: Pages) -> None:
        self.out_features, self.in_features = weight.shape
        jit = load_kernels("jit")
        block = jit.BLOCK
        blocks = -(-self.out_features // block)
        missing = blocks * block - self.out_features
        packed = pad(weight, (0, 0, 0, missing)).view(blocks, block, -1).transpose(1, 2)
        added = torch.zeros(self.out_features) if bias is None else bias
        self.weight = pages.empty((blocks, self.in_features, block))
        torch.from_numpy(self.weight).copy_(packed)
        self.bias = pad(added, (0, missing)).view(blocks, block).numpy()
        self._run = jit.linear

    def __call__(self, x: Tensor) -> Tensor:
        y, size = torch.empty(x.shape[0], self.out_features), self.weight.size
        ns = max(size // READ_RATE, size // ROW_RATE * len(x))
        arrays = self.weight, self.bias, x.contiguous().numpy(), y.numpy()
        share(ns, len(self.weight), self._run, *arrays)
        return y


class CompiledKernels(Kernels):
    """Operations over contiguous fp32 rows on the CPU; a row has the same bits in any window.

    Kernels are compiled when they are first needed.
    """

    name = "compiled"
    exact = True

    def __init__(self) -> None:
        self._jit = load_kernels("jit")
        self._pages = Pages()

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return Product(weight, bias, self._pages)

    def norm(self, x: Tensor, norm: RmsNorm) -> Tensor:
        x = x.contiguous()
        result = torch.empty_like(x)
        arrays = x.numpy(), norm.scale.numpy(), norm.eps, result.numpy()
        share(x.numel(), len(x), self._jit.norm_rows, *arrays)
        return result

    def add_norm(self, x: Tensor, y: Tensor, norm: RmsNorm) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        total, result = torch.empty_like(x), torch.empty_like(x)
        arrays = x.numpy(), y.numpy(), norm.scale.numpy(), norm.eps, total.numpy(), result.numpy()
        share(x.numel(), len(x), self._jit.add_norm_rows, *arrays)
        return total, result

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        # In place, and not by torch, which would wake up threads that then spin beside ours.
        share(x.numel(), len(x), self._jit.add_rows, x.numpy(), y.numpy())
        return x

    def gated(self, both: Tensor) -> Tensor:
        result = torch.empty(both.shape[0], both.shape[1] // 2)
        share(both.numel(), len(both), self._jit.gated, both.numpy(), result.numpy())
        return result

    def attention(self, mix: AttentionMix) -> Mixer:
        kernels, norm = load_kernels("jit_attention"), mix.head_norm
        scale, eps = (norm.scale, norm.eps) if norm else (torch.empty(0, mix.width), 0.0)
        head_norm = scale.numpy(), eps
        shape = mix.heads, mix.kv_heads, mix.width, int(mix.gated), mix.window or 0

        def run(projected: Tensor, plan: PassPlan) -> Tensor:
            result = torch.empty(len(projected), mix.heads * mix.width)
            given, at = projected.numpy(), (plan.table, mix.index, shape)
            turned = given, *at, *head_norm, plan.rope.numpy()
            share(given.size, mix.kv_heads, kernels.keep_attention, *turned)
            units = sum(-(-span.rows // kernels.TOGETHER) for span in plan.spans) * mix.kv_heads
            ns = (plan.spans[0].start + len(result)) * result.numel() // ATTENTION_RATE
            share(ns, units, kernels.mix_attention, given, *at, mix.scale, result.numpy())
            return result

        return run

    def delta(self, mix: DeltaMix) -> Mixer:
        mix_delta = load_kernels("jit_delta").mix_delta
        size = mix.conv.numel() + mix.heads * mix.key_width * mix.width
        shape = mix.key_heads, mix.heads, mix.key_width, mix.width
        weights = mix.conv.numpy(), mix.rate.numpy(), mix.norm.scale.numpy(), mix.norm.eps

        def run(projected: Tensor, plan: PassPlan) -> Tensor:
            result = torch.empty(len(projected), mix.heads * mix.width)
            given = projected.numpy(), plan.table, mix.index, shape, *weights, result.numpy()
            share(len(result) * size // DELTA_RATE, mix.key_heads, mix_delta, *given)
            return result

        return run
