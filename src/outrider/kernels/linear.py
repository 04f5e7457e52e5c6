"""Linear layers: the interface, and torch's own."""

from abc import ABC, abstractmethod

from torch import Tensor
from torch.nn import functional


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
