"""Operations that layers are made of, as one interface.

`outrider.kernels.compiled` has them for fp32 on a CPU, with the same bits for a row in any window;
`outrider.kernels.reference` has them in plain torch, for any device and dtype.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from outrider.kernels.norm import RmsNorm
from outrider.kernels.pass_plan import PassPlan


class Linear(ABC):
    """y = x W^T + b for x [n, in_features]; the result [n, out_features] has x's dtype."""

    in_features: int
    out_features: int

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...


class TorchLinear(Linear):
    """The layer with weight [out, in] and bias [out] or None, on any device and in any dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMix:
    """Attention between the projections of one layer, the `index`-th of its kind in its states.

    A projection has columns of queries, keys, values and, where `gated`, gates of the outputs.
    window: positions that a row sees, itself included (None: all). scale: factor of the scores.
    head_norm: scale [heads + kv_heads, width] of query and key heads.
    """

    index: int
    heads: int
    kv_heads: int
    width: int
    scale: float
    gated: bool = False
    window: int | None = None
    head_norm: RmsNorm | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaMix:
    """A gated delta net between the projections of one layer, the `index`-th of its kind.

    A projection has columns of keys, queries and values, which pass the convolution, then of output
    gates, strengths and decays. conv: [taps, channels], oldest input first. rate: [heads], times
    softplus of a decay. norm: of each head's output, scale [width]. All are fp32.
    """

    index: int
    key_heads: int
    heads: int
    key_width: int
    width: int
    conv: Tensor
    rate: Tensor
    norm: RmsNorm


Mixer = Callable[[Tensor, PassPlan], Tensor]
"""Rows of a projection [N, ..] and their pass to mixed rows [N, heads * width]."""


class Kernels(ABC):
    """Operations of a model's layers on rows [N, ...] of a pass.

    name: for reports. exact: a row has the same bits whichever rows are beside it.
    """

    name: str
    exact: bool

    @abstractmethod
    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """The layer with weight [out, in] and bias [out]."""

    @abstractmethod
    def norm(self, x: Tensor, norm: RmsNorm) -> Tensor:
        """The RMS norm of rows x [N, width]."""

    @abstractmethod
    def add_norm(self, x: Tensor, y: Tensor, norm: RmsNorm) -> tuple[Tensor, Tensor]:
        """x + y [N, width], and the RMS norm of its rows."""

    @abstractmethod
    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y [N, width]; may be x itself."""

    @abstractmethod
    def gated(self, both: Tensor) -> Tensor:
        """silu(gate) * up of gates beside ups [N, 2 width]."""

    @abstractmethod
    def attention(self, mix: AttentionMix) -> Mixer:
        """Head norms, rotary embedding, attention and gates of a projection; keeps keys and values
        in the states."""

    @abstractmethod
    def delta(self, mix: DeltaMix) -> Mixer:
        """Convolution, delta rule, norm and gates of a projection; keeps log and columns in the
        states."""
