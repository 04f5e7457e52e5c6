"""Operations between the products of a layer, and small products too, each as one call.

torch takes a microsecond or more for every operation however small, and a step of a small model has
a thousand of them. Where numba is installed, `outrider.kernels.jit` does a layer's part in one
call on the CPU, row by row. docs/decisions/fused-kernels.md has the measurements.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, cast

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
    """Compiled kernels over fp32 tensors on the CPU. A module of them is compiled when it is first
    needed. jit: products, norms and gates. pages: where the weights of products lie."""

    jit: Any
    pages: Pages = field(default_factory=Pages)

    @property
    def delta(self) -> Any:
        """Operations between the products of a recurrent layer."""
        return load_kernels("jit_delta")

    @property
    def attention(self) -> Any:
        """Operations between the products of an attention layer."""
        return load_kernels("jit_attention")

    @property
    def block(self) -> Any:
        """A block drafter's passes."""
        return load_kernels("jit_block")

    @property
    def draft(self) -> Any:
        """A block drafter's greedy tokens."""
        return load_kernels("jit_draft")

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
        share(ns, shape[0], self.delta.mix_delta, *arguments)
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
    """True if layers with such weights run on compiled kernels here."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and has_numba()


def has_numba() -> bool:
    """True if the compiler is there: a requirement wherever it has a wheel."""
    return find_spec("numba") is not None


@cache
def load_fused() -> Fused:
    """The compiled kernels of this process."""
    return Fused(load_kernels("jit"))


_LOADING = Lock()


@cache
def load_kernels(name: str) -> Any:
    """A module of kernels, compiled or found compiled; says so where that takes a while."""
    import numba

    with _LOADING:  # models may be loaded in several threads
        folder, settings = _cache_folder(), cast(Any, numba.config)
        announce(folder, name)
        embedder, settings.CACHE_DIR = settings.CACHE_DIR, str(folder or "")
        try:
            module = module_of(name)
        finally:
            settings.CACHE_DIR = embedder
        module_of("jit").compile_module(module.__name__)
    return module


def module_of(name: str) -> Any:
    """A module of kernels, imported."""
    return import_module(f"{__package__}.{name}")


def announce(folder: Path | None, name: str) -> None:
    """Say that the kernels of a module will be compiled, unless `folder` has them."""
    what = f"compiling kernels ({name}, a few seconds)"
    if folder is None:
        LOG.warning("%s, which no folder can keep: no writable home", what)
    elif not any(folder.rglob(f"{name}.*.nbi")):
        LOG.warning("%s for this processor, once, into %s", what, folder)


def _cache_folder() -> Path | None:
    """Where kernels of exactly this source are kept; numba watches only the file of each."""
    sources = sorted(Path(__file__).parent.glob("jit*.py"))
    mark = sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    try:
        folder = Path.home() / ".cache" / "outrider" / f"kernels-{mark}"
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except (OSError, RuntimeError):
        return None
    return folder if writable else None
