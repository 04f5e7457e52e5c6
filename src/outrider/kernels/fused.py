"""What lies between the products of a layer, and small products too, each as one call.

torch takes a microsecond or more for every operation however small, and a step of a small model has
a thousand of them. Where numba is installed, `outrider.kernels.jit` does a layer's part in one
call on the CPU, row by row. docs/decisions/fused-kernels.md has the measurements.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from outrider.kernels.pages import Pages
from outrider.kernels.workers import share

LOG = logging.getLogger(__name__)

ROW_RATE, READ_RATE, DELTA_RATE, ATTENTION_RATE = 35, 8, 2, 10
"""Of one thread, roughly, in a nanosecond: weights times rows, weights from the cache, elements of
a recurrent layer's kernels and states times rows, and elements of attention's keys times rows."""


@dataclass(frozen=True, slots=True)
class Product:
    """x [n, in] to x W^T + bias [n, out]; weight [blocks, in, BLOCK], bias [blocks, BLOCK]."""

    weight: Any
    bias: Any
    out: int
    run: Callable[..., None]

    def __call__(self, x: Tensor) -> Tensor:
        y, size = torch.empty(x.shape[0], self.out), self.weight.size
        ns = max(size // READ_RATE, size // ROW_RATE * len(x))
        arrays = self.weight, self.bias, x.contiguous().numpy(), y.numpy()
        share(ns, len(self.weight), self.run, *arrays)
        return y


@dataclass(frozen=True, slots=True)
class Fused:
    """Compiled kernels over fp32 tensors on the CPU, from `outrider.kernels.jit` and others.

    delta: what lies between the products of a recurrent layer. attention: the module with what does
    between those of an attention layer. block, keep, choose: a block drafter's pass, what its
    context keeps, and its greedy tokens. pages: where the weights of products lie.
    """

    jit: Any
    delta: Callable[..., None]
    attention: Any
    block: Callable[..., None]
    keep: Callable[..., None]
    choose: Callable[..., None]
    pages: Pages = field(default_factory=Pages)

    def linear(self, weight: Tensor, bias: Tensor | None) -> Product:
        """The product for weight [out, in], bias [out] or None."""
        out, size = weight.shape
        block = self.jit.BLOCK
        blocks = -(-out // block)
        missing = blocks * block - out
        packed = pad(weight, (0, 0, 0, missing)).view(blocks, block, size).transpose(1, 2)
        added = torch.zeros(out) if bias is None else bias
        sums = pad(added, (0, missing)).view(blocks, block).numpy()
        kept = self.pages.empty((blocks, size, block))
        torch.from_numpy(kept).copy_(packed)
        return Product(kept, sums, out, self.jit.linear)

    def unit(self, x: Tensor, eps: float) -> Tensor:
        """Rows of x [n, width] over their lengths."""
        result = torch.empty_like(x)
        share(x.numel(), len(x), self.jit.unit_rows, x.numpy(), eps, result.numpy())
        return result

    def add_unit(self, x: Tensor, y: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """x + y [n, width], and its rows over their lengths."""
        total, result = torch.empty_like(x), torch.empty_like(x)
        arrays = x.numpy(), y.numpy(), eps, total.numpy(), result.numpy()
        share(x.numel(), len(x), self.jit.add_unit_rows, *arrays)
        return total, result

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y [n, width], in x. torch would wake up threads that then spin beside ours."""
        share(x.numel(), len(x), self.jit.add_rows, x.numpy(), y.numpy())
        return x

    def mix_delta(
        self,
        projected: Tensor,
        plan: tuple[Any, int],
        shape: tuple[int, ...],
        weights: tuple[Any, Any, float],
    ) -> Tensor:
        """Convolution, delta rule, norm and gate of a recurrent layer; [N, V D].

        plan: the spans of the pass as `jit.FIELDS` has them, and the layer. shape: K, V, A, D.
        weights: convolution [taps, channels], rates [V] and the norm's epsilon.
        """
        conv, rate, eps = weights
        result = torch.empty(projected.shape[0], shape[1] * shape[3])
        ns = projected.shape[0] * (conv.size + shape[1] * shape[2] * shape[3]) // DELTA_RATE
        arguments = projected.numpy(), *plan, shape, conv, rate, eps, result.numpy()
        share(ns, shape[0], self.delta, *arguments)
        return result

    def mix_attention(
        self,
        projected: Tensor,
        plan: tuple[Any, int],
        shape: tuple[int, ...],
        weights: tuple[Any, float],
        turns: Any,
    ) -> Tensor:
        """Head norms, rotary embedding, attention and gates of a layer; [N, heads width].

        plan: as in `mix_delta`. shape: query and key-value heads, width, whether gated, and the
        sliding window or 0. weights: head norms [heads, width] or empty, and their epsilon. turns:
        cos and sin [2, max_length, width].
        """
        scale, eps = weights
        result = torch.empty(projected.shape[0], shape[0] * shape[2])
        keys = int(plan[0][0, 0]) + len(result)
        ns = keys * result.numel() // ATTENTION_RATE
        kernels, given, rows = self.attention, projected.numpy(), plan[0][:, 1].tolist()
        turned = given, *plan, shape, scale, eps, turns
        share(given.size, shape[1], kernels.keep_attention, *turned)
        units = sum(-(-count // kernels.TOGETHER) for count in rows) * shape[1]
        share(ns, units, kernels.mix_attention, given, *plan, shape, result.numpy())
        return result

    def gated(self, both: Tensor) -> Tensor:
        """silu(gate) * up from negated gates and negated ups [n, 2 width]."""
        result = torch.empty(both.shape[0], both.shape[1] // 2)
        share(both.numel(), len(both), self.jit.gated, both.numpy(), result.numpy())
        return result


def can_fuse(weight: Tensor) -> bool:
    """Whether layers with such weights run on compiled kernels here."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and has_numba()


def has_numba() -> bool:
    """Whether the compiler is there: a requirement wherever it has a wheel."""
    return find_spec("numba") is not None


@cache
def load_fused() -> Fused:
    """Compile all kernels, or find them compiled; says so where that takes a while."""
    import numba

    folder = _cache_folder()
    announce(folder)
    settings: Any = numba.config
    settings.CACHE_DIR = str(folder or "")
    from outrider.kernels import jit, jit_attention, jit_block, jit_delta, jit_draft

    jit.compile_all()
    return Fused(
        jit,
        jit_delta.mix_delta,
        jit_attention,
        jit_block.run_block,
        jit_block.keep_features,
        jit_draft.choose_rows,
    )


def announce(folder: Path | None) -> None:
    """Say that kernels will be compiled, unless `folder` has them."""
    if folder is None:
        LOG.warning("compiling kernels (15 s or more), which no folder can keep: no writable home")
    elif not any(folder.rglob("*.nbi")):
        LOG.warning("compiling kernels for this processor, once (15 s or more), into %s", folder)


def _cache_folder() -> Path | None:
    """Where kernels of exactly this source are kept; numba watches only the file of each."""
    sources = sorted(Path(__file__).parent.glob("jit*.py"))
    mark = sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    try:
        folder = Path.home() / ".cache" / "outrider" / f"kernels-{mark}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder
